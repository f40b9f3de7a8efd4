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

from es_queue.errors import RedisError
from es_queue.protocol import keys
from es_queue.protocol.channel import MasterChannel
from es_queue.protocol.seats import FAILURE_SECONDS, close_seats, is_of, open_ids, open_seats

MOST_OPEN = 16
PAIRS_AFTER = 3
HOPELESS_AFTER = 20
SETTLE_SECONDS = 3.0
LOOK_AT_FAILED = 100
CLOCK_SKEW = 60.0
MAX_TRACE = 2**16


@dataclass
class Foreign:
    """A worker that took a seat and could not run it."""

    name: str
    host: str
    reason: str


class Keeper:
    """Keeps seats of one run open on one queue; ``tick`` is called about once a second."""

    def __init__(self, client: redis.Redis, queue: str, run: str, nonce: str, timeout: int, note: Callable[[str], None]) -> None:
        self._client: Any = client
        self._queue, self._run, self._nonce, self._timeout, self._note = queue, run, nonce, timeout, note
        self._failed: set[str] = set()
        self._served = False
        self._known: set[str] = set()
        self._settled = 0.0
        self._trouble: set[str] = set()

    def tick(self, channel: MasterChannel, workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool = False) -> list[str]:
        """Open what is missing; returns the workers that should give way to another run.

        ``served``: whether any answer has ever counted; ``paused``: a paused run keeps no worker from another. Raises RedisError when no worker that comes can serve.
        """
        self._served = self._served or served
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
            open_seats(self._client, self._queue, self._run, self._nonce, min(MOST_OPEN, max(least, arrived)), self._timeout)
        except redis.exceptions.RedisError as error:
            self._note_trouble(error)
        return []

    def _note_trouble(self, error: Exception) -> None:
        """Once for each kind: what goes wrong here goes wrong each second."""
        kind = type(error).__name__
        if kind not in self._trouble:
            self._trouble.add(kind)
            self._note(f"seats cannot be opened: {clean(str(error)[:200].encode())}")

    def close(self) -> None:
        """Take back the open seats, where Redis lets us: the run is ending anyway."""
        with suppress(redis.exceptions.RedisError):
            close_seats(self._client, self._queue, self._run)

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
        now = time.time()  # RQ scores a failed job by its expiry; most jobs stay for a year, seats for an hour
        latest = now + FAILURE_SECONDS + CLOCK_SKEW
        for name in self._client.zrevrangebyscore(keys.rq_failed(self._queue), latest, now, start=0, num=LOOK_AT_FAILED):
            seat = name.decode("ascii", "replace")
            match = keys.SEAT_ID.fullmatch(seat)
            if match is None or (match["run"], match["nonce"]) != (self._run, self._nonce) or seat in self._failed:
                continue
            self._failed.add(seat)
            foreign = self._foreign(seat)
            if foreign.reason:
                self._note(
                    f"worker {foreign.name} on {foreign.host} took a seat but cannot import es-queue: "
                    "install it there, stop that worker, or use --queue"
                )
            else:
                self._note(f"worker {foreign.name} on {foreign.host} lost its seat: its work horse was killed or crashed")
        if len(self._failed) >= HOPELESS_AFTER and not self._served:
            raise RedisError(
                f"{len(self._failed)} seats were taken by workers that cannot serve them and no result came: "
                f"install es-queue where the workers of queue {self._queue!r} run, or use --queue with a queue of your own"
            )

    def _foreign(self, seat: str) -> Foreign:
        worker = self._client.hget(keys.rq_job(seat), "worker_name") or b"unknown"
        host = self._client.hget(keys.rq_worker(worker.decode("ascii", "replace")), "hostname") or b"an unknown host"
        newest = self._client.xrevrange(keys.rq_results(seat), count=1)
        packed = newest[0][1].get(b"exc_string", b"") if newest else b""
        return Foreign(clean(worker), clean(host), import_failure(packed))


def clean(text: bytes) -> str:
    """Other people's bytes, fit for a terminal."""
    return "".join(letter for letter in text[:80].decode("utf-8", "replace") if letter.isprintable())


def import_failure(packed: bytes) -> str:
    """The sentence of an import error in RQ's stored traceback, empty for any other failure; reads a bounded part."""
    try:
        text = zlib.decompressobj().decompress(base64.b64decode(packed[:MAX_TRACE]), MAX_TRACE).decode("utf-8", "replace")
    except (zlib.error, binascii.Error):
        return ""
    found = re.findall(r"(?:ModuleNotFoundError|ImportError|ValueError: Invalid attribute name|AttributeError).*", text)
    return clean(found[-1].encode()[:200]) if found else ""
