"""The doctor's checks of RQ's workers and of one run; pure functions."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from es_queue.protocol.keys import PAUSED, RUNNING
from es_queue.security.sanitize import sanitize
from master.doctor.finding import Finding, failed, named, ok, warning
from master.doctor.host import check_box2d, format_rq_fix
from master.status.health import idle_workers
from master.status.redis_reader import ORPHANED, RunSummary, Texts

LISTENER_FIELDS = ("hostname", "queues", "state", "last_heartbeat", "version")
#: Packages whose version may change a run's numbers, or its messages in Redis.
COMPARED_PACKAGES = ("es-queue", "numpy", "gymnasium")
MOST_HOSTS = 6
VERSION = re.compile(r"([a-z0-9_-]{1,40}) ([^\s,]{1,40})")
STATES_NEEDING_WORKERS = (RUNNING, PAUSED)


@dataclass(frozen=True)
class QueueState:
    """One queue in RQ's own registries.

    listeners: what each living worker of the queue reports; elsewhere: the queues of all living
    workers
    seats: open ones of the run, or of all runs if none was named; url: without its password;
    secret: whether it had one
    local: whether no other machine can reach the server with it
    """

    queue: str
    url: str
    secret: bool = False
    listeners: Sequence[Texts] = ()
    elsewhere: Sequence[str] = ()
    suspended: bool = False
    seats: int = 0
    local: bool = False


@named("listening")
def check_listening(state: QueueState, needed: bool) -> Finding:
    """needed: whether a run waits for workers now."""
    queue, count = sanitize(state.queue, 60), len(state.listeners)
    if count:
        hosts = format_hosts(about.get("hostname", "a host") for about in state.listeners)
        return ok(
            f"{count} RQ {pluralize('worker', count)} on queue {queue} ({hosts}); "
            f"{state.seats} open {pluralize('seat', state.seats)}"
        )
    others = {name for queues in state.elsewhere for name in queues.split(",")} - {"", state.queue}
    names = sanitize(", ".join(sorted(others)), 60)
    aside = f" ({len(state.elsewhere)} listen on {names})" if others else ""
    what = f"start one on {'this machine' if state.local else 'any host'}:"
    fix = format_rq_fix(what, state.url, state.secret, "worker", state.queue)
    return (failed if needed else warning)(f"no RQ worker listens on queue {queue}{aside}", fix)


@named("rq")
def check_suspended(state: QueueState) -> Finding:
    if not state.suspended:
        return ok("RQ is not suspended")
    fix = format_rq_fix("resume it with", state.url, state.secret, "resume")
    return failed("RQ is suspended: no worker takes a seat", fix)


# --- one run


@dataclass(frozen=True)
class RunCheckInput:
    """A run and its living workers, from their keys; local_versions: this host's versions; noise:
    digest of the run's table.
    """

    summary: RunSummary
    workers: Mapping[str, Texts] = field(default_factory=dict)
    local_versions: str = ""
    noise: str | None = None

    @property
    def needs_workers(self) -> bool:
        return self.summary.is_leased and self.summary.state in STATES_NEEDING_WORKERS


def check_run(check_input: RunCheckInput) -> list[Finding]:
    findings = [check_state(check_input.summary)]
    workers = [{"host": "a host", **about} for about in check_input.workers.values()]
    if check_input.needs_workers or workers:
        findings.append(check_workers(check_input.summary.run, workers))
    if workers:
        findings += [
            *check_idle(check_input.summary),
            check_fingerprint(workers),
            check_worker_versions(workers, check_input.local_versions),
            check_worker_packages(workers),
            check_threads(workers),
            check_worker_noise(workers, check_input.noise),
            *check_worker_box2d(workers),
        ]
    return findings


@named("run")
def check_state(summary: RunSummary) -> Finding:
    state = sanitize(summary.state, 40)
    if summary.state == ORPHANED:
        return failed(f"{summary.run} has no master", f"continue it with\n{summary.resume}")
    if summary.state == "failed":
        return warning(
            f"{summary.run} failed: {sanitize(summary.progress.get('why', 'no reason recorded'))}",
            f"fix that, then continue it with\n{summary.resume}",
        )
    return ok(f"{summary.run} is {state}")


@named("workers")
def check_workers(run: str, workers: Sequence[Texts]) -> Finding:
    refusing = [about for about in workers if about.get("refuses")]
    joined = len(workers) - len(refusing)
    if refusing:
        hosts = {sanitize(about["refuses"]): sanitize(about["host"], 60) for about in refusing}
        reasons = "; ".join(f"{name}: {reason}" for reason, name in list(hosts.items())[:3])
        return (warning if joined else failed)(
            f"{joined} joined, {len(refusing)} cannot ({reasons})",
            "fix that on the named host, or stop its workers",
        )
    if not joined:
        return warning(
            f"no worker serves {run}",
            "see the checks listening and rq; es-status shows whether other runs have all workers",
        )
    return ok(f"{joined} joined ({format_hosts(about['host'] for about in workers)})")


def check_idle(summary: RunSummary) -> list[Finding]:
    """A finding only if workers have too little work."""
    remark, _, cure = idle_workers(summary.progress).partition(": ")
    return [warning(remark, cure).named("idle")] if remark else []


@named("fingerprint")
def check_fingerprint(workers: Sequence[Texts]) -> Finding:
    classes = group_hosts(workers, "numerics")
    shown = {f"{sanitize(bits[:8])}…": names for bits, names in classes.items()}
    if not classes:
        return ok("no worker has reported its own yet")
    if len(classes) == 1:
        return ok(f"all workers compute the same bits ({next(iter(shown))})")
    fix = (
        "the run learns equally well, but cannot be repeated to the bit: use one processor type "
        "and one numpy version, or move the other workers to another --queue"
    )
    kinds = format_groups(shown, 4)
    return warning(f"mixed fleet, {len(classes)} kinds of arithmetic: {kinds}", fix)


@named("fleet versions")
def check_worker_versions(workers: Sequence[Texts], here: str) -> Finding:
    """here: this host's version line."""
    ours, others = parse_versions(here), defaultdict[str, list[str]](list)
    for about in workers:
        theirs = parse_versions(about.get("versions", ""))
        for name in COMPARED_PACKAGES:
            if theirs.get(name, ours.get(name)) != ours.get(name):
                difference = f"{name} {theirs[name]} (here {ours.get(name, 'none')})"
                others[difference].append(about["host"])
    if others:
        wanted = " ".join(f"{name}=={ours[name]}" for name in COMPARED_PACKAGES[1:] if name in ours)
        fix = "install the same release of es-queue on all hosts, and the same packages:"
        return warning(format_groups(others, 4), f"{fix}\npip install {wanted}")
    if silent := [about["host"] for about in workers if not about.get("versions")]:
        return warning(
            f"not reported by workers on {format_hosts(silent)}: another release of es-queue",
            "install the same release on all hosts",
        )
    return ok(f"{', '.join(COMPARED_PACKAGES)} are the same on all workers and here")


