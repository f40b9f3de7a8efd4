"""Two places where a run can live, with what the contract's tests need to see and to break."""

from __future__ import annotations

import json
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import numpy as np
import redis

from es_queue.protocol import keys
from es_queue.protocol.connection import Retry
from es_queue.protocol.messages import TRAIN, Block
from es_queue.protocol.store import Look, MasterStore, WorkerStore
from tests.memory import MemoryMasterStore, MemoryServer, MemoryWorkerStore

RUN, RUNNING = "contract", "running"
TOKEN, SAME_NUMBER, HIGHER, LOWER = "5-0000000a", "5-0000000b", "6-0000000c", "4-0000000d"
ABOUT = {"host": "h", "pid": "1", "busy": "0.250"}
TTL = 30.0
PARAMETERS = b"12345678"
#: A result and a moment, as any sizes may be.
TYPES = (np.dtype([("value", "<i4")]), np.dtype([("of", "<i2")]))


def name_of(generation: int, token: str = TOKEN) -> str:
    return f"{generation}.{token}"


P0, P1, P2 = (name_of(generation) for generation in range(3))


def results(*values: int) -> bytes:
    return np.array(values, TYPES[0]["value"]).tobytes()


def moments(*values: int) -> bytes:
    return np.array(values, TYPES[1]["of"]).tobytes()


def worker_name(number: int) -> str:
    return f"host-1-{number:06x}"


def block(start: int, stop: int, publication: str = P0, kind: int = TRAIN) -> Block:
    return Block(publication, kind, start, stop)


def texts(*blocks: Block) -> list[str]:
    return [str(one) for one in blocks]


def read(master: MasterStore, *publications: str) -> dict[str, tuple[list[int], list[int]]]:
    """All that is new, as (results, moments) by publication."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for name, values, episodes in master.read(dict.fromkeys(publications or (P0,), TYPES)):
        mine = found.setdefault(name, ([], []))
        mine[0].extend(values["value"].tolist())
        mine[1].extend(episodes["of"].tolist())
    return found


def reasons(master: MasterStore) -> list[str]:
    """Of the workers' reports."""
    return [json.loads(text)["reason"] for text in master.errors()]


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Poll until the condition holds; fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


class Place(ABC):
    """A run's server seen from above: stores on it, its contents, and its misfortunes."""

    @abstractmethod
    def master(self) -> MasterStore: ...

    @abstractmethod
    def worker(self, number: int = 1) -> WorkerStore: ...

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
    def refused(self) -> dict[str, int]: ...

    @abstractmethod
    def history(self) -> list[dict[str, str]]: ...

    @abstractmethod
    def parameters(self) -> set[str]:
        """Publications whose parameters are there."""

    @abstractmethod
    def open_ones(self) -> set[str]:
        """Publications to which results can be given."""

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
        self, publication: str = P0, *blocks: Block, token: str = TOKEN, **more: Any
    ) -> MasterStore:
        """Open a publication, and issue blocks of it."""
        master = self.master()
        self.open(master, publication, token, **more)
        master.issue(token, publication, blocks)
        return master

    def open(
        self, master: MasterStore, publication: str = P0, token: str = TOKEN, **more: Any
    ) -> str | None:
        fields = {
            "parameters": PARAMETERS,
            "task": b"task",
            "config": "{}",
            "progress": {"state": RUNNING},
            **more,
        }
        return master.open(token, publication, **fields)

    def look(self, **more: Any) -> Look:
        return look(self.master(), **more)

    def arrived(self, number: int = 1) -> WorkerStore:
        worker = self.worker(number)
        worker.arrive(ABOUT, TTL)
        return worker

    def given(self, publication: str = P0) -> list[int]:
        """All results of a publication."""
        return read(self.master(), publication).get(publication, ([], []))[0]


def look(master: MasterStore, token: str = TOKEN, **more: Any) -> Look:
    return master.look(token, "me", 9.0, {}, {}, **more)


class MemoryPlace(Place):
    def __init__(self) -> None:
        self.server = MemoryServer()

    def master(self) -> MasterStore:
        return cast(MasterStore, MemoryMasterStore(self.server, RUN))

    def worker(self, number: int = 1) -> WorkerStore:
        return cast(WorkerStore, MemoryWorkerStore(self.server, worker_name(number), RUN))

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

    def refused(self) -> dict[str, int]:
        return dict(self.server.refused)

    def history(self) -> list[dict[str, str]]:
        return list(self.server.history)

    def parameters(self) -> set[str]:
        return set(self.server.parameters)

    def open_ones(self) -> set[str]:
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

    def master(self) -> MasterStore:
        return MasterStore(self.client, RUN, Retry(seconds=5))

    def worker(self, number: int = 1, rq_name: str = "") -> WorkerStore:
        return WorkerStore(self.client, RUN, worker_name(number), rq_name, Retry(seconds=5))

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

    def refused(self) -> dict[str, int]:
        return {name: int(count) for name, count in self._hash(self.keys.refused).items()}

    def history(self) -> list[dict[str, str]]:
        return [
            {name.decode(): value.decode() for name, value in entry.items()}
            for _, entry in self.client.xrange(self.keys.history)
        ]

    def _publications(self, pattern: str) -> set[str]:
        return {
            name.decode().removesuffix(":0").rpartition(":")[2]
            for name in self.client.scan_iter(f"{self.keys.prefix}{pattern}")
        }

    def parameters(self) -> set[str]:
        return self._publications("parameters:*")

    def open_ones(self) -> set[str]:
        return self._publications("results:*:0")

    def lose(self, what: str, publication: str) -> None:
        names = {
            "task": self.keys.task,
            "parameters": self.keys.parameters(publication),
            "results": self.keys.results(publication, 0),
            "moments": self.keys.moments(publication, 0),
        }
        self.client.delete(names[what])

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
