"""Warns when no worker is usable, or when workers do not return after a Redis outage; ends the run
if no worker can join.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest

from es_queue.errors import EnvironmentFailure
from es_queue.text import sanitize
from master.display.notes import LimitedNotes
from master.status.figures import format_idle_workers

LOGGER = logging.getLogger("es_queue.fleet")
REFUSING_SECONDS = 5.0
IDLE_SECONDS = 5.0
#: Local workers that start on a busy host, or workers that return, are there before that.
UNSERVED_SECONDS = 30.0
#: Of a run that starts no workers: others join before that, or later than one would wait.
ABSENT_SECONDS = 10.0
#: After a pause, busy shares still include it for so long.
BUSY_SECONDS = 60.0
#: Of the reasons for which workers cannot join so many are named, each with so many hosts and
#: letters, and again after so many seconds.
REASONS_NAMED, HOSTS_NAMED, LETTERS, AGAIN_SECONDS = 3, 20, 500, 60.0
LONGEST_HOST = 60
WorkerInfo = Mapping[str, Mapping[str, str]]
MISSING_HOSTS_NAMED = 5


class LastingCondition:
    """Whether a condition has held for more than ``seconds`` without a break."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._since, self._is_reported = seconds, math.inf, False

    def update(self, holds: bool) -> bool:
        self._since = min(self._since, time.monotonic()) if holds else math.inf
        return self.has_lasted

    @property
    def has_lasted(self) -> bool:
        return time.monotonic() - self._since > self._seconds

    def reports(self, holds: bool) -> bool:
        """``update``; True the first time that the condition has lasted."""
        is_first = self.update(holds) and not self._is_reported
        self._is_reported |= is_first
        return is_first


class IdleMonitor:
    """Called each second by one master.

    starting: workers of the master's host that are starting; 0 once any has joined, or is overdue
    """

    def __init__(self, starting: int = 0) -> None:
        patience = UNSERVED_SECONDS if starting else ABSENT_SECONDS
        self.starting = starting
        self._refusals = LimitedNotes(LOGGER)
        self._refusing = LastingCondition(REFUSING_SECONDS)
        self._idle = LastingCondition(patience)
        self._unserved = LastingCondition(patience)
        self._waiting = LastingCondition(IDLE_SECONDS)
        self._quiet_until = -math.inf
        self._noted_at: dict[str, float] = {}

    def update(self, workers: Mapping[str, Mapping[str, str]]) -> None:
        """``workers``: information from all present workers. Raises EnvironmentFailure."""
        self._note_no_workers(workers)
        refusing = {name: about for name, about in workers.items() if "refuses" in about}
        is_served = len(refusing) < len(workers)
        if is_served:
            self._unserved = LastingCondition(UNSERVED_SECONDS)
        else:
            self._unserved.update(True)
        self._note_refusals(refusing, is_served)

    def note_idle(self, workers: int, busy: float | None, slots: int | None, scale: float) -> None:
        """Note once per run that workers have had too little work for a while.

        busy: how many of the workers are busy on average, None if unknown
        slots: training slots of a generation, None if unlimited
        """
        if time.monotonic() < self._quiet_until:
            return
        sentence = format_idle_workers(workers, slots, busy, scale)
        if self._waiting.reports(bool(sentence)):
            LOGGER.warning(sentence)

    def notice_pause(self) -> None:
        """The run is paused, so its workers may leave or wait."""
        self._quiet_until = time.monotonic() + BUSY_SECONDS
        self._waiting.update(False)
        self._idle.update(False)

    @property
    def is_unserved(self) -> bool:
        """Whether no usable worker has been present for longer than one takes to come."""
        return self._unserved.has_lasted

    def _note_refusals(self, refusing: Mapping[str, Mapping[str, str]], others: bool) -> None:
        """Note workers that refuse. If no other worker joins and the environment is the cause, the
        run cannot continue.
        """
        reasons: dict[str, list[str]] = {}
        for about in refusing.values():
            reasons.setdefault(sanitize(about["refuses"], LETTERS), []).append(
                sanitize(about.get("host", "?"), LONGEST_HOST)
            )
        self._name(reasons)
        has_lasted = self._refusing.update(bool(reasons) and not others)
        blamed = min(
            (reason for reason in reasons if reason.startswith("EnvironmentFailure")), default=""
        )
        if blamed and has_lasted:
            raise EnvironmentFailure(
                f"no worker can join; the one on {min(reasons[blamed])} reports: "
                f"{blamed.partition(': ')[2]}"
            )

    def _name(self, reasons: Mapping[str, list[str]]) -> None:
        """A line for each common reason, and one for the rest; the same line at most once per
        minute.
        """
        common = nsmallest(
            REASONS_NAMED, reasons, key=lambda reason: (-len(reasons[reason]), reason)
        )
        lines = []
        for reason in common:
            hosts = reasons[reason]
            lines.append(
                f"{len(hosts)} worker{'s' if len(hosts) > 1 else ''} on {some_of(hosts)} "
                f"cannot join: {reason}"
            )
        if len(reasons) > len(common):
            rest = sum(map(len, reasons.values())) - sum(len(reasons[reason]) for reason in common)
            lines.append(
                f"{rest} more workers cannot join, for {len(reasons) - len(common)} other reasons"
            )
        now = time.monotonic()
        self._noted_at = {
            line: since for line, since in self._noted_at.items() if now - since < AGAIN_SECONDS
        }
        for line in lines:
            if line not in self._noted_at:
                self._noted_at[line] = now
                self._refusals.warning(line)

    def _note_no_workers(self, workers: Mapping[str, Mapping[str, str]]) -> None:
        if workers:
            self._idle, self.starting = LastingCondition(IDLE_SECONDS), 0
        elif self._idle.reports(True):
            self.starting = 0
            LOGGER.warning(
                "no worker has joined: start one with rq worker, on the same Redis and queue"
            )


