"""SeatManager: keeps a seat open for new workers, gives other runs their share, and names workers
that cannot serve.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import redis

from es_queue.protocol import keys
from es_queue.protocol.channel import MasterChannel
from es_queue.protocol.seats import close_seats, is_seat_of, open_seats, waiting_seat_ids
from es_queue.security.sanitize import sanitize
from master.fleet.failed_seats import LONGEST_REASON, FailedSeats
from master.fleet.seat_cleaning import SeatCleaner

LOGGER = logging.getLogger("es_queue.fleet")
MOST_OPEN = 16
PAIRS_AFTER_FAILURES = 3
SETTLE_SECONDS = 3.0


class SeatManager:
    """Keeps seats of one run open on one queue; ``tick`` is called about once per second.
    ``on_error`` hears of commands that failed.
    """

    def __init__(
        self,
        client: redis.Redis,
        queue: str,
        run: str,
        nonce: str,
        timeout: int,
        on_error: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._client: Any = client
        self._queue, self._run, self._nonce, self._timeout = queue, run, nonce, timeout
        self._failed = FailedSeats(client, queue, run, nonce)
        self._has_results = False
        self._known_workers: set[str] = set()
        self._settled_at = 0.0
        self._noted_troubles: set[str] = set()
        self._cleaner = SeatCleaner(client, queue, run)
        self._on_error = on_error

    def tick(
        self,
        channel: MasterChannel,
        workers: Mapping[str, Mapping[str, str]],
        served: bool,
        paused: bool = False,
    ) -> list[str]:
        """Open what is missing; returns the workers that should give way to another run.

        ``served``: whether any answer has ever counted; ``paused``: a paused run keeps no worker
        from another. Raises RedisError when no worker that comes can serve.
        """
        self._has_results = self._has_results or served
        self._clear(self._cleaner.tick)
        try:
            self._report_failed()
            if paused:
                close_seats(self._client, self._queue, self._run)
                return sorted(workers) if self._waiting_runs(channel) else []
            candidates = self._runs_with_fewer_workers(channel, len(workers))
            if candidates:
                close_seats(self._client, self._queue, self._run)
                return self._workers_to_release(workers, candidates)
            new_workers = len(set(workers) - self._known_workers)
            self._known_workers = set(workers)
            least = 2 if self._failed.count >= PAIRS_AFTER_FAILURES else 1
            fresh = open_seats(
                self._client,
                self._queue,
                self._run,
                self._nonce,
                min(MOST_OPEN, max(least, new_workers)),
                self._timeout,
            )
            self._failed.remember_opened(fresh)
        except redis.exceptions.RedisError as error:
            self._note_trouble(error)
        return []

    def _report_failed(self) -> None:
        try:
            self._failed.update(self._has_results)
        except redis.exceptions.DataError as error:
            self._note_trouble(error, "told apart")

    def _note_trouble(self, error: Exception, what: str = "opened") -> None:
        """Once for each kind: what goes wrong here goes wrong each second."""
        self._on_error(error)
        kind = f"{what} {type(error).__name__}"
        if kind not in self._noted_troubles:
            self._noted_troubles.add(kind)
            LOGGER.warning(f"seats cannot be {what}: {sanitize(error, LONGEST_REASON)}")

    def _clear(self, clean: Callable[[], int]) -> None:
        try:
            count = clean()
        except redis.exceptions.RedisError as error:
            self._note_trouble(error, "cleared")
            return
        if count:
            LOGGER.warning(
                f"RQ still listed {count} seat{'s' if count > 1 else ''} of workers that are "
                f"gone: removed"
            )

    def close_open_seats(self) -> None:
        """Take back the open seats, where Redis lets us: the run is ending anyway."""
        with suppress(redis.exceptions.RedisError):
            close_seats(self._client, self._queue, self._run)

    def clear_registries(self) -> None:
        """The run has ended: leave nothing of its seats in RQ's registries."""
        self._clear(self._cleaner.clear_all)

    # --- sharing workers between runs

    def _runs_with_fewer_workers(self, channel: MasterChannel, mine: int) -> dict[str, int]:
        """Other runs with a waiting seat and at least two workers fewer than this one."""
        return {
            run: count for run, count in self._waiting_runs(channel).items() if mine - count >= 2
        }

    def _waiting_runs(self, channel: MasterChannel) -> dict[str, int]:
        """Other runs that train and have a waiting seat, with the number of their workers."""
        waiting = {
            keys.parse_seat_id(name)[0]
            for name in waiting_seat_ids(self._client, self._queue)
            if not is_seat_of(name, self._run)
        }
        counts = {run: channel.other_workers(run) for run in waiting}
        return {run: count for run, count in counts.items() if count is not None}

    def _workers_to_release(
        self, workers: Mapping[str, Mapping[str, str]], candidates: dict[str, int]
    ) -> list[str]:
        """Half the difference to the poorest run leaves, then the counts are given time
        to settle.
        """
        now = time.monotonic()
        if now < self._settled_at:
            return []
        self._settled_at = now + SETTLE_SECONDS
        share = (len(workers) - min(candidates.values())) // 2
        return sorted(workers)[:share]
