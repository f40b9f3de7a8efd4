"""Requests to a run's master from another terminal: readable JSON in Redis, and their replies.

``{"id": "0a1b2c3d", "verb": "set", "by": "ada@host", "time": 1795194000.0, "settings": {"sigma":
0.02}, "generation": null}``
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import redis

from es_queue.errors import DecodeError, RedisError
from es_queue.files import parse_json
from es_queue.protocol import keys
from es_queue.protocol.connection import Retry, Store, decode_text
from es_queue.protocol.seats import close_seats

STOP, PAUSE, CONTINUE, SET = VERBS = ("stop", "pause", "continue", "set")
MAX_REQUEST = 8192
MAX_SETTINGS = 20
MAX_NAME = 100
LATEST = 10**9
MAX_WAITING = 100
MAX_QUEUES = 1000
MAX_REPLIES = 2**16
MAX_TEXT = 200
ID = re.compile(r"[0-9a-f]{8}")
#: Of a purged run: a sleeping master must not bring the run back when it wakes.
EPOCH_SECONDS = 600

Scalar = str | int | float | bool


@dataclass(frozen=True)
class ControlRequest:
    """by: the requesting user, for display; time: their wall clock, seconds; generation: the first
    with the changed setting, None for the next.
    """

    id: str
    verb: str
    by: str
    time: float
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    generation: int | None = None

    def encode(self) -> bytes:
        return json.dumps({**vars(self), "settings": dict(self.settings)}).encode()

    @classmethod
    def decode(cls, data: bytes) -> ControlRequest:
        """Read what ``encode`` wrote. Raises DecodeError for anything else."""
        values = parse_json(data, MAX_REQUEST)
        if not isinstance(values, dict) or set(values) != set(cls.__dataclass_fields__):
            raise DecodeError("a request has the wrong fields")
        request = cls(**values)
        if not request._is_valid():
            raise DecodeError("a field of a request has an impossible value")
        return request

    def _is_valid(self) -> bool:
        """Whether all fields have possible values; the settings' own are checked later."""
        generation, settings = self.generation, self.settings
        return (
            isinstance(self.id, str)
            and ID.fullmatch(self.id) is not None
            and self.verb in VERBS
            and isinstance(self.by, str)
            and len(self.by) <= MAX_NAME
            and self.by.isprintable()
            and type(self.time) in (int, float)
            and math.isfinite(self.time)
            and (generation is None or (type(generation) is int and 0 <= generation <= LATEST))
            and isinstance(settings, dict)
            and len(settings) <= MAX_SETTINGS
            and all(isinstance(value, Scalar) for value in settings.values())
            # Surrogates can be neither printed nor stored.
            and not re.search("[\ud800-\udfff]", "".join(map(str, [*settings, *settings.values()])))
        )


class LeaseStatus(NamedTuple):
    """A run in Redis. state: None for an unknown run; holder: of the lease, or None."""

    state: str | None
    holder: str | None


class ControlClient(Store):
    """Controls a run from another terminal. Every method raises RedisError."""

    def __init__(self, client: redis.Redis, run: str, seconds: float = 10.0) -> None:
        """seconds: how long to retry while the server does not respond"""
        super().__init__(client, run, Retry(seconds))

    def lease_status(self) -> LeaseStatus:
        holder = self._command("getrange", self.keys.master, 0, MAX_TEXT - 1)
        return LeaseStatus(self.progress_field("state"), decode_text(holder) or None)

    def has_workers(self) -> bool:
        return next(self._names(f"{self.keys.worker('')}*"), None) is not None

    def send(self, request: ControlRequest) -> None:
        """Send a request, which the master reads within a second. Raises RedisError if a hundred
        already wait.
        """
        commands = self.keys.commands
        if self._command("llen", commands) >= MAX_WAITING:
            raise RedisError(
                f"{MAX_WAITING} requests already wait for the master of {self.run}: it does not "
                "read them"
            )

        def push() -> None:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.lrem(commands, 0, request.encode()).rpush(commands, request.encode())
            pipeline.expire(commands, keys.RUN_SECONDS).execute()

        self.retry(push)  # sent again, the same bytes are there once

    def withdraw(self, request: ControlRequest) -> None:
        self._command("lrem", self.keys.commands, 0, request.encode())

    def poll_reply(self, request: ControlRequest) -> str | None:
        """The master's reply to a request, or None."""
        raw = self.progress_field("replies", MAX_REPLIES)
        try:
            replies = parse_json((raw or "").encode(), MAX_REPLIES)
        except DecodeError:
            return None
        text = replies.get(request.id) if isinstance(replies, dict) else None
        return text if isinstance(text, str) else None

    def delete_keys(self) -> int:
        """Remove the run's seats and all its keys but the epoch, which soon expires; returns the
        number of keys.
        """
        self.retry(self._close_seats)
        deleted = 0
        for batch in self._batches():
            deleted += self._command("unlink", *batch)
        self._command("zrem", keys.RUNS, self.run)
        self._command("expire", self.keys.epoch, EPOCH_SECONDS)
        return deleted

    def key_count(self) -> int:
        return sum(len(batch) for batch in self._batches())

    def _batches(self) -> Iterator[list[bytes]]:
        """Names of the run's keys except the epoch, in batches."""
        for names in self._names(f"{self.keys.prefix}*"):
            if kept := [name for name in names if name != self.keys.epoch.encode()]:
                yield kept

    def _names(self, pattern: str) -> Iterator[list[bytes]]:
        cursor: int | None = None
        while cursor != 0:
            cursor, names = self._command("scan", cursor or 0, match=pattern, count=500)
            if names:
                yield names

    def _close_seats(self) -> None:
        queues = [
            name.decode("utf-8", "replace")
            for name in self._client.sscan_iter(keys.RQ_QUEUES, count=500)
        ]
        for queue in queues[:MAX_QUEUES]:
            close_seats(self._client, queue.removeprefix(keys.rq_queue("")), self.run)
