"""Seats of one run on one queue: kept open for new workers, shared with other runs, cleared from
RQ's registries when their worker was killed.

RQ clears its registries only when an idle worker runs its maintenance. While every worker has a
seat, none does, so each master clears the seats of its own run, under RQ's own lock.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import redis

from es_queue.errors import EnvironmentFailure, RedisError
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    format_limits,
    is_outage,
    none_on_wrong_type,
    read_field,
    runs_in_training,
)
from es_queue.protocol.seats import (
    FAILURE_SECONDS,
    close_seats,
    is_seat_of,
    open_seats,
    read_queue,
    remove_mistyped,
    require_type,
    waiting_seat_ids,
)
from es_queue.protocol.store import MasterStore
from es_queue.text import sanitize, to_text
from master.display.notes import LimitedNotes

LOGGER = logging.getLogger("es_queue.fleet")
MOST_OPEN = 16
PAIRS_AFTER_FAILURES = 3
SETTLE_SECONDS = 3.0
CHECK_SECONDS = 15.0
#: A seat that was popped and not begun: RQ, too, gives its worker a minute.
STUCK_SECONDS = 60.0
#: RQ's own cleaners take the lock for a quarter of an hour; a master that is killed here blocks
#: them for less.
LOCK_SECONDS = 60
#: At the run's end living seats leave by themselves.
LEAVE_SECONDS, POLL_SECONDS = 1.0, 0.05
SCAN_COUNT, MOST_SCANS, MOST_POPPED = 1000, 100, 1000
MOST_FAILED_SEATS, MOST_FAILED_READ = 10, 100
CLOCK_SKEW = 24 * 3600.0
MAX_TRACE, LONGEST_NAME = 2**16, 2**10
LONGEST_SHOWN, LONGEST_REASON = 80, 200
#: What RQ says of a seat whose process ended.
CRASHED = "Work-horse terminated unexpectedly"
#: Why a worker cannot begin a seat, by what RQ's traceback holds.
CAUSES = {
    re.compile("UnicodeDecodeError|JSONDecodeError|DeserializationError"): "cannot read seats, "
    "because its serializer is not RQ's default: start it without -S",
    re.compile(
        "ModuleNotFoundError|ImportError|ValueError: Invalid attribute name|AttributeError"
    ): "cannot import es-queue: install it there, stop that worker, or use --queue",
}
#: Seconds until the next seat after each failure in a row, so that such a worker takes few.
BACKOFF_SECONDS = (0.0, 1.0, 2.0, 4.0)


class Seats:
    """``tick`` keeps them open, about once per second; ``close`` ends them with the run."""

    def __init__(
        self,
        store: MasterStore,
        client: redis.Redis,
        queue: str,
        nonce: str,
        timeout: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``nonce``: of this master's seats; ``timeout``: seconds after which RQ ends one."""
        self._store, self._run, self._queue = store, store.run, queue
        self._client: Any = client
        self._nonce, self._timeout, self._clock = nonce, timeout, clock
        self.has_results = False
        self._known_workers: set[str] = set()
        self._settled_at = 0.0
        self._noted_troubles: set[str] = set()
        self._failures = LimitedNotes(LOGGER, 2 * MOST_FAILED_SEATS)
        self._failed: set[str] = set()
        self._crashed, self._cause = 0, ""
        #: Failures since a worker joined, and when a seat is opened after the last of them.
        self._in_row, self._open_at = 0, 0.0
        self._next_check = clock() + CHECK_SECONDS
        self._popped_since: dict[str, float] = {}

    # --- each second

    def tick(
        self, workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool = False
    ) -> list[str]:
        """Open missing seats; returns the workers that should give way to another run.

        ``served``: whether any answer has ever counted; ``paused``: a paused run keeps no worker
        from another. Raises RedisError or EnvironmentFailure if new workers cannot serve.
        """
        self.has_results = self.has_results or served
        with self._noting("opened"):
            for key in remove_mistyped(self._client, self._queue):
                LOGGER.warning(f"removed {key}")
            with self._noting("cleared"):
                note_cleared(self.clear_abandoned())
            failed = len(self._failed)
            with self._noting("told apart", redis.exceptions.DataError):
                self._note_failed()
            if len(self._failed) > failed:
                pause = BACKOFF_SECONDS[min(self._in_row, len(BACKOFF_SECONDS) - 1)]
                self._in_row, self._open_at = self._in_row + 1, self._clock() + pause
            waiting = self._waiting_runs()
            needy = {run: count for run, count in waiting.items() if len(workers) - count >= 2}
            if paused or needy:
                close_seats(self._client, self._queue, self._run)
                if paused:
                    return sorted(workers) if waiting else []
                return self._released(workers, min(needy.values()))
            # Only RQ's workers take seats from the queue.
            of_rq = {name for name, about in workers.items() if about.get("rq_name")}
            new_workers = len(of_rq - self._known_workers)
            self._known_workers = of_rq
            if new_workers:
                self._in_row, self._open_at = 0, 0.0
            if self._clock() < self._open_at:
                return []
            least = 2 if len(self._failed) >= PAIRS_AFTER_FAILURES else 1
            want = min(MOST_OPEN, max(least, new_workers))
            open_seats(self._client, self._queue, self._run, self._nonce, want, self._timeout)
        return []

    def why_none_is_taken(self) -> str:
        with suppress(redis.exceptions.RedisError):
            if self._client.exists(keys.RQ_SUSPENDED):
                return "RQ is suspended on this Redis, so no rq worker takes a seat: use rq resume"
            about = self._client.info("clients")
            if 0 < about.get("maxclients", 0) <= about["connected_clients"]:
                return (
                    "no worker can join, because Redis accepts no more connections "
                    f"({format_limits(self._client)}): raise maxclients, or end other clients"
                )
        return ""

    @contextmanager
    def _noting(
        self, what: str, kind: type[Exception] = redis.exceptions.RedisError
    ) -> Iterator[None]:
        """Note each kind of Redis's failure once, because it recurs each second."""
        try:
            yield
        except kind as error:
            if is_outage(error):  # part of the outage of the store's own commands
                self._store.retry.record_failure(error)
            trouble = f"{what} {type(error).__name__}"
            if trouble not in self._noted_troubles:
                self._noted_troubles.add(trouble)
                LOGGER.warning(f"seats cannot be {what}: {sanitize(error, LONGEST_REASON)}")

    def _waiting_runs(self) -> dict[str, int]:
        """Other runs that train and have a waiting seat, with the number of their workers."""
        waiting = {
            keys.parse_seat_id(name)[0]
            for name in waiting_seat_ids(self._client, self._queue)
            if not is_seat_of(name, self._run)
        }
        found = self._store.retry(lambda: runs_in_training(self._client, sorted(waiting)))
        return {run: count for run, (_, count) in found.items()}

    def _released(self, workers: Mapping[str, Mapping[str, str]], fewest: int) -> list[str]:
        """Half the difference to the run with the fewest workers; then the counts settle."""
        now = time.monotonic()
        if now < self._settled_at:
            return []
        self._settled_at = now + SETTLE_SECONDS
        return sorted(workers)[: (len(workers) - fewest) // 2]

    # --- seats that failed before es-queue's code ran

    def _note_failed(self) -> None:
        """Name the workers of seats that have failed since the last call.

        Raises RedisError or EnvironmentFailure if many have failed without any result so far,
        DataError if the registry has another type.
        """
        # RQ scores a failed job by its expiry, by the worker's clock; most jobs stay for a year,
        # seats for an hour
        now, registry = time.time(), keys.rq_failed(self._queue)
        earliest, latest = now - CLOCK_SKEW, now + FAILURE_SECONDS + CLOCK_SKEW
        require_type(self._client, registry, b"zset")
        mine = keys.seat_id(self._run, self._nonce, 0).removesuffix("0")
        for name in self._client.zrevrangebyscore(
            registry, latest, earliest, start=0, num=MOST_FAILED_READ
        ):
            seat = name.decode("ascii", "replace")
            if seat.startswith(mine) and seat not in self._failed:
                self._failed.add(seat)
                self._name_worker(seat)
        if len(self._failed) < MOST_FAILED_SEATS or self.has_results:
            return
        if 2 * self._crashed > len(self._failed):
            raise EnvironmentFailure(
                f"the processes of {self._crashed} seats ended without a result: the environment "
                "may crash or block each process that creates or plays it, or need more memory "
                "than the hosts have; the workers' terminals show how they ended"
            )
        raise RedisError(
            f"{len(self._failed)} seats were taken by workers of queue {self._queue!r} that cannot "
            f"serve them: the last one {self._cause or 'lost its process'}"
        )

    def _name_worker(self, seat: str) -> None:
        newest = none_on_wrong_type(lambda: self._client.xrevrange(keys.rq_results(seat), count=1))
        result: dict[bytes, bytes] = newest[0][1] if newest else {}
        # Where its horse was killed, RQ itself has overwritten the name in the job.
        worker = (
            read_field(self._client, keys.rq_job(seat), "worker_name", LONGEST_NAME)
            or result.get(b"worker_name")
            or b"unknown"
        )
        key = keys.rq_worker(worker[:LONGEST_NAME].decode("ascii", "replace"))
        host = read_field(self._client, key, "hostname", LONGEST_NAME) or b"an unknown host"
        # Both are foreign bytes.
        name, place = (sanitize(to_text(text[:LONGEST_SHOWN])) for text in (worker, host))
        text = decode_traceback(result.get(b"exc_string", b""))
        cause = next((words for pattern, words in CAUSES.items() if pattern.search(text)), "")
        trouble = f"took a seat but {cause}"
        if not cause:
            trouble = "lost its seat: its work horse was killed or crashed"
        self._failures.warning(f"worker {name} on {place} {trouble}")
        self._cause = cause or self._cause
        self._crashed += not cause and CRASHED in text

    # --- RQ's registries

    def clear_abandoned(self) -> int:
        """Every quarter of a minute, clear the seats of workers that were killed; returns their
        number.
        """
        now = self._clock()
        if now < self._next_check:
            return 0
        self._next_check = now + CHECK_SECONDS
        begun = self._scan_registry(keys.rq_wip(self._queue))
        abandoned = self._abandoned_entries(begun)
        # Popped long ago, by the master's clock: the worker died before it began.
        popped = set(self._popped_seats()) - {seat_of(entry) for entry in begun}
        self._popped_since = {name: self._popped_since.get(name, now) for name in popped}
        stuck = {name for name in popped if now - self._popped_since[name] >= STUCK_SECONDS}
        if not abandoned and not stuck:
            return 0
        with self._lock() as is_held:
            if not is_held:
                return 0
            # Another cleaner may have been here, or the worker beats again.
            abandoned = self._abandoned_entries(abandoned)
            self._clear(abandoned, stuck)
        return len(abandoned) + len(stuck)

    def close(self) -> None:
        """The run has ended: close its open seats, wait until its living ones have left, then clear
        all, failed ones too, from RQ's registries.
        """
        with suppress(redis.exceptions.RedisError):
            close_seats(self._client, self._queue, self._run)
        with self._noting("cleared"):
            until = self._clock() + LEAVE_SECONDS
            begun = self._scan_registry(keys.rq_wip(self._queue))
            while begun and self._clock() < until:
                time.sleep(POLL_SECONDS)
                begun = self._scan_registry(keys.rq_wip(self._queue))
            failed = self._scan_registry(keys.rq_failed(self._queue))
            left = {*map(seat_of, begun), *self._popped_seats()}
            while left or failed:
                with self._lock() as is_held:
                    if is_held:
                        self._clear(begun, {*left, *failed})
                        note_cleared(len(left))
                        return
                if self._clock() >= until:
                    return
                time.sleep(POLL_SECONDS)

    def _scan_registry(self, key: str) -> list[str]:
        """This run's entries ``<seat>:<execution>`` of a registry, up to a limit: it also has other
        users' jobs.
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
        replies = pipeline.execute() if begun else []
        return [entry for entry, there in zip(begun, replies, strict=True) if not there]

    def _popped_seats(self) -> list[str]:
        """This run's seats between queue and registry: popped by a worker that has not
        begun them.
        """
        popped = read_queue(self._client, keys.rq_intermediate(self._queue), 0, MOST_POPPED - 1)
        names = (name.decode("ascii", "replace") for name in popped)
        return [name for name in names if is_seat_of(name, self._run)]

    def _clear(self, entries: list[str], seats: set[str]) -> None:
        """Clear entries with their seats, and other seats; safe to repeat."""
        pipeline = self._client.pipeline(transaction=True)
        for entry in entries:
            pipeline.zrem(keys.rq_wip(self._queue), entry).delete(keys.rq_execution(entry))
        for seat in sorted({*seats, *map(seat_of, entries)}):
            pipeline.lrem(keys.rq_intermediate(self._queue), 0, seat)
            pipeline.zrem(keys.rq_failed(self._queue), seat)
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


def note_cleared(count: int) -> None:
    """count: of seats that had not ended by themselves"""
    if count:
        LOGGER.warning(
            f"RQ still listed {count} seat{'s' if count > 1 else ''} of workers that are gone: "
            "they were removed"
        )


def decode_traceback(packed: bytes) -> str:
    """RQ's stored traceback, up to a limit; empty if invalid."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(packed[:MAX_TRACE]), MAX_TRACE)
        return data.decode("utf-8", "replace")
    except (zlib.error, binascii.Error):
        return ""
