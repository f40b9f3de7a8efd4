"""RollCall: which workers were there before Redis was away, and have not come back since."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

About = Mapping[str, Mapping[str, str]]
HOSTS_NAMED = 5


class RollCall:
    """Asked once a second. RQ ends a plain worker that needs Redis while Redis is away; nothing else would tell of it.

    patience: seconds from the last failure of an outage until who is not there counts as gone; longer than a beat's TTL
    """

    def __init__(self, patience: float, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._note, self._clock = patience, note, clock
        self._outages = 0
        self._there: dict[str, str] = {}
        self._due: float | None = None

    def look(self, workers: About, outages: int, leaving: Iterable[str] = ()) -> None:
        """``workers``: who is there; ``outages``: failures so far; ``leaving``: who was asked to go to another run."""
        now = self._clock()
        if outages != self._outages:
            self._outages, self._due = outages, now + self._patience
        elif self._due is not None and now >= self._due:
            self._call(workers)
            self._due = None
        for name in leaving:
            self._there.pop(name, None)
        if self._due is None:
            self._there = {name: about.get("host", "?")[:60] for name, about in workers.items()}

    def _call(self, workers: About) -> None:
        """Count heads, not names: a worker that was started again has another name."""
        count = len(self._there) - len(workers)
        if count <= 0:
            return
        hosts = sorted({host for name, host in self._there.items() if name not in workers})
        named = ", ".join(hosts[:HOSTS_NAMED]) + (" and others" if len(hosts) > HOSTS_NAMED else "")
        self._note(
            f"{count} of {len(self._there)} workers did not come back after Redis was away (on {named}): a plain rq worker ends when it "
            "needs Redis meanwhile; start them again (a supervisor does it by itself: systemd's Restart=always), or use rq worker-pool"
        )
