"""The doctor's checks of RQ's workers and of one run, each a pure function of what was read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from es_queue.protocol.channel import PAUSED, RUNNING
from es_queue.security.sanitize import sanitize
from master.doctor.finding import Finding, failed_finding, ok_finding, warning_finding
from master.doctor.host import check_box2d, format_rq_fix
from master.status.redis_reader import ORPHANED, RunSummary, Texts

LISTENER_FIELDS = ("hostname", "queues", "state", "last_heartbeat", "version")
#: Packages whose version may change a run's numbers, or what is said on the network.
COMPARED_PACKAGES = ("es-queue", "numpy", "gymnasium")
MOST_HOSTS = 6
VERSION = re.compile(r"([a-z0-9_-]{1,40}) ([^\s,]{1,40})")
STATES_NEEDING_WORKERS = (RUNNING, PAUSED)


@dataclass(frozen=True)
class QueueState:
    """One queue as RQ's own registries tell it.

    listeners: what each living worker of the queue says of itself; elsewhere: the queues of all
    living workers;
    seats: open ones of the run, of all runs where no run was named; url: without its password;
    secret: it had one;
    local: no other machine reaches the server by it
    """

    queue: str
    url: str
    secret: bool = False
    listeners: Sequence[Texts] = ()
    elsewhere: Sequence[str] = ()
    suspended: bool = False
    seats: int = 0
    local: bool = False


def check_listening(queue_state: QueueState, needed: bool) -> Finding:
    """needed: a run waits for workers now."""
    queue = sanitize(queue_state.queue, 60)
    if queue_state.listeners:
        count = len(queue_state.listeners)
        hosts = format_hosts(
            listener.get("hostname", "a host") for listener in queue_state.listeners
        )
        return ok_finding(
            "listening",
            (
                f"{count} RQ {pluralize('worker', count)} on queue {queue} ({hosts}); "
                f"{queue_state.seats} open {pluralize('seat', queue_state.seats)}"
            ),
        )
    others = sorted(
        {name for queues in queue_state.elsewhere for name in queues.split(",") if name}
        - {queue_state.queue}
    )
    aside = (
        f" ({len(queue_state.elsewhere)} listen on {sanitize(', '.join(others), 60)})"
        if others
        else ""
    )
    fix = format_rq_fix(
        f"start one, on {'this machine' if queue_state.local else 'any host'}, by",
        queue_state.url,
        queue_state.secret,
        "worker",
        queue_state.queue,
    )
    return (failed_finding if needed else warning_finding)(
        "listening", f"no RQ worker listens on queue {queue}{aside}", fix
    )


def check_suspended(queue_state: QueueState) -> Finding:
    if not queue_state.suspended:
        return ok_finding("rq", "RQ is not suspended")
    return failed_finding(
        "rq",
        "RQ is suspended: no worker takes a seat",
        format_rq_fix("let it go on by", queue_state.url, queue_state.secret, "resume"),
    )


# --- one run


@dataclass(frozen=True)
class RunCheckInput:
    """A run and its living workers as their keys tell them; local_versions: this host's versions;
    noise: digest of the run's table.
    """

    summary: RunSummary
    workers: Mapping[str, Texts] = field(default_factory=dict)
    local_versions: str = ""
    noise: str | None = None

    @property
    def needs_workers(self) -> bool:
        return self.summary.is_leased and self.summary.state in STATES_NEEDING_WORKERS


def check_run(check_input: RunCheckInput) -> list[Finding]:
    """The run's state, and its workers, where it has any."""
    findings = [check_state(check_input.summary)]
    if check_input.needs_workers or check_input.workers:
        findings.append(check_workers(check_input))
    if check_input.workers:
        findings += [
            check_fingerprint(check_input.workers),
            check_worker_versions(check_input.workers, check_input.local_versions),
            check_worker_packages(check_input.workers),
        ]
        findings += [
            check_threads(check_input.workers),
            check_worker_noise(check_input.workers, check_input.noise),
            *check_worker_box2d(check_input.workers),
        ]
    return findings


def check_state(summary: RunSummary) -> Finding:
    state = sanitize(summary.state, 40)
    if summary.state == ORPHANED:
        return failed_finding(
            "run", f"{summary.run} has no master", f"go on with it by\n{summary.resume}"
        )
    if summary.state == "failed":
        return warning_finding(
            "run",
            f"{summary.run} failed: {sanitize(summary.progress.get('why', 'it does not say why'))}",
            f"go on with it, once that is mended, by\n{summary.resume}",
        )
    return ok_finding("run", f"{summary.run} is {state}")


def check_workers(check_input: RunCheckInput) -> Finding:
    """How many serve, and what those say that refuse."""
    refusals = {
        sanitize(about["refuses"]): sanitize(about.get("host", "a host"), 60)
        for about in check_input.workers.values()
        if about.get("refuses")
    }
    refusing = sum(1 for about in check_input.workers.values() if about.get("refuses"))
    joined = len(check_input.workers) - refusing
    where = format_hosts(about.get("host", "a host") for about in check_input.workers.values())
    if refusals:
        reasons = "; ".join(f"{name}: {reason}" for reason, name in list(refusals.items())[:3])
        state = warning_finding if joined else failed_finding
        return state(
            "workers",
            f"{joined} joined, {refusing} cannot ({reasons})",
            "mend that on the host named, or stop its workers",
        )
    if not joined:
        return warning_finding(
            "workers",
            f"none serves {check_input.summary.run}",
            "see the lines on listening and rq; es-status shows whether other runs have them all",
        )
    return ok_finding("workers", f"{joined} joined ({where})")