class MissingAfterOutage:
    """Called once per second. RQ ends a plain worker that needs Redis during an outage; nothing
    else would report it.

    patience: seconds after an outage until a missing worker counts as gone; longer than a beat's
    TTL
    """

    def __init__(
        self,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience, self._clock = patience, clock
        self._outages = 0
        self._present: dict[str, str] = {}
        self._check_at: float | None = None

    def update(self, workers: WorkerInfo, outages: int, leaving: Iterable[str] = ()) -> None:
        """``workers``: present ones; ``outages``: failures so far; ``leaving``: workers asked to
        leave for another run.
        """
        now = self._clock()
        if outages != self._outages:
            self._outages, self._check_at = outages, now + self._patience
        elif self._check_at is not None and now >= self._check_at:
            self._note_lost(workers)
            self._check_at = None
        for name in leaving:
            self._present.pop(name, None)
        if self._check_at is None:
            self._present = {name: about.get("host", "?")[:60] for name, about in workers.items()}

    def _note_lost(self, workers: WorkerInfo) -> None:
        """Count workers, not names: a restarted worker has a new name."""
        count = len(self._present) - len(workers)
        if count <= 0:
            return
        hosts = sorted({host for name, host in self._present.items() if name not in workers})
        named = ", ".join(hosts[:MISSING_HOSTS_NAMED])
        named += " and others" if len(hosts) > MISSING_HOSTS_NAMED else ""
        LOGGER.warning(
            f"{count} of {len(self._present)} workers did not return after the Redis outage (on "
            f"{named}): a plain rq worker exits when it needs Redis during an outage; start them "
            f"again (systemd's Restart=always does this), or use rq worker-pool"
        )


def some_of(hosts: list[str]) -> str:
    """The first hosts in order, and how many more."""
    names = set(hosts)
    return ", ".join(nsmallest(HOSTS_NAMED, names)) + (
        f" and {len(names) - HOSTS_NAMED} others" if len(names) > HOSTS_NAMED else ""
    )
