"""A worker's commands as bytes, and replies from bytes: RESP by hand, because a client library
costs ten times as much. A test compares the commands with those of the worker's own store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from es_queue.protocol import keys
from es_queue.protocol.messages import MAX_TASK, Block
from es_queue.protocol.store import MOST_HELD, PIECE, script_text

ANSWER = script_text("answer")
ANSWER_SHA = hashlib.sha1(ANSWER.encode(), usedforsecurity=False).hexdigest()

Reply = Any


class Incomplete(Exception):  # noqa: N818 - it is no error: the rest of a reply is still on its way
    """A reply is not whole yet."""


def packed(*parts: str | bytes | float) -> bytes:
    """One command."""
    raw = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return b"*%d\r\n" % len(raw) + b"".join([b"$%d\r\n%s\r\n" % (len(part), part) for part in raw])


def parsed(data: bytes | bytearray, at: int) -> tuple[Reply, int]:
    """(reply, where it ends) of RESP2; an error is a RuntimeError in its place. Raises
    Incomplete.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, line, end = data[at], data[at + 1 : end], end + 2
    if kind == 36:  # $
        size = int(line)
        if size < 0:
            return None, end
        if len(data) < end + size + 2:
            raise Incomplete
        return bytes(data[end : end + size]), end + size + 2
    if kind == 42:  # *
        if int(line) < 0:
            return None, end
        items = []
        for _ in range(int(line)):
            item, end = parsed(data, end)
            items.append(item)
        return items, end
    if kind == 58:  # :
        return int(line), end
    return (RuntimeError(line.decode("utf-8", "replace")) if kind == 45 else bytes(line)), end


class Commands:
    """What one worker sends; each with the number of replies that come to it."""

    def __init__(
        self, run: str, worker: str, rq_name: str, about: Mapping[str, str], ttl: float
    ) -> None:
        own = keys.RunKeys(run)
        self._keys, self._rq, milliseconds = own, keys.rq_worker(rq_name), int(ttl * 1000)
        life, self._claims_key = own.worker(worker), own.claims(worker)
        flat = [part for pair in about.items() for part in pair]
        multi, execute = packed("MULTI"), packed("EXEC")
        hello = packed("HSET", life, *flat) + packed("PEXPIRE", life, milliseconds)
        enrol = packed("SADD", own.workers, worker) + packed(
            "EXPIRE", own.workers, keys.RUN_SECONDS
        )
        self.alive = (packed("PEXPIRE", life, milliseconds) + packed("EXISTS", own.master), 2)
        self.beat = (multi + hello + enrol + execute, 6)
        self.held_blocks = (packed("LRANGE", self._claims_key, 0, MOST_HELD - 1), 1)
        self.task = (packed("GETRANGE", own.task, 0, MAX_TASK), 1)

    def claim(self, wait: float) -> tuple[bytes, int]:
        return packed("BLMOVE", self._keys.todo, self._claims_key, "LEFT", "RIGHT", wait), 1

    def poll_flags(self, publication: str) -> tuple[bytes, int]:
        own = self._keys
        look = packed("HMGET", own.progress, "state", "give_way", "publication")
        look += packed("EXISTS", own.master) + packed("EXISTS", own.parameters(publication))
        orders = packed("HEXISTS", self._rq, "shutdown_requested_date")
        return look + orders + packed("EXISTS", keys.RQ_SUSPENDED), 5

    def parameters(self, publication: str, start: int, size: int) -> tuple[bytes, int]:
        stop = min(size, start + PIECE)
        return packed("GETRANGE", self._keys.parameters(publication), start, stop - 1), 1

    def answer(self, block: Block, results: bytes, moments: bytes) -> tuple[bytes, int]:
        values = (str(block), results, moments)
        return packed("EVALSHA", ANSWER_SHA, 1, self._claims_key, *values), 1

    def drop(self, block: Block) -> tuple[bytes, int]:
        return packed("LREM", self._claims_key, 0, str(block)), 1


def first_error(replies: Sequence[Reply]) -> str:
    """The first error of a reply, or an empty text."""
    for one in replies:
        if isinstance(one, RuntimeError):
            return str(one)
        if isinstance(one, list) and (found := first_error(one)):
            return found
    return ""
