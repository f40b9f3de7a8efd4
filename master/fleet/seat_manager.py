"""SeatManager: keeps a seat open for new workers, gives other runs their share, and names workers
that cannot serve.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import redis

from es_queue.errors import EnvironmentFailure, RedisError
from es_queue.protocol import connection, keys
from es_queue.protocol.seats import (
    FAILURE_SECONDS,
    close_seats,
    is_seat_of,
    open_seats,
    remove_mistyped,
    require_type,
    waiting_seat_ids,
)
from es_queue.protocol.store import MasterStore
from es_queue.text import sanitize
from master.display.notes import LimitedNotes
from master.fleet.seat_cleaning import SeatCleaner

LOGGER = logging.getLogger("es_queue.fleet")
MOST_OPEN = 16
PAIRS_AFTER_FAILURES = 3
SETTLE_SECONDS = 3.0


class SeatManager:
    """Keeps seats of one run open on one queue; call ``tick`` about once per second. ``on_error``
    receives failures.
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
        channel: MasterStore,
        workers: Mapping[str, Mapping[str, str]],
        served: bool,
        paused: bool = False,
    ) -> list[str]:
        """Open missing seats; returns the workers that should give way to another run.

        ``served``: whether any answer has ever counted; ``paused``: a paused run keeps no worker
        from another. Raises RedisError if new workers cannot serve.
        """
        self._has_results = self._has_results or served
        try:
            for key in remove_mistyped(self._client, self._queue):
                LOGGER.warning(f"removed {key}")
            self._clear(self._cleaner.tick)
            self._report_failed()
            if paused:
                close_seats(self._client, self._queue, self._run)
                return sorted(workers) if self._waiting_runs(channel) else []
            candidates = self._runs_with_fewer_workers(channel, len(workers))
            if candidates:
                close_seats(self._client, self._queue, self._run)
                return self._workers_to_release(workers, candidates)
            # Only RQ's workers take seats from the queue.
            of_rq = {name for name, about in workers.items() if about.get("rq_name")}
            new_workers = len(of_rq - self._known_workers)
            self._known_workers = of_rq
            least = 2 if self._failed.count >= PAIRS_AFTER_FAILURES else 1
            open_seats(
                self._client,
                self._queue,
                self._run,
                self._nonce,
                min(MOST_OPEN, max(least, new_workers)),
                self._timeout,
            )
        except redis.exceptions.RedisError as error:
            self._note_trouble(error)
        return []

    def _report_failed(self) -> None:
        try:
            self._failed.update(self._has_results)
        except redis.exceptions.DataError as error:
            self._note_trouble(error, "told apart")

    def _note_trouble(self, error: Exception, what: str = "opened") -> None:
        """Note each kind of failure once: it recurs each second."""
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
                f"gone: they were removed"
            )

    def close_open_seats(self) -> None:
        """Close the open seats if Redis allows it: the run is ending anyway."""
        with suppress(redis.exceptions.RedisError):
            close_seats(self._client, self._queue, self._run)

    def clear_registries(self) -> None:
        """Remove the run's seats from RQ's registries after its end."""
        self._clear(self._cleaner.clear_all)

    # --- sharing workers between runs

    def _runs_with_fewer_workers(self, channel: MasterStore, mine: int) -> dict[str, int]:
        """Other runs with a waiting seat and at least two workers fewer than this one."""
        return {
            run: count for run, count in self._waiting_runs(channel).items() if mine - count >= 2
        }

    def _waiting_runs(self, channel: MasterStore) -> dict[str, int]:
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
        """Release half the difference to the run with the fewest workers, then let the counts
        settle.
        """
        now = time.monotonic()
        if now < self._settled_at:
            return []
        self._settled_at = now + SETTLE_SECONDS
        share = (len(workers) - min(candidates.values())) // 2
        return sorted(workers)[:share]


MOST_FAILED_SEATS = 20
MOST_FAILED_READ = 100
CLOCK_SKEW = 24 * 3600.0
MAX_TRACE = 2**16
LONGEST_NAME = 2**10
LONGEST_SHOWN, LONGEST_REASON = 80, 200
#: What RQ says of a seat whose process ended.
CRASHED = "Work-horse terminated unexpectedly"


