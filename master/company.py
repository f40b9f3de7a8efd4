"""Whether anybody works: what is said while nobody does, and when that ends the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from es_queue.errors import EnvironmentFailure

REFUSING_SECONDS = 5.0
LONELY_SECONDS = 5.0


class Company:
    """Looked at each second by one master."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._refusing: float | None = None
        self._lonely: float | None = None
        self._told_lonely = False

    def look(self, workers: Mapping[str, Mapping[str, str]]) -> None:
        """``workers``: what all who are there say of themselves. Raises EnvironmentFailure."""
        self._nobody(workers)
        refusing = {name: about for name, about in workers.items() if "refuses" in about}
        self._refusals(refusing, len(refusing) < len(workers))

    def _refusals(self, refusing: Mapping[str, Mapping[str, str]], others: bool) -> None:
        """Name them; when nobody else comes and the environment is to blame, the run cannot go on."""
        reasons = {about["refuses"] for about in refusing.values()}
        for reason in sorted(reasons):
            hosts = [about.get("host", "?")[:60] for about in refusing.values() if about["refuses"] == reason]
            self._note(f"{len(hosts)} worker{'s' if len(hosts) > 1 else ''} on {', '.join(sorted(set(hosts)))} cannot join: {reason}")
        if others or not reasons:
            self._refusing = None
            return
        now = time.monotonic()
        self._refusing = self._refusing or now
        blamed = sorted((about["refuses"], about.get("host", "?")[:60]) for about in refusing.values() if about["refuses"].startswith("EnvironmentFailure"))
        if blamed and now - self._refusing > REFUSING_SECONDS:
            raise EnvironmentFailure(f"no worker can join; the one on {blamed[0][1]} says: {blamed[0][0].partition(': ')[2]}")

    def _nobody(self, workers: Mapping[str, Mapping[str, str]]) -> None:
        """Say once that nobody works, after a while without a worker."""
        now = time.monotonic()
        self._lonely = None if workers else self._lonely or now
        if self._lonely is not None and not self._told_lonely and now - self._lonely > LONELY_SECONDS:
            self._told_lonely = True
            self._note("no worker is here: the run waits for one to join (rq worker, on the same Redis and queue)")
        self._told_lonely = self._told_lonely and not workers
