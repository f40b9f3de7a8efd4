"""Whether anybody works: what is said while nobody does, and when that ends the run."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from heapq import nsmallest

from es_queue.errors import EnvironmentFailure
from es_queue.security.sanitize import sanitize
from master.display.format import format_waiting_workers
from master.display.notes import LimitedNotes

LOGGER = logging.getLogger("es_queue.fleet")
REFUSING_SECONDS = 5.0
IDLE_SECONDS = 5.0
#: Local workers that are started again, or come from another run of a study, are back before that.
UNSERVED_SECONDS = 30.0
#: Of the reasons for which workers cannot join so many are named, each with so many hosts and
#: letters, and again after so many seconds.
REASONS_NAMED, HOSTS_NAMED, LETTERS, AGAIN_SECONDS = 3, 20, 500, 60.0
LONGEST_HOST = 60


class IdleMonitor:
    """Looked at each second by one master."""

    def __init__(self) -> None:
        self._refusals = LimitedNotes(LOGGER)
        self._refusing_since: float | None = None
        self._idle_since: float | None = None
        self._idle_noted = False
        self._unserved_since: float | None = None
        self._waiting_since: float | None = None
        self._waiting_noted = False
        self._noted_at: dict[str, float] = {}

    def update(self, workers: Mapping[str, Mapping[str, str]]) -> None:
        """``workers``: what all who are there say of themselves. Raises EnvironmentFailure."""
        self._note_no_workers(workers)
        refusing = {name: about for name, about in workers.items() if "refuses" in about}
        is_served = len(refusing) < len(workers)
        self._unserved_since = None if is_served else self._unserved_since or time.monotonic()
        self._note_refusals(refusing, len(refusing) < len(workers))

    def note_waiting(self, workers: int, slots: int | None) -> None:
        """Say once in a run that workers have outnumbered a generation's training slots for a
        while; ``slots`` is None where there is always another one.
        """
        sentence = "" if slots is None else format_waiting_workers(workers, slots)
        now = time.monotonic()
        self._waiting_since = (self._waiting_since or now) if sentence else None
        if (
            self._waiting_since is not None
            and not self._waiting_noted
            and now - self._waiting_since > IDLE_SECONDS
        ):
            self._waiting_noted = True
            LOGGER.warning(sentence)

    @property
    def is_unserved(self) -> bool:
        """Whether nobody has been there for UNSERVED_SECONDS who does not refuse to work."""
        since = self._unserved_since
        return since is not None and time.monotonic() - since > UNSERVED_SECONDS

    def _note_refusals(self, refusing: Mapping[str, Mapping[str, str]], others: bool) -> None:
        """Name them; when nobody else comes and the environment is to blame, the run
        cannot go on.
        """
        reasons: dict[str, list[str]] = {}
        for about in refusing.values():
            reasons.setdefault(sanitize(about["refuses"], LETTERS), []).append(
                sanitize(about.get("host", "?"), LONGEST_HOST)
            )
        self._name(reasons)
        if others or not reasons:
            self._refusing_since = None
            return
        now = time.monotonic()
        self._refusing_since = self._refusing_since or now
        blamed = min(
            (reason for reason in reasons if reason.startswith("EnvironmentFailure")), default=""
        )
        if blamed and now - self._refusing_since > REFUSING_SECONDS:
            raise EnvironmentFailure(
                f"no worker can join; the one on {min(reasons[blamed])} reports: "
                f"{blamed.partition(': ')[2]}"
            )

    def _name(self, reasons: Mapping[str, list[str]]) -> None:
        """A line for each of the reasons that most workers give, and one for the rest; the same
        line once a minute.
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
        """Say once that nobody works, after a while without a worker."""
        now = time.monotonic()
        self._idle_since = None if workers else self._idle_since or now
        if (
            self._idle_since is not None
            and not self._idle_noted
            and now - self._idle_since > IDLE_SECONDS
        ):
            self._idle_noted = True
            LOGGER.warning(
                "no worker has joined: the run waits for one (rq worker, on the same Redis and "
                "queue)"
            )
        self._idle_noted = self._idle_noted and not workers


def some_of(hosts: list[str]) -> str:
    """Hosts in order, the first of them where they are many."""
    names = set(hosts)
    return ", ".join(nsmallest(HOSTS_NAMED, names)) + (
        f" and {len(names) - HOSTS_NAMED} others" if len(names) > HOSTS_NAMED else ""
    )
