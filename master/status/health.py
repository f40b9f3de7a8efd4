"""Health of a run: healthy, stalled, orphaned, failed or done, with reason and exit code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from es_queue.protocol.keys import FAILED, FINISHED, PAUSED, RUNNING, STOPPED, STOPPING
from es_queue.text import sanitize
from master.display.format import (
    LARGEST_WHOLE,
    finite_or_none,
    format_duration,
    format_idle_workers,
)
from master.status.redis_reader import ORPHANED, RunDetails, RunSummary

HEALTHY, STALLED, DONE = "healthy", "stalled", "done"
#: What es-status RUN ends with.
EXIT_CODES = {HEALTHY: 0, DONE: 10, STALLED: 11, ORPHANED: 12, FAILED: 13}

#: A run in which nothing counted for so long, and for so many usual generations, is stalled.
STALLED_SECONDS = 60.0
STALLED_GENERATIONS = 10.0


@dataclass(frozen=True)
class Health:
    """state: one of EXIT_CODES; why: the problem or a remark, usually empty"""

    state: str
    why: str = ""

    @property
    def code(self) -> int:
        return EXIT_CODES[self.state]

    @property
    def is_over(self) -> bool:
        return self.state in (DONE, FAILED)


def assess_health(
    summary: RunSummary, details: RunDetails | None = None, usual: float | None = None
) -> Health:
    """The health of a run; ``usual``: seconds that a generation usually waits for its results, or
    None.

    Ages are differences on the master's own clock.
    """
    state, why = summary.state, sanitize(summary.progress.get("why", ""))
    if state == FAILED:
        return Health(FAILED, why)
    if state in (FINISHED, STOPPED):
        return Health(DONE, why)
    if state == ORPHANED:
        return Health(
            ORPHANED,
            "its master ended without stopping the run"
            if summary.is_on_disk
            else "no master holds its lease: its master has ended, or cannot reach Redis",
        )
    if not summary.is_leased:
        return (
            Health(ORPHANED, "its master has ended before the first generation")
            if summary.is_configured
            else Health(DONE, "its keys have expired")
        )
    if state == PAUSED:
        who = summary.progress.get("paused_by", "")
        return Health(HEALTHY, f"paused by {sanitize(who, 100)}" if who else "")
    if "state" in summary.progress and state not in (RUNNING, STOPPING):
        return Health(
            STALLED,
            f"its state is {sanitize(state, 40)}, which no master writes: see es-status --keys",
        )
    return _assess_running(summary.progress, details, usual)


def silent_seconds(progress: Mapping[str, str]) -> float | None:
    """Seconds without a counted result, None if unknown."""
    updated, answered = (
        finite_or_none(progress.get("updated")),
        finite_or_none(progress.get("answered_at")),
    )
    return None if updated is None or answered is None else max(0.0, updated - answered)


def _assess_running(
    progress: Mapping[str, str], details: RunDetails | None, usual: float | None
) -> Health:
    """Health of a run with a master: a reason for missing results is reported at once, and is a
    stall if it lasts.
    """
    age = silent_seconds(progress) or 0.0
    usual = usual if usual is not None else finite_or_none(progress.get("seconds_wait"))
    cause = format_no_workers(progress, details)
    stalled = (
        age > STALLED_SECONDS
        if cause
        else age > max(STALLED_SECONDS, STALLED_GENERATIONS * (usual or 0.0))
    )
    if not stalled:
        return Health(HEALTHY, cause or idle_workers(progress))
    since = f"no result counted for {format_duration(age)}"
    if cause or usual is None:
        return Health(STALLED, f"{since}: {cause}" if cause else since)
    wait = format_duration(usual) if usual >= 1 else "less than a second"
    return Health(STALLED, f"{since}, though a generation usually waits {wait}")


def idle_workers(progress: Mapping[str, str]) -> str:
    """A remark if workers have too little work, else empty."""
    workers, slots, busy, scale = (
        finite_or_none(progress.get(name) or None)
        for name in ("workers", "training_slots", "busy", "scale")
    )
    if workers is None or not 0 < workers <= LARGEST_WHOLE:
        return ""
    most = None if slots is None or slots > LARGEST_WHOLE else int(slots)
    return format_idle_workers(int(workers), most, busy, max(1.0, scale or 1.0))


def format_no_workers(progress: Mapping[str, str], details: RunDetails | None) -> str:
    """Why no results can arrive; empty while a usable worker is present."""
    living = {} if details is None else details.workers
    refusing = [about for about in living.values() if "refuses" in about]
    if len(refusing) < len(living) or (
        not living and (finite_or_none(progress.get("workers")) or 0) > 0
    ):
        return ""
    if refusing:
        first = refusing[0]
        what = (
            "the only worker refuses"
            if len(refusing) == 1
            else f"all {len(refusing)} workers refuse"
        )
        return (
            f"{what}; {sanitize(first.get('host', 'one'), 60)} reports: "
            f"{sanitize(first['refuses'])}"
        )
    if not progress.get("workers"):  # its master has not looked yet
        return ""
    if progress.get("starting"):
        return "local workers are starting"
    queue = progress.get("queue") or "default"
    return f"no worker has joined; start rq worker on the same Redis, queue {sanitize(queue, 60)}"
