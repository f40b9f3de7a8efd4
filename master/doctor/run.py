"""The doctor's checks of RQ's workers and of one run, each a pure function of what was read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from es_queue.protocol.channel import PAUSED, RUNNING
from master.doctor.finding import Finding, failed, ok, warning
from master.doctor.host import check_box2d, rq_fix
from master.status.observe import ORPHANED, SeenRun, Texts
from master.wording import printable

ABOUT_LISTENER = ("hostname", "queues", "state", "last_heartbeat", "version")
#: Packages whose version may change a run's numbers, or what is said on the network.
MATTER = ("es-queue", "numpy", "gymnasium")
MOST_HOSTS = 6
VERSION = re.compile(r"([a-z0-9_-]{1,40}) ([^\s,]{1,40})")
WANTS_WORKERS = (RUNNING, PAUSED)


@dataclass(frozen=True)
class QueueLook:
    """One queue as RQ's own registries tell it.

    listeners: what each living worker of the queue says of itself; elsewhere: the queues of all living workers;
    seats: open ones of the run, of all runs where no run was named; url: without its password; secret: it had one;
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


def check_listening(look: QueueLook, needed: bool) -> Finding:
    """needed: a run waits for workers now."""
    queue = printable(look.queue, 60)
    if look.listeners:
        count = len(look.listeners)
        hosts = hosts_of(one.get("hostname", "a host") for one in look.listeners)
        return ok("listening", f"{count} RQ {plural('worker', count)} on queue {queue} ({hosts}); {look.seats} open {plural('seat', look.seats)}")
    others = sorted({name for queues in look.elsewhere for name in queues.split(",") if name} - {look.queue})
    aside = f" ({len(look.elsewhere)} listen on {printable(', '.join(others), 60)})" if others else ""
    fix = rq_fix(f"start one, on {'this machine' if look.local else 'any host'}, by", look.url, look.secret, "worker", look.queue)
    return (failed if needed else warning)("listening", f"no RQ worker listens on queue {queue}{aside}", fix)


def check_suspended(look: QueueLook) -> Finding:
    if not look.suspended:
        return ok("rq", "RQ is not suspended")
    return failed("rq", "RQ is suspended: no worker takes a seat", rq_fix("let it go on by", look.url, look.secret, "resume"))


# --- one run


@dataclass(frozen=True)
class RunLook:
    """A run and its living workers as their keys tell them; here: this host's versions; noise: digest of the run's table."""

    seen: SeenRun
    workers: Mapping[str, Texts] = field(default_factory=dict)
    here: str = ""
    noise: str | None = None

    @property
    def wants_workers(self) -> bool:
        return self.seen.leased and self.seen.state in WANTS_WORKERS


def check_run(look: RunLook) -> list[Finding]:
    """The run's state, and its workers, where it has any."""
    found = [check_state(look.seen)]
    if look.wants_workers or look.workers:
        found.append(check_workers(look))
    if look.workers:
        found += [check_fingerprint(look.workers), check_worker_versions(look.workers, look.here), check_worker_packages(look.workers)]
        found += [check_threads(look.workers), check_worker_noise(look.workers, look.noise), *check_worker_box2d(look.workers)]
    return found


def check_state(seen: SeenRun) -> Finding:
    state = printable(seen.state, 40)
    if seen.state == ORPHANED:
        return failed("run", f"{seen.run} has no master", f"go on with it by\n{seen.resume}")
    if seen.state == "failed":
        return warning("run", f"{seen.run} failed: {printable(seen.progress.get('why', 'it does not say why'))}", f"go on with it, once that is mended, by\n{seen.resume}")
    return ok("run", f"{seen.run} is {state}")


def check_workers(look: RunLook) -> Finding:
    """How many serve, and what those say that refuse."""
    refusals = {printable(about["refuses"]): printable(about.get("host", "a host"), 60) for about in look.workers.values() if about.get("refuses")}
    refusing = sum(1 for about in look.workers.values() if about.get("refuses"))
    joined = len(look.workers) - refusing
    where = hosts_of(about.get("host", "a host") for about in look.workers.values())
    if refusals:
        reasons = "; ".join(f"{name}: {reason}" for reason, name in list(refusals.items())[:3])
        state = warning if joined else failed
        return state("workers", f"{joined} joined, {refusing} cannot ({reasons})", "mend that on the host named, or stop its workers")
    if not joined:
        return warning("workers", f"none serves {look.seen.run}", "see the lines on listening and rq; es-status shows whether other runs have them all")
    return ok("workers", f"{joined} joined ({where})")


