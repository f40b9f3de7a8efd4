"""The keeper: seats stay open for any worker that arrives, other runs get their share, and who cannot serve is named."""

from __future__ import annotations

import base64
import binascii
import re
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis

from es_queue.errors import EnvironmentFailure, RedisError
from es_queue.protocol import bounded, keys
from es_queue.protocol.channel import MasterChannel
from es_queue.protocol.seats import FAILURE_SECONDS, close_seats, is_of, open_ids, open_seats
from master.limited_notes import LimitedNotes
from master.seat_cleaning import SeatCleaner

MOST_OPEN = 16
PAIRS_AFTER = 3
HOPELESS_AFTER = 20
SETTLE_SECONDS = 3.0
LOOK_AT_FAILED = 100
#: Seats that this master has opened or seen in the queue: no other seat's failure counts.
MOST_OPENED = 20_000
#: Seats whose failure is remembered: a worker may write any number of names into RQ's registry.
MOST_FAILED = 1000
CLOCK_SKEW = 24 * 3600.0
MAX_TRACE = 2**16
MAX_RESULTS = 2**20  # RQ keeps the last ten of a job
LONGEST_NAME = 2**10
#: What RQ says of a seat whose process ended.
CRASHED = "Work-horse terminated unexpectedly"


@dataclass
class Foreign:
    """A worker that took a seat and could not run it."""

    name: str
    host: str
    reason: str
    crashed: bool