def check_fingerprint(workers: Mapping[str, Texts]) -> Finding:
    """Whether all workers compute the same bits."""
    classes = group_hosts(workers, "numerics")
    if not classes:
        return ok_finding("fingerprint", "no worker has told its own yet")
    if len(classes) == 1:
        return ok_finding(
            "fingerprint",
            f"all workers compute the same bits ({sanitize(next(iter(classes))[:8])}…)",
        )
    groups = "; ".join(
        f"{sanitize(numerics[:8])}… on {format_hosts(names)}"
        for numerics, names in sorted(classes.items())[:4]
    )
    fix = (
        "the run learns as well, but cannot be repeated to the bit: use one type of processor "
        "and one numpy, or keep the others away with --queue"
    )
    return warning_finding(
        "fingerprint", f"mixed fleet, {len(classes)} kinds of arithmetic: {groups}", fix
    )


def check_worker_versions(workers: Mapping[str, Texts], here: str) -> Finding:
    """here: this host's versions line."""
    ours = parse_versions(here)
    others: dict[str, list[str]] = defaultdict(list)
    for about in workers.values():
        theirs = parse_versions(about.get("versions", ""))
        for name in COMPARED_PACKAGES:
            if theirs.get(name, ours.get(name)) != ours.get(name):
                others[f"{name} {theirs[name]} (here {ours.get(name, 'none')})"].append(
                    about.get("host", "a host")
                )
    silent = [
        about.get("host", "a host") for about in workers.values() if not about.get("versions")
    ]
    if others:
        differences = "; ".join(
            f"{difference} on {format_hosts(names)}"
            for difference, names in sorted(others.items())[:4]
        )
        wanted = " ".join(f"{name}=={ours[name]}" for name in COMPARED_PACKAGES[1:] if name in ours)
        return warning_finding(
            "fleet versions",
            differences,
            (
                "install the same release of es-queue on all hosts; there, for the rest,\npip "
                f"install {wanted}"
            ),
        )
    if silent:
        return warning_finding(
            "fleet versions",
            f"not told by workers on {format_hosts(silent)}: another release of es-queue",
            "install the same release on all hosts",
        )
    return ok_finding(
        "fleet versions", f"{', '.join(COMPARED_PACKAGES)} are the same on all workers and here"
    )


def check_worker_packages(workers: Mapping[str, Texts]) -> Finding:
    """From which folders workers import our packages: two places on one host are mostly an
    accident.
    """
    by_host: dict[str, set[str]] = defaultdict(set)
    for about in workers.values():
        if about.get("packages"):
            by_host[about.get("host", "a host")].add(about["packages"])
    twice = {
        name: places
        for name, places in by_host.items()
        if len(places) > 1 or any(" and " in place for place in places)
    }
    if twice:
        locations = "; ".join(
            f"{sanitize(name, 60)}: {sanitize(' and '.join(sorted(places)))}"
            for name, places in sorted(twice.items())[:3]
        )
        return warning_finding(
            "fleet folders",
            f"workers of one host import from several folders: {locations}",
            "use one environment on each host, and nothing called workers on PYTHONPATH",
        )
    places = group_hosts(workers, "packages")
    locations = "; ".join(
        f"{sanitize(place, 120)} on {format_hosts(names)}"
        for place, names in sorted(places.items())[:3]
    )
    return ok_finding(
        "fleet folders",
        f"imported from {locations}" if locations else "workers do not tell their folders",
    )


def check_threads(workers: Mapping[str, Texts]) -> Finding:
    wrong = [
        about.get("host", "a host")
        for about in workers.values()
        if about.get("threads", "1") not in ("1", "")
    ]
    if wrong:
        return warning_finding(
            "threads",
            f"BLAS has several threads on {format_hosts(wrong)}",
            "set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 there",
        )
    return ok_finding("threads", "one BLAS thread in each worker")


def check_worker_noise(workers: Mapping[str, Texts], run_digest: str | None) -> Finding:
    hosts_by_digest = group_hosts(workers, "noise")
    wrong = {
        digest: names
        for digest, names in hosts_by_digest.items()
        if run_digest is not None and digest != run_digest
    }
    if wrong:
        hosts = format_hosts(name for names in wrong.values() for name in names)
        return failed_finding(
            "fleet noise",
            f"another noise table than the run's on {hosts}",
            "remove the tables there (~/.cache/es-queue/noise) and install the same release",
        )
    return ok_finding(
        "fleet noise",
        "every worker's table is the run's" if hosts_by_digest and run_digest else "not told yet",
    )


def check_worker_box2d(workers: Mapping[str, Texts]) -> list[Finding]:
    """A line for each host on which two distributions provide Box2D."""
    twice = {
        about.get("host", "a host"): about["box2d"]
        for about in workers.values()
        if " and " in about.get("box2d", "")
    }
    return [
        check_box2d(provided, sanitize(name, 60))
        for name, provided in sorted(twice.items())[:MOST_HOSTS]
    ]


# --- words


def parse_versions(versions: str) -> dict[str, str]:
    """``numpy 2.4.6, rq 2.12`` by name."""
    return dict(VERSION.findall(sanitize(versions)))


def group_hosts(workers: Mapping[str, Texts], name: str) -> dict[str, list[str]]:
    """Hosts by what their workers say under ``name``; the silent ones are left out."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for about in workers.values():
        if about.get(name):
            hosts[about[name]].append(about.get("host", "a host"))
    return dict(hosts)


def format_hosts(names: Iterable[str]) -> str:
    """``a, b and 3 more hosts``; a host that is there several times stands once, with its count."""
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        counts[sanitize(name, 60)] += 1
    labels = [f"{name} ×{count}" if count > 1 else name for name, count in sorted(counts.items())]
    more = f" and {len(labels) - MOST_HOSTS} more hosts" if len(labels) > MOST_HOSTS else ""
    return ", ".join(labels[:MOST_HOSTS]) + more


def pluralize(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
