"""Two places where a run can live, with what the contract's tests need to see and to break."""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from es_queue.protocol import keys
from es_queue.protocol.channel import (
    RUNNING,
    MasterChannel,
    PublishRequest,
    ReconcileRequest,
    WorkerChannel,
)
from es_queue.protocol.messages import Block
from es_queue.protocol.redis_channel import RedisMasterChannel, RedisWorkerChannel
from es_queue.protocol.retry import Retry
from tests.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel

RUN = "contract"
TOKEN, SAME_NUMBER, HIGHER, LOWER = "5-0000000a", "5-0000000b", "6-0000000c", "4-0000000d"
ABOUT = {"host": "h", "pid": "1", "busy": "0.250"}
TTL = 30.0


def name_of(generation: int, token: str = TOKEN) -> str:
    return f"{generation}.{token}"


P0, P1, P2 = (name_of(generation) for generation in range(3))


def worker_name(number: int) -> str:
    return f"host-1-{number:06x}"


def block(start: int, stop: int, publication: str = P0, kind: str = "train") -> Block:
    return Block(publication, kind, start, stop)


def texts(*blocks: Block) -> list[str]:
    return [str(one) for one in blocks]


def owed(*ranges: tuple[str, int, int], publication: str = P0, **more: Any) -> ReconcileRequest:
    return ReconcileRequest(publication, ranges, **{"block_size": 4, **more})


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Poll until the condition holds; fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


class Place(ABC):
    """A run's server seen from above: channels to it, its contents, and its misfortunes."""

    @abstractmethod
    def master(self) -> MasterChannel: ...

    @abstractmethod
    def worker(self, number: int = 1) -> WorkerChannel: ...

    @abstractmethod
    def todo(self) -> list[str]: ...

    @abstractmethod
    def add_todo(self, text: str) -> None:
        """Put a text at the tail of todo, past all checks."""

    @abstractmethod
    def claims(self, number: int = 1) -> list[str]: ...

    @abstractmethod
    def add_claim(self, text: str, number: int = 1) -> None:
        """Put a text at the tail of a worker's claims, past all checks."""

    @abstractmethod
    def enrol(self, text: str) -> None:
        """Put a text among the workers, past all checks, with a beat."""

    @abstractmethod
    def has_joined(self) -> set[str]:
        """All that stands among the workers."""

    @abstractmethod
    def progress(self) -> dict[str, str]: ...

    @abstractmethod
    def attempts(self) -> dict[str, int]: ...

    @abstractmethod
    def refused(self) -> dict[str, int]: ...

    @abstractmethod
    def history(self) -> list[dict[str, str]]: ...

    @abstractmethod
    def parameters(self) -> set[str]:
        """Publications whose parameters are there."""

    @abstractmethod
    def streams(self) -> set[str]:
        """Publications whose results stream is there."""

    @abstractmethod
    def lose(self, what: str, publication: str) -> None:
        """Lose the "task", the "parameters" or the "results" of a publication."""

    @abstractmethod
    def lapse(self, number: int = 1) -> None:
        """The worker's beat lapses."""

    @abstractmethod
    def flush(self) -> None: ...

    # --- what tests do all the time

    def publish(
        self,
        publication: str = P0,
        *blocks: Block,
        token: str = TOKEN,
        parameters: bytes = b"12345678",
        **more: Any,
    ) -> MasterChannel:
        master = self.master()
        master.stage(publication, parameters)
        fields = {
            "task": b"task",
            "blocks": blocks,
            "config": "{}",
            "progress": {"state": RUNNING},
            **more,
        }
        master.publish(token, PublishRequest(publication, **fields))
        return master

    def arrived(self, number: int = 1) -> WorkerChannel:
        worker = self.worker(number)
        worker.arrive(ABOUT, TTL)
        return worker

    def answers(self, publication: str = P0) -> list[bytes]:
        """The payloads in the stream, without its header."""
        return [
            entry.payload
            for entry in self.master().collect(publication, "0", 1000, 0.001)
            if entry.payload
        ]