class Keeper:
    """Keeps seats of one run open on one queue; ``tick`` is called about once a second. ``missed`` hears of commands that failed."""

    def __init__(self, client: redis.Redis, queue: str, run: str, nonce: str, timeout: int, note: Callable[[str], None]) -> None:
        self._client: Any = client
        self._queue, self._run, self._nonce, self._timeout, self._note = queue, run, nonce, timeout, note
        self._note_failed = LimitedNotes(note, 2 * HOPELESS_AFTER)
        self._opened: dict[str, None] = {}
        self._failed: set[str] = set()
        self._crashed = 0
        self._served = False
        self._known: set[str] = set()
        self._settled = 0.0
        self._trouble: set[str] = set()
        self._cleaner = SeatCleaner(client, queue, run)
        self.missed: Callable[[Exception], None] = lambda _: None

    def tick(self, channel: MasterChannel, workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool = False) -> list[str]:
        """Open what is missing; returns the workers that should give way to another run.

        ``served``: whether any answer has ever counted; ``paused``: a paused run keeps no worker from another. Raises RedisError when no worker that comes can serve.
        """
        self._served = self._served or served
        self._clear(self._cleaner.tick)
        try:
            self._name_foreign()
            if paused:
                close_seats(self._client, self._queue, self._run)
                return sorted(workers) if self._others_waiting(channel) else []
            poorer = self._poorer_runs(channel, len(workers))
            if poorer:
                close_seats(self._client, self._queue, self._run)
                return self._leavers(workers, poorer)
            arrived = len(set(workers) - self._known)
            self._known = set(workers)
            least = 2 if len(self._failed) >= PAIRS_AFTER else 1
            fresh = open_seats(self._client, self._queue, self._run, self._nonce, min(MOST_OPEN, max(least, arrived)), self._timeout)
            self._remember(fresh)
        except redis.exceptions.RedisError as error:
            self._note_trouble(error)
        return []

    def _remember(self, fresh: list[str]) -> None:
        """Seats that may be taken from now on: those opened here, and some of those that workers opened."""
        own = keys.seat_id(self._run, self._nonce, 0).removesuffix("0")
        waiting = [name for name in open_ids(self._client, self._queue) if name.startswith(own)]
        self._opened |= dict.fromkeys([*fresh, *waiting[:MOST_OPEN]])
        while len(self._opened) > MOST_OPENED:
            del self._opened[next(iter(self._opened))]

    def _note_trouble(self, error: Exception, what: str = "opened") -> None:
        """Once for each kind: what goes wrong here goes wrong each second."""
        self.missed(error)
        kind = f"{what} {type(error).__name__}"
        if kind not in self._trouble:
            self._trouble.add(kind)
            self._note(f"seats cannot be {what}: {clean(str(error)[:200].encode())}")

    def _clear(self, clear: Callable[[], int]) -> None:
        """Clear RQ's registries of abandoned seats, and say so."""
        try:
            count = clear()
        except redis.exceptions.RedisError as error:
            self._note_trouble(error, "cleared")
            return
        if count:
            self._note(f"RQ still held {count} seat{'s' if count > 1 else ''} of workers that are gone: cleared")

    def close(self) -> None:
        """Take back the open seats, where Redis lets us: the run is ending anyway."""
        with suppress(redis.exceptions.RedisError):
            close_seats(self._client, self._queue, self._run)

    def closed(self) -> None:
        """The run has ended: leave nothing of its seats in RQ's registries."""
        self._clear(self._cleaner.finish)

    # --- sharing workers between runs

    def _poorer_runs(self, channel: MasterChannel, mine: int) -> dict[str, int]:
        """Other runs with a waiting seat and at least two workers fewer than this one."""
        return {run: count for run, count in self._others_waiting(channel).items() if mine - count >= 2}

    def _others_waiting(self, channel: MasterChannel) -> dict[str, int]:
        """Other runs that train and have a waiting seat, with the number of their workers."""
        waiting = {keys.parse_seat_id(name)[0] for name in open_ids(self._client, self._queue) if not is_of(name, self._run)}
        counts = {run: channel.other_workers(run) for run in waiting}
        return {run: count for run, count in counts.items() if count is not None}

    def _leavers(self, workers: Mapping[str, Mapping[str, str]], poorer: dict[str, int]) -> list[str]:
        """Half the difference to the poorest run leaves, then the counts are given time to settle."""
        now = time.monotonic()
        if now < self._settled:
            return []
        self._settled = now + SETTLE_SECONDS
        share = (len(workers) - min(poorer.values())) // 2
        return sorted(workers)[:share]

    # --- workers that cannot serve

    def _name_foreign(self) -> None:
        """Say which workers took a seat and failed before a line of ours ran; stop when nobody else comes."""
        now = time.time()  # RQ scores a failed job by its expiry, by the worker's clock; most jobs stay for a year, seats for an hour
        earliest, latest = now - CLOCK_SKEW, now + FAILURE_SECONDS + CLOCK_SKEW
        registry = keys.rq_failed(self._queue)
        if not bounded.registry_fits(self._client, registry):
            self._note_trouble(redis.exceptions.DataError(f"{registry} is no registry of RQ, or too large: empty it"), "told apart")
            return
        for name in self._client.zrevrangebyscore(registry, latest, earliest, start=0, num=LOOK_AT_FAILED):
            seat = name.decode("ascii", "replace")
            if seat not in self._opened or seat in self._failed or len(self._failed) >= MOST_FAILED:
                continue
            self._failed.add(seat)
            foreign = self._foreign(seat)
            if foreign.reason:
                self._note_failed(
                    f"worker {foreign.name} on {foreign.host} took a seat but cannot import es-queue: "
                    "install it there, stop that worker, or use --queue"
                )
            else:
                self._crashed += foreign.crashed
                self._note_failed(f"worker {foreign.name} on {foreign.host} lost its seat: its work horse was killed or crashed")
        if len(self._failed) >= HOPELESS_AFTER and not self._served:
            if 2 * self._crashed > len(self._failed):
                raise EnvironmentFailure(
                    f"{self._crashed} seats ended with their process and no result came: the environment may crash or block every process "
                    "that makes or plays it, or need more memory than the hosts have; the workers' terminals say how they ended"
                )
            raise RedisError(
                f"{len(self._failed)} seats were taken by workers that cannot serve them and no result came: "
                f"install es-queue where the workers of queue {self._queue!r} run, or use --queue with a queue of your own"
            )

    def _foreign(self, seat: str) -> Foreign:
        results = keys.rq_results(seat)
        newest = self._client.xrevrange(results, count=1) if bounded.typed(self._client, results, b"stream", MAX_RESULTS) else []
        told = newest[0][1] if newest else {}
        # Where its horse was killed, RQ itself has overwritten the name in the job.
        worker = bounded.field(self._client, keys.rq_job(seat), "worker_name", LONGEST_NAME) or told.get(b"worker_name") or b"unknown"
        host = bounded.field(self._client, keys.rq_worker(worker[:LONGEST_NAME].decode("ascii", "replace")), "hostname", LONGEST_NAME) or b"an unknown host"
        text = trace_of(told.get(b"exc_string", b""))
        return Foreign(clean(worker), clean(host), import_failure(text), CRASHED in text)


def clean(text: bytes) -> str:
    """Other people's bytes, fit for a terminal."""
    return "".join(letter for letter in text[:80].decode("utf-8", "replace") if letter.isprintable())


def trace_of(packed: bytes) -> str:
    """RQ's stored traceback, a bounded part of it; empty for what is none."""
    try:
        return zlib.decompressobj().decompress(base64.b64decode(packed[:MAX_TRACE]), MAX_TRACE).decode("utf-8", "replace")
    except (zlib.error, binascii.Error):
        return ""


def import_failure(text: str) -> str:
    """The sentence of an import error in a traceback, empty for any other failure."""
    found = re.findall(r"(?:ModuleNotFoundError|ImportError|ValueError: Invalid attribute name|AttributeError).*", text)
    return clean(found[-1].encode()[:200]) if found else ""