@named("fleet folders")
def check_worker_packages(workers: Sequence[Texts]) -> Finding:
    """Two folders on one host are usually an accident."""
    by_host = defaultdict[str, set[str]](set)
    for about in workers:
        if about.get("packages"):
            by_host[about["host"]].update(about["packages"].split(" and "))
    twice = [
        f"{sanitize(name, 60)}: {sanitize(' and '.join(sorted(places)))}"
        for name, places in sorted(by_host.items())
        if len(places) > 1
    ]
    if twice:
        return warning(
            f"workers of one host import from several folders: {'; '.join(twice[:3])}",
            "use one Python environment per host, and no package called workers on PYTHONPATH",
        )
    places = {sanitize(at, 120): on for at, on in group_hosts(workers, "packages").items()}
    if not places:
        return ok("workers do not report their folders")
    return ok(f"imported from {format_groups(places, 3)}")


@named("threads")
def check_threads(workers: Sequence[Texts]) -> Finding:
    wrong = [about["host"] for about in workers if about.get("threads", "1") not in ("1", "")]
    if not wrong:
        return ok("one BLAS thread in each worker")
    return warning(
        f"BLAS has several threads on {format_hosts(wrong)}",
        "set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 there",
    )


@named("fleet noise")
def check_worker_noise(workers: Sequence[Texts], run_digest: str | None) -> Finding:
    tellers = [about for about in workers if about.get("noise")]
    if run_digest is None or not tellers:
        return ok("not reported yet")
    wrong = [about["host"] for about in tellers if about["noise"] != run_digest]
    if not wrong:
        return ok("every worker has the run's table")
    return failed(
        f"a different noise table from the run's on {format_hosts(wrong)}",
        "remove the tables there (~/.cache/es-queue/noise) and install the same release",
    )


def check_worker_box2d(workers: Sequence[Texts]) -> list[Finding]:
    """One line per host on which two distributions provide Box2D."""
    twice = {
        about["host"]: about["box2d"] for about in workers if " and " in about.get("box2d", "")
    }
    some = sorted(twice.items())[:MOST_HOSTS]
    return [check_box2d(names, sanitize(name, 60)) for name, names in some]


# --- text


def parse_versions(versions: str) -> dict[str, str]:
    """``numpy 2.4.6, rq 2.12`` by name."""
    return dict(VERSION.findall(sanitize(versions)))


def group_hosts(workers: Sequence[Texts], name: str) -> dict[str, list[str]]:
    hosts = defaultdict[str, list[str]](list)
    for about in workers:
        if about.get(name):
            hosts[about[name]].append(about["host"])
    return hosts


def format_groups(hosts: Mapping[str, Iterable[str]], most: int) -> str:
    """``numpy 2.1 on a, b; numpy 2.0 on c``, the first few."""
    groups = sorted(hosts.items())[:most]
    return "; ".join(f"{what} on {format_hosts(names)}" for what, names in groups)


def format_hosts(names: Iterable[str]) -> str:
    """``a, b and 3 more hosts``; a repeated host appears once, with its count."""
    counts = Counter(sanitize(name, 60) for name in names)
    labels = [f"{name} ×{count}" if count > 1 else name for name, count in sorted(counts.items())]
    more = f" and {len(labels) - MOST_HOSTS} more hosts" if len(labels) > MOST_HOSTS else ""
    return ", ".join(labels[:MOST_HOSTS]) + more


def pluralize(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
