"""SeatManager: seats stay open for any worker that arrives, other runs get their share, and who
cannot serve is named.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import redis

from es_queue.errors import EnvironmentFailure, RedisError
from es_queue.protocol import keys
from es_queue.protocol.channel import MasterChannel
from es_queue.protocol.seats import (
    FAILURE_SECONDS,
    close_seats,
    is_seat_of,
    open_seats,
    waiting_seat_ids,
)
from es_queue.security import bounded_reads
from master.display.limited_notes import LimitedNotes
from master.fleet.seat_cleaning import SeatCleaner

MOST_OPEN = 16
PAIRS_AFTER_FAILURES = 3
MOST_FAILED_SEATS = 20
SETTLE_SECONDS = 3.0
MOST_FAILED_READ = 100
#: Seats that this master has opened or seen in the queue: no other seat's failure counts.
MOST_OPENED = 20_000
#: Seats before the newest one that count as opened: workers open and take some between two looks.
OPENED_UNSEEN = 64
#: Seats whose failure is remembered: a worker may write any number of names into RQ's registry.
MOST_FAILED = 1000
CLOCK_SKEW = 24 * 3600.0
MAX_TRACE = 2**16
MAX_RESULTS = 2**20  # RQ keeps the last ten of a job
LONGEST_NAME = 2**10
#: What RQ says of a seat whose process ended.
CRASHED = "Work-horse terminated unexpectedly"


@dataclass
class IncompatibleWorker:
    """A worker that took a seat and could not run it."""

    name: str
    host: str
    reason: str
    crashed: bool


class SeatManager:
    """Keeps seats of one run open on one queue; ``tick`` is called about once a second.
    ``on_error`` hears of commands that failed.
    """

    def __init__(
        self,
        client: redis.Redis,
        queue: str,
        run: str,
        nonce: str,
        timeout: int,
        note: Callable[[str], None],
        on_error: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._client: Any = client
        self._queue, self._run, self._nonce, self._timeout, self._note = (
            queue,
            run,
            nonce,
            timeout,
            note,
        )
        self._note_failed = LimitedNotes(note, 2 * MOST_FAILED_SEATS)
        self._opened: dict[str, None] = {}
        self._failed_seats: set[str] = set()
        self._crashed_seats = 0
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
            self._report_incompatible()
            if paused:
                close_seats(self._client, self._queue, self._run)
                return sorted(workers) if self._waiting_runs(channel) else []
            candidates = self._runs_with_fewer_workers(channel, len(workers))
            if candidates:
                close_seats(self._client, self._queue, self._run)
                return self._workers_to_release(workers, candidates)
            new_workers = len(set(workers) - self._known_workers)
            self._known_workers = set(workers)
            least = 2 if len(self._failed_seats) >= PAIRS_AFTER_FAILURES else 1
            fresh = open_seats(
                self._client,
                self._queue,
                self._run,
                self._nonce,
                min(MOST_OPEN, max(least, new_workers)),
                self._timeout,
            )
            self._remember(fresh)
        except redis.exceptions.RedisError as error:
            self._note_trouble(error)
        return []

    def _remember(self, fresh: list[str]) -> None:
        """Seats that may be taken from now on: those opened here, and some of those that workers
        opened.
        """
        prefix = keys.seat_id(self._run, self._nonce, 0).removesuffix("0")
        waiting = [
            name for name in waiting_seat_ids(self._client, self._queue) if name.startswith(prefix)
        ]
        self._opened |= dict.fromkeys([*fresh, *waiting[:MOST_OPEN]])
        while len(self._opened) > MOST_OPENED:
            del self._opened[next(iter(self._opened))]

    def _note_trouble(self, error: Exception, what: str = "opened") -> None:
        """Once for each kind: what goes wrong here goes wrong each second."""
        self._on_error(error)
        kind = f"{what} {type(error).__name__}"
        if kind not in self._noted_troubles:
            self._noted_troubles.add(kind)
            self._note(f"seats cannot be {what}: {sanitize_bytes(str(error)[:200].encode())}")

    def _clear(self, clean: Callable[[], int]) -> None:
        """Clear RQ's registries of abandoned seats, and say so."""
        try:
            count = clean()
        except redis.exceptions.RedisError as error:
            self._note_trouble(error, "cleared")
            return
        if count:
            self._note(
                f"RQ still held {count} seat{'s' if count > 1 else ''} of workers that are "
                "gone: cleared"
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

    # --- workers that cannot serve

    def _report_incompatible(self) -> None:
        """Say which workers took a seat and failed before a line of ours ran; stop when nobody else
        comes.
        """
        # RQ scores a failed job by its expiry, by the worker's clock; most jobs stay for a year,
        # seats for an hour
        now = time.time()
        earliest, latest = now - CLOCK_SKEW, now + FAILURE_SECONDS + CLOCK_SKEW
        registry = keys.rq_failed(self._queue)
        if not bounded_reads.is_readable_registry(self._client, registry):
            self._note_trouble(
                redis.exceptions.DataError(
                    f"{registry} is no registry of RQ, or too large: empty it"
                ),
                "told apart",
            )
            return
        for name in self._client.zrevrangebyscore(
            registry, latest, earliest, start=0, num=MOST_FAILED_READ
        ):
            seat = name.decode("ascii", "replace")
            if (
                not self._was_opened(seat)
                or seat in self._failed_seats
                or len(self._failed_seats) >= MOST_FAILED
            ):
                continue
            self._failed_seats.add(seat)
            worker = self._read_incompatible(seat)
            if worker.reason:
                self._note_failed(
                    f"worker {worker.name} on {worker.host} took a seat but cannot import "
                    "es-queue: "
                    "install it there, stop that worker, or use --queue"
                )
            else:
                self._crashed_seats += worker.crashed
                self._note_failed(
                    f"worker {worker.name} on {worker.host} lost its seat: its work horse "
                    "was killed or crashed"
                )
        if len(self._failed_seats) >= MOST_FAILED_SEATS and not self._has_results:
            if 2 * self._crashed_seats > len(self._failed_seats):
                raise EnvironmentFailure(
                    f"{self._crashed_seats} seats ended with their process and no result came: "
                    "the environment may crash or block every process "
                    "that makes or plays it, or need more memory than the hosts have; the "
                    "workers' terminals say how they ended"
                )
            raise RedisError(
                f"{len(self._failed_seats)} seats were taken by workers that cannot serve them "
                "and no result came: "
                f"install es-queue where the workers of queue {self._queue!r} run, or use "
                "--queue with a queue of your own"
            )

    def _was_opened(self, seat: str) -> bool:
        """Whether the seat was opened in this session, as far as can be told: workers write the
        registries, so they can name any number.
        """
        if seat in self._opened:
            return True
        prefix, _, number = seat.rpartition("-")
        newest = max(
            (int(name.rpartition("-")[2]) for name in islice(reversed(self._opened), MOST_OPEN)),
            default=0,
        )
        return (
            prefix == keys.seat_id(self._run, self._nonce, 0).rpartition("-")[0]
            and number.isdecimal()
            and newest - OPENED_UNSEEN <= int(number) <= newest
        )

    def _read_incompatible(self, seat: str) -> IncompatibleWorker:
        results = keys.rq_results(seat)
        newest = (
            self._client.xrevrange(results, count=1)
            if bounded_reads.has_type(self._client, results, b"stream", MAX_RESULTS)
            else []
        )
        result = newest[0][1] if newest else {}
        # Where its horse was killed, RQ itself has overwritten the name in the job.
        worker = (
            bounded_reads.read_field(self._client, keys.rq_job(seat), "worker_name", LONGEST_NAME)
            or result.get(b"worker_name")
            or b"unknown"
        )
        host = (
            bounded_reads.read_field(
                self._client,
                keys.rq_worker(worker[:LONGEST_NAME].decode("ascii", "replace")),
                "hostname",
                LONGEST_NAME,
            )
            or b"an unknown host"
        )
        text = decode_traceback(result.get(b"exc_string", b""))
        return IncompatibleWorker(
            sanitize_bytes(worker), sanitize_bytes(host), import_failure(text), CRASHED in text
        )


def sanitize_bytes(text: bytes) -> str:
    """Other people's bytes, fit for a terminal."""
    return "".join(
        letter for letter in text[:80].decode("utf-8", "replace") if letter.isprintable()
    )


def decode_traceback(packed: bytes) -> str:
    """RQ's stored traceback, a bounded part of it; empty for what is none."""
    try:
        return (
            zlib.decompressobj()
            .decompress(base64.b64decode(packed[:MAX_TRACE]), MAX_TRACE)
            .decode("utf-8", "replace")
        )
    except (zlib.error, binascii.Error):
        return ""


def import_failure(text: str) -> str:
    """The sentence of an import error in a traceback, empty for any other failure."""
    messages = re.findall(
        r"(?:ModuleNotFoundError|ImportError|ValueError: Invalid attribute name|AttributeError).*",
        text,
    )
    return sanitize_bytes(messages[-1].encode()[:200]) if messages else ""