class MemoryPlace(Place):
    def __init__(self) -> None:
        self.server = MemoryServer()

    def master(self) -> MasterChannel:
        return MemoryMasterChannel(self.server, RUN)

    def worker(self, number: int = 1) -> WorkerChannel:
        return MemoryWorkerChannel(self.server, worker_name(number), RUN)

    def todo(self) -> list[str]:
        return list(self.server.todo)

    def add_todo(self, text: str) -> None:
        self.server.todo.append(text)

    def claims(self, number: int = 1) -> list[str]:
        return list(self.server.claims.get(worker_name(number), []))

    def add_claim(self, text: str, number: int = 1) -> None:
        self.server.claims.setdefault(worker_name(number), []).append(text)

    def enrol(self, text: str) -> None:
        self.server.workers.add(text)
        self.server.lives[text] = (dict(ABOUT), time.monotonic() + TTL)

    def has_joined(self) -> set[str]:
        return set(self.server.workers)

    def progress(self) -> dict[str, str]:
        return dict(self.server.progress)

    def attempts(self) -> dict[str, int]:
        return dict(self.server.attempts)

    def refused(self) -> dict[str, int]:
        return dict(self.server.refused)

    def history(self) -> list[dict[str, str]]:
        return list(self.server.history)

    def parameters(self) -> set[str]:
        return set(self.server.parameters)

    def streams(self) -> set[str]:
        return set(self.server.results)

    def lose(self, what: str, publication: str) -> None:
        if what == "task":
            self.server.task = None
        else:
            getattr(self.server, what).pop(publication)

    def lapse(self, number: int = 1) -> None:
        about, _ = self.server.lives[worker_name(number)]
        self.server.lives[worker_name(number)] = (about, time.monotonic() - 1)

    def flush(self) -> None:
        self.server.flush()


class RedisPlace(Place):
    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client
        self.keys = keys.RunKeys(RUN)

    def master(self) -> RedisMasterChannel:
        return RedisMasterChannel(self.client, RUN, Retry(seconds=5))

    def worker(self, number: int = 1, rq_name: str = "") -> RedisWorkerChannel:
        return RedisWorkerChannel(self.client, RUN, worker_name(number), rq_name, Retry(seconds=5))

    def _list(self, key: str) -> list[str]:
        return [entry.decode() for entry in self.client.lrange(key, 0, -1)]

    def _hash(self, key: str) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.client.hgetall(key).items()}

    def todo(self) -> list[str]:
        return self._list(self.keys.todo)

    def add_todo(self, text: str) -> None:
        self.client.rpush(self.keys.todo, text)

    def claims(self, number: int = 1) -> list[str]:
        return self._list(self.keys.claims(worker_name(number)))

    def add_claim(self, text: str, number: int = 1) -> None:
        self.client.rpush(self.keys.claims(worker_name(number)), text)

    def enrol(self, text: str) -> None:
        self.client.sadd(self.keys.workers, text)
        self.client.hset(self.keys.worker(text), mapping=ABOUT)

    def has_joined(self) -> set[str]:
        return {name.decode() for name in self.client.smembers(self.keys.workers)}

    def progress(self) -> dict[str, str]:
        return self._hash(self.keys.progress)

    def attempts(self) -> dict[str, int]:
        return {name: int(count) for name, count in self._hash(self.keys.attempts).items()}

    def refused(self) -> dict[str, int]:
        return {name: int(count) for name, count in self._hash(self.keys.refused).items()}

    def history(self) -> list[dict[str, str]]:
        return [
            {name.decode(): value.decode() for name, value in entry.items()}
            for _, entry in self.client.xrange(self.keys.history)
        ]

    def _publications(self, kind: str) -> set[str]:
        return {
            name.decode().rpartition(":")[2]
            for name in self.client.scan_iter(f"{self.keys.prefix}{kind}:*")
        }

    def parameters(self) -> set[str]:
        return self._publications("parameters")

    def streams(self) -> set[str]:
        return self._publications("results")

    def lose(self, what: str, publication: str) -> None:
        self.client.delete(
            self.keys.task if what == "task" else getattr(self.keys, what)(publication)
        )

    def lapse(self, number: int = 1) -> None:
        self.client.delete(self.keys.worker(worker_name(number)))

    def flush(self) -> None:
        self.client.flushall()


@contextmanager
def closing(resource: Any) -> Iterator[Any]:
    """Close a socket, a thread's listener or a client in the end, whatever state it is in."""
    try:
        yield resource
    finally:
        with suppress(OSError):
            resource.close()


def stop_listening(listener: socket.socket) -> None:
    """Close a listener; a thread that waits in its ``accept`` ends."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
