"""Abandoned seats: removes RQ's records of seats whose worker was killed.

RQ clears its registries only when an idle worker runs its maintenance. While every worker has a
seat, none does, so each master clears the seats of its own run, under RQ's own lock.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from es_queue.protocol import keys
from es_queue.protocol.seats import is_seat_of, read_queue, require_type

CHECK_SECONDS = 15.0
#: A seat that was popped and not begun: RQ, too, gives its worker a minute.
STUCK_SECONDS = 60.0
#: RQ's own cleaners take the lock for a quarter of an hour; a master that is killed here blocks
#: them for less.
LOCK_SECONDS = 60
#: At the run's end living seats leave by themselves.
LEAVE_SECONDS = 1.0
POLL_SECONDS = 0.05
SCAN_COUNT, MOST_SCANS = 1000, 100
MOST_POPPED = 1000


class SeatCleaner:
    """Clears RQ's registries of one run's abandoned seats on one queue. Raises redis-py's
    errors.
    """

    def __init__(
        self, client: redis.Redis, queue: str, run: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client: Any = client
        self._queue, self._run, self._clock = queue, run, clock
        self._next_check = clock() + CHECK_SECONDS
        self._popped_since: dict[str, float] = {}

    def tick(self) -> int:
        """Every quarter of a minute, clear abandoned seats; returns their number."""
        if self._clock() < self._next_check:
            return 0
        self._next_check = self._clock() + CHECK_SECONDS
        begun = self._started_entries()
        abandoned = self._abandoned_entries(begun)
        stuck = self._stuck_seats({seat_of(entry) for entry in begun})
        if not abandoned and not stuck:
            return 0
        with self._lock() as is_held:
            if not is_held:
                return 0
            abandoned = self._abandoned_entries(
                abandoned
            )  # another cleaner may have been here, or the worker beats again
            self._clear(abandoned, {*(seat_of(entry) for entry in abandoned), *stuck})
        return len(abandoned) + len(stuck)

    def clear_all(self, seconds: float = LEAVE_SECONDS) -> int:
        """The run has ended: wait until its living seats have left, then clear all, failed ones
        too.

        Returns the number of seats that had not ended by themselves.
        """
        until = self._clock() + seconds
        while (begun := self._started_entries()) and self._clock() < until:
            time.sleep(POLL_SECONDS)
        failed, popped = self._scan_registry(keys.rq_failed(self._queue)), self._popped_seats()
        left = {*(seat_of(entry) for entry in begun), *popped}
        while begun or failed or popped:
            with self._lock() as is_held:
                if is_held:
                    self._clear(begun, {*left, *failed})
                    return len(left)
            if self._clock() >= until:
                break
            time.sleep(POLL_SECONDS)
        return 0

    # --- what is there

    def _started_entries(self) -> list[str]:
        """The entries ``<seat>:<execution>`` of this run's seats that RQ counts as begun."""
        return self._scan_registry(keys.rq_wip(self._queue))

    def _scan_registry(self, key: str) -> list[str]:
        """This run's members of a registry that also has other users' jobs; a limited part of
        it.
        """
        require_type(self._client, key, b"zset")
        cursor, entries = 0, dict[str, None]()
        for _ in range(MOST_SCANS):
            cursor, part = self._client.zscan(
                key, cursor, match=f"es-{self._run}-*", count=SCAN_COUNT
            )
            entries |= dict.fromkeys(name.decode("ascii", "replace") for name, _ in part)
            if cursor == 0:
                break
        return [name for name in entries if is_seat_of(seat_of(name), self._run)]

    def _abandoned_entries(self, begun: list[str]) -> list[str]:
        """Entries whose worker no longer beats.

        The entry's score is an expiry by the worker's clock, which may be wrong by hours. The
        execution's own key expires by the server's clock, a minute after the missed beat.
        """
        pipeline = self._client.pipeline(transaction=False)
        for entry in begun:
            pipeline.exists(keys.rq_execution(entry))
        return [
            entry
            for entry, there in zip(begun, pipeline.execute() if begun else [], strict=True)
            if not there
        ]

    def _popped_seats(self) -> list[str]:
        """This run's seats between queue and registry: popped by a worker that has not
        begun them.
        """
        names = (
            name.decode("ascii", "replace")
            for name in read_queue(
                self._client, keys.rq_intermediate(self._queue), 0, MOST_POPPED - 1
            )
        )
        return [name for name in names if is_seat_of(name, self._run)]

    def _stuck_seats(self, begun: set[str]) -> list[str]:
        """Seats that were popped long ago, by the master's clock: their worker died before it
        began.
        """
        now = self._clock()
        self._popped_since = {
            name: self._popped_since.get(name, now)
            for name in self._popped_seats()
            if name not in begun
        }
        return [name for name, since in self._popped_since.items() if now - since >= STUCK_SECONDS]

    # --- clearing

    def _clear(self, entries: list[str], seats: set[str]) -> None:
        """Clear a seat; safe to repeat."""
        pipeline = self._client.pipeline(transaction=True)
        for entry in entries:
            pipeline.zrem(keys.rq_wip(self._queue), entry).delete(keys.rq_execution(entry))
        for seat in sorted(seats):
            pipeline.lrem(keys.rq_intermediate(self._queue), 0, seat).zrem(
                keys.rq_failed(self._queue), seat
            )
            pipeline.delete(
                keys.rq_job(seat),
                keys.rq_executions(seat),
                keys.rq_results(seat),
                keys.rq_first_seen(self._queue, seat),
            )
        pipeline.execute()

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """RQ's maintenance lock of the queue; False while another cleaner holds it."""
        name, lock_value = keys.rq_cleaning(self._queue), secrets.token_hex(8).encode()
        try:
            yield bool(self._client.set(name, lock_value, nx=True, ex=LOCK_SECONDS))
        finally:  # also when the reply to SET was lost
            with suppress(redis.exceptions.RedisError):
                if self._client.get(name) == lock_value:
                    self._client.delete(name)


def seat_of(entry: str) -> str:
    """The seat of a registry's entry, which is ``<seat>:<execution>`` or only the seat."""
    return entry.partition(":")[0]