def check_fingerprint(workers: Mapping[str, Texts]) -> Finding:
    """Whether all workers compute the same bits."""
    classes = grouped(workers, "numerics")
    if not classes:
        return ok("fingerprint", "no worker has told its own yet")
    if len(classes) == 1:
        return ok("fingerprint", f"all workers compute the same bits ({printable(next(iter(classes))[:8])}…)")
    told = "; ".join(f"{printable(numerics[:8])}… on {hosts_of(names)}" for numerics, names in sorted(classes.items())[:4])
    fix = "the run learns as well, but cannot be repeated to the bit: use one type of processor and one numpy, or keep the others away with --queue"
    return warning("fingerprint", f"mixed fleet, {len(classes)} kinds of arithmetic: {told}", fix)


def check_worker_versions(workers: Mapping[str, Texts], here: str) -> Finding:
    """here: this host's versions line."""
    ours = parsed(here)
    others: dict[str, list[str]] = defaultdict(list)
    for about in workers.values():
        theirs = parsed(about.get("versions", ""))
        for name in MATTER:
            if theirs.get(name, ours.get(name)) != ours.get(name):
                others[f"{name} {theirs[name]} (here {ours.get(name, 'none')})"].append(about.get("host", "a host"))
    silent = [about.get("host", "a host") for about in workers.values() if not about.get("versions")]
    if others:
        told = "; ".join(f"{difference} on {hosts_of(names)}" for difference, names in sorted(others.items())[:4])
        wanted = " ".join(f"{name}=={ours[name]}" for name in MATTER[1:] if name in ours)
        return warning("fleet versions", told, f"install the same release of es-queue on all hosts; there, for the rest,\npip install {wanted}")
    if silent:
        return warning("fleet versions", f"not told by workers on {hosts_of(silent)}: another release of es-queue", "install the same release on all hosts")
    return ok("fleet versions", f"{', '.join(MATTER)} are the same on all workers and here")


def check_worker_packages(workers: Mapping[str, Texts]) -> Finding:
    """From which folders workers import our packages: two places on one host are mostly an accident."""
    by_host: dict[str, set[str]] = defaultdict(set)
    for about in workers.values():
        if about.get("packages"):
            by_host[about.get("host", "a host")].add(about["packages"])
    twice = {name: places for name, places in by_host.items() if len(places) > 1 or any(" and " in place for place in places)}
    if twice:
        told = "; ".join(f"{printable(name, 60)}: {printable(' and '.join(sorted(places)))}" for name, places in sorted(twice.items())[:3])
        return warning("fleet folders", f"workers of one host import from several folders: {told}", "use one environment on each host, and nothing called workers on PYTHONPATH")
    places = grouped(workers, "packages")
    told = "; ".join(f"{printable(place, 120)} on {hosts_of(names)}" for place, names in sorted(places.items())[:3])
    return ok("fleet folders", f"imported from {told}" if told else "workers do not tell their folders")


def check_threads(workers: Mapping[str, Texts]) -> Finding:
    wrong = [about.get("host", "a host") for about in workers.values() if about.get("threads", "1") not in ("1", "")]
    if wrong:
        return warning("threads", f"BLAS has several threads on {hosts_of(wrong)}", "set OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 there")
    return ok("threads", "one BLAS thread in each worker")


def check_worker_noise(workers: Mapping[str, Texts], wanted: str | None) -> Finding:
    told = grouped(workers, "noise")
    wrong = {digest: names for digest, names in told.items() if wanted is not None and digest != wanted}
    if wrong:
        hosts = hosts_of(name for names in wrong.values() for name in names)
        return failed("fleet noise", f"another noise table than the run's on {hosts}", "remove the tables there (~/.cache/es-queue/noise) and install the same release")
    return ok("fleet noise", "every worker's table is the run's" if told and wanted else "not told yet")


def check_worker_box2d(workers: Mapping[str, Texts]) -> list[Finding]:
    """A line for each host on which two distributions provide Box2D."""
    twice = {about.get("host", "a host"): about["box2d"] for about in workers.values() if " and " in about.get("box2d", "")}
    return [check_box2d(provided, printable(name, 60)) for name, provided in sorted(twice.items())[:MOST_HOSTS]]


# --- words


def parsed(versions: str) -> dict[str, str]:
    """``numpy 2.4.6, rq 2.12`` by name."""
    return dict(VERSION.findall(printable(versions)))


def grouped(workers: Mapping[str, Texts], name: str) -> dict[str, list[str]]:
    """Hosts by what their workers say under ``name``; the silent ones are left out."""
    found: dict[str, list[str]] = defaultdict(list)
    for about in workers.values():
        if about.get(name):
            found[about[name]].append(about.get("host", "a host"))
    return dict(found)


def hosts_of(names: Iterable[str]) -> str:
    """``a, b and 3 more hosts``; a host that is there several times stands once, with its count."""
    counts: dict[str, int] = defaultdict(int)
    for name in names:
        counts[printable(name, 60)] += 1
    shown = [f"{name} ×{count}" if count > 1 else name for name, count in sorted(counts.items())]
    more = f" and {len(shown) - MOST_HOSTS} more hosts" if len(shown) > MOST_HOSTS else ""
    return ", ".join(shown[:MOST_HOSTS]) + more


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
