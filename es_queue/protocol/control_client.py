"""ControlClient: sends a request to a run's master from another terminal, and reads the reply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from es_queue.errors import DecodeError, RedisError
from es_queue.files import parse_json
from es_queue.protocol import keys
from es_queue.protocol.control_messages import ControlRequest
from es_queue.protocol.retry import Retry
from es_queue.protocol.seats import close_seats
from es_queue.security import bounded_reads

MAX_WAITING = 100
MAX_QUEUES = 1000
MAX_REPLIES = 2**16
MAX_TEXT = 200
SCANNED_AT_ONCE = 500
#: What is left of a purged run for a while: a master that sleeps must not bring the run back when
#: it wakes.
EPOCH_SECONDS = 600


@dataclass(frozen=True)
class LeaseStatus:
    """A run in Redis. state: None for an unknown run; holder: of the lease, or None."""

    state: str | None
    holder: str | None


class ControlClient:
    """Controls a run from another terminal. Every method raises RedisError."""

    def __init__(self, client: redis.Redis, run: str, seconds: float = 10.0) -> None:
        """seconds: how long to retry while the server does not respond"""
        self._client: Any = client
        self.run, self.keys = run, keys.RunKeys(run)
        self._retry = Retry(seconds)

    def lease_status(self) -> LeaseStatus:
        def read() -> list[bytes | None]:
            state = bounded_reads.read_field(self._client, self.keys.progress, "state", MAX_TEXT)
            return [state, self._client.getrange(self.keys.master, 0, MAX_TEXT - 1)]

        values = self._retry(read)  # twice: yes
        return LeaseStatus(
            *(value.decode("utf-8", "replace") if value else None for value in values)
        )

    def has_workers(self) -> bool:
        return next(self._names(f"{self.keys.worker('')}*"), None) is not None

    def config(self) -> bytes | None:
        """The run's settings as JSON, unchecked."""
        raw: bytes | None = self._retry(
            lambda: self._client.getrange(self.keys.config, 0, 2**20)
        )  # twice: yes
        return raw or None

    def send(self, request: ControlRequest) -> None:
        """Send a request; the master reads it within a second. Raises RedisError if a hundred
        already wait.
        """
        if self._retry(lambda: self._client.llen(self.keys.commands)) >= MAX_WAITING:  # twice: yes
            raise RedisError(
                f"{MAX_WAITING} requests already wait for the master of {self.run}: it does not "
                f"read them"
            )

        def push() -> None:
            pipeline = self._client.pipeline(transaction=True).lrem(
                self.keys.commands, 0, request.encode()
            )
            pipeline.rpush(self.keys.commands, request.encode()).expire(
                self.keys.commands, keys.RUN_SECONDS
            ).execute()

        self._retry(push)  # twice: yes, the same bytes are there once

    def withdraw(self, request: ControlRequest) -> None:
        self._retry(
            lambda: self._client.lrem(self.keys.commands, 0, request.encode())
        )  # twice: yes

    def poll_reply(self, request: ControlRequest) -> str | None:
        """The master's reply to a request, or None."""
        raw = self._retry(
            lambda: bounded_reads.read_field(
                self._client, self.keys.progress, "replies", MAX_REPLIES
            )
        )  # twice: yes
        try:
            replies = parse_json(raw or b"", MAX_REPLIES)
        except DecodeError:
            return None
        text = replies.get(request.id) if isinstance(replies, dict) else None
        return text if isinstance(text, str) else None

    def delete_keys(self) -> int:
        """Remove the run's seats and all its keys except the epoch, which soon expires. Returns the
        number of keys.
        """
        self._retry(self._close_seats)
        deleted = 0
        for batch in self._batches():
            deleted += self._retry(partial(self._client.unlink, *batch))  # twice: yes
        self._retry(
            lambda: (
                self._client.pipeline(transaction=True)
                .zrem(keys.RUNS, self.run)
                .expire(self.keys.epoch, EPOCH_SECONDS)
                .execute()
            )
        )
        return deleted

    def key_count(self) -> int:
        return sum(len(batch) for batch in self._batches())

    def _batches(self) -> Iterator[list[bytes]]:
        """Names of the run's keys except the epoch, in batches."""
        for names in self._names(f"{self.keys.prefix}*"):
            if kept := [name for name in names if name != self.keys.epoch.encode()]:
                yield kept

    def _names(self, pattern: str) -> Iterator[list[bytes]]:
        """Matching names in batches."""
        cursor = 0
        while True:
            cursor, names = self._retry(
                partial(self._client.scan, cursor, match=pattern, count=SCANNED_AT_ONCE)
            )  # twice: yes
            if names:
                yield names
            if cursor == 0:
                return

    def _close_seats(self) -> None:
        queues = [
            name.decode("utf-8", "replace")
            for name in self._client.sscan_iter(keys.RQ_QUEUES, count=500)
        ]
        for queue in queues[:MAX_QUEUES]:
            close_seats(self._client, queue.removeprefix(keys.rq_queue("")), self.run)
