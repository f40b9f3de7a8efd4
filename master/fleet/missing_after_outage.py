"""MissingAfterOutage: workers that were present before a Redis outage and have not returned."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

LOGGER = logging.getLogger("es_queue.fleet")
WorkerInfo = Mapping[str, Mapping[str, str]]
HOSTS_NAMED = 5


class MissingAfterOutage:
    """Asked once per second. RQ ends a plain worker that needs Redis while Redis is away; nothing
    else would tell of it.

    patience: seconds from the last failure of an outage until who is not there counts as gone;
    longer than a beat's TTL
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
        """``workers``: who is there; ``outages``: failures so far; ``leaving``: who was asked to go
        to another run.
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
        """Count heads, not names: a worker that was started again has another name."""
        count = len(self._present) - len(workers)
        if count <= 0:
            return
        hosts = sorted({host for name, host in self._present.items() if name not in workers})
        named = ", ".join(hosts[:HOSTS_NAMED]) + (" and others" if len(hosts) > HOSTS_NAMED else "")
        LOGGER.warning(
            f"{count} of {len(self._present)} workers did not return after the Redis outage (on "
            f"{named}): a plain rq worker exits when it needs Redis during an outage; start them "
            f"again (systemd's Restart=always does this), or use rq worker-pool"
        )