class FailedSeats:
    """Seats of one run that failed before es-queue's code ran. count: their number"""

    def __init__(self, client: redis.Redis, queue: str, run: str, nonce: str) -> None:
        self._client: Any = client
        self._queue = queue
        self._prefix = keys.seat_id(run, nonce, 0).removesuffix("0")
        self._log = LimitedNotes(LOGGER, 2 * MOST_FAILED_SEATS)
        self._failed: set[str] = set()
        self._crashed = 0

    @property
    def count(self) -> int:
        return len(self._failed)

    def update(self, has_results: bool) -> None:
        """Name the workers of seats that failed since the last call.

        Raises RedisError or EnvironmentFailure if many have failed without any result so far,
        DataError if the registry has another type.
        """
        # RQ scores a failed job by its expiry, by the worker's clock; most jobs stay for a year,
        # seats for an hour
        now = time.time()
        earliest, latest = now - CLOCK_SKEW, now + FAILURE_SECONDS + CLOCK_SKEW
        registry = keys.rq_failed(self._queue)
        require_type(self._client, registry, b"zset")
        for name in self._client.zrevrangebyscore(
            registry, latest, earliest, start=0, num=MOST_FAILED_READ
        ):
            seat = name.decode("ascii", "replace")
            if seat.startswith(self._prefix) and seat not in self._failed:
                self._failed.add(seat)
                self._name_worker(seat)
        if self.count >= MOST_FAILED_SEATS and not has_results:
            self._end_run()

    def _end_run(self) -> None:
        if 2 * self._crashed > self.count:
            raise EnvironmentFailure(
                f"the processes of {self._crashed} seats ended without a result: the environment "
                "may crash or block each process that creates or plays it, or need more memory "
                "than the hosts have; the workers' terminals show how they ended"
            )
        raise RedisError(
            f"{self.count} seats were taken by workers that cannot serve them: install es-queue on "
            f"the hosts of the workers of queue {self._queue!r}, or use --queue with your own queue"
        )

    def _name_worker(self, seat: str) -> None:
        result = self._read_result(seat)
        # Where its horse was killed, RQ itself has overwritten the name in the job.
        worker = (
            connection.read_field(self._client, keys.rq_job(seat), "worker_name", LONGEST_NAME)
            or result.get(b"worker_name")
            or b"unknown"
        )
        key = keys.rq_worker(worker[:LONGEST_NAME].decode("ascii", "replace"))
        host = connection.read_field(self._client, key, "hostname", LONGEST_NAME)
        name = f"worker {shown(worker)} on {shown(host or b'an unknown host')}"
        text = decode_traceback(result.get(b"exc_string", b""))
        if is_import_failure(text):
            self._log.warning(
                f"{name} took a seat but cannot import es-queue: install it there, stop that "
                "worker, or use --queue"
            )
        else:
            self._crashed += CRASHED in text
            self._log.warning(f"{name} lost its seat: its work horse was killed or crashed")

    def _read_result(self, seat: str) -> dict[bytes, bytes]:
        results = keys.rq_results(seat)
        newest = connection.none_on_wrong_type(lambda: self._client.xrevrange(results, count=1))
        return newest[0][1] if newest else {}


def shown(text: bytes) -> str:
    """Foreign bytes, safe for a terminal."""
    return sanitize(text[:LONGEST_SHOWN].decode("utf-8", "replace"))


def decode_traceback(packed: bytes) -> str:
    """RQ's stored traceback, up to a limit; empty if invalid."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(packed[:MAX_TRACE]), MAX_TRACE)
        return data.decode("utf-8", "replace")
    except (zlib.error, binascii.Error):
        return ""


def is_import_failure(trace: str) -> bool:
    """Whether es-queue or a module of it is missing where the worker runs."""
    errors = "ModuleNotFoundError|ImportError|ValueError: Invalid attribute name|AttributeError"
    return re.search(errors, trace) is not None
