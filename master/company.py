"""Whether anybody works: what is said while nobody does, and when that ends the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from heapq import nsmallest

from es_queue.errors import EnvironmentFailure
from es_queue.wording import printable
from master.limited_notes import LimitedNotes

REFUSING_SECONDS = 5.0
LONELY_SECONDS = 5.0
#: Of the reasons for which workers cannot join so many are named, each with so many hosts and letters, and again after so many seconds.
REASONS_NAMED, HOSTS_NAMED, LETTERS, AGAIN_SECONDS = 3, 20, 500, 60.0
LONGEST_HOST = 60


class Company:
    """Looked at each second by one master."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._note_refusal = note, LimitedNotes(note)
        self._refusing: float | None = None
        self._lonely: float | None = None
        self._told_lonely = False
        self._told: dict[str, float] = {}

    def look(self, workers: Mapping[str, Mapping[str, str]]) -> None:
        """``workers``: what all who are there say of themselves. Raises EnvironmentFailure."""
        self._nobody(workers)
        refusing = {name: about for name, about in workers.items() if "refuses" in about}
        self._refusals(refusing, len(refusing) < len(workers))

    def _refusals(self, refusing: Mapping[str, Mapping[str, str]], others: bool) -> None:
        """Name them; when nobody else comes and the environment is to blame, the run cannot go on."""
        reasons: dict[str, list[str]] = {}
        for about in refusing.values():
            reasons.setdefault(printable(about["refuses"], LETTERS), []).append(printable(about.get("host", "?"), LONGEST_HOST))
        self._name(reasons)
        if others or not reasons:
            self._refusing = None
            return
        now = time.monotonic()
        self._refusing = self._refusing or now
        blamed = min((reason for reason in reasons if reason.startswith("EnvironmentFailure")), default="")
        if blamed and now - self._refusing > REFUSING_SECONDS:
            raise EnvironmentFailure(f"no worker can join; the one on {min(reasons[blamed])} says: {blamed.partition(': ')[2]}")

    def _name(self, reasons: Mapping[str, list[str]]) -> None:
        """A line for each of the reasons that most workers give, and one for the rest; the same line once a minute."""
        common = nsmallest(REASONS_NAMED, reasons, key=lambda reason: (-len(reasons[reason]), reason))
        lines = []
        for reason in common:
            hosts = reasons[reason]
            lines.append(f"{len(hosts)} worker{'s' if len(hosts) > 1 else ''} on {some_of(hosts)} cannot join: {reason}")
        if len(reasons) > len(common):
            rest = sum(map(len, reasons.values())) - sum(len(reasons[reason]) for reason in common)
            lines.append(f"{rest} more workers cannot join, for {len(reasons) - len(common)} other reasons")
        now = time.monotonic()
        self._told = {line: since for line, since in self._told.items() if now - since < AGAIN_SECONDS}
        for line in lines:
            if line not in self._told:
                self._told[line] = now
                self._note_refusal(line)

    def _nobody(self, workers: Mapping[str, Mapping[str, str]]) -> None:
        """Say once that nobody works, after a while without a worker."""
        now = time.monotonic()
        self._lonely = None if workers else self._lonely or now
        if self._lonely is not None and not self._told_lonely and now - self._lonely > LONELY_SECONDS:
            self._told_lonely = True
            self._note("no worker is here: the run waits for one to join (rq worker, on the same Redis and queue)")
        self._told_lonely = self._told_lonely and not workers


def some_of(hosts: list[str]) -> str:
    """Hosts in order, the first of them where they are many."""
    names = set(hosts)
    return ", ".join(nsmallest(HOSTS_NAMED, names)) + (f" and {len(names) - HOSTS_NAMED} others" if len(names) > HOSTS_NAMED else "")
