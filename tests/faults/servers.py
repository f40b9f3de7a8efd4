"""The operating system's ``redis-server`` with settings, in an arena: killed, restarted, frozen,
emptied, filled up.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from es_queue.errors import DecodeError
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from es_queue.protocol.messages import Task
from tests.faults.scenario import Arena
from tests.integration.processes import Started, wait_for

#: A server that keeps what it is told within a second, as most people run it.
KEPT = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
FORGETFUL = ("--appendonly", "no", "--save", "")
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """One redis-server on 127.0.0.1 with its data in a folder of the arena."""

    def __init__(self, arena: Arena, *settings: object, name: str = "redis") -> None:
        self._arena, self._settings = arena, settings
        self.folder = arena.folder / name
        self.folder.mkdir()
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process: Started | None = None
        self.client: Any = arena.client(self.url)
        arena.stack.callback(self.end)

    def start(self) -> Server:
        """Start it, and wait until it serves."""
        words = f"--port {self.port} --daemonize no --repl-diskless-sync-delay 0 --dir"
        self.process = self._arena.processes.start(
            "redis-server", *words.split(), self.folder, *self._settings
        )
        wait_for(self.serves, "redis-server serves", 20)
        return self

    def serves(self) -> bool:
        with suppress(redis.exceptions.RedisError):
            return bool(self.client.ping())
        assert self.process is not None and self.process.process.poll() is None, (
            "redis-server ended"
        )
        return False

    def end(self) -> None:
        """It shows no mark of ours in its environment, which it overwrites with its title."""
        if self.process is not None and self.process.process.poll() is None:
            self.kill()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL: what was not written to the kernel is gone."""
        assert self.process is not None
        self.process.signal(signal.SIGKILL)
        self.process.wait(20)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def cut(self, count: int) -> int:
        """Cut bytes off the tail of the newest increment of the append-only file; how many there
        were to cut.
        """
        newest = max(
            self.folder.glob("appendonlydir/*.incr.aof"),
            key=lambda path: int(path.name.split(".")[-3]),
        )
        size = newest.stat().st_size
        os.truncate(newest, max(0, size - count))
        return min(size, count)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        found: int = one.getsockname()[1]
        return found


def cpu_seconds(pid: int) -> float:
    """CPU time of one process so far, 0 when it is gone."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


class Idling:
    """The share of a core that master and workers take while they wait."""

    def __init__(self) -> None:
        self.worst: dict[str, float] = {}

    @contextmanager
    def watched(self, arena: Arena, master: Started) -> Iterator[None]:
        """What each process of the run takes meanwhile; fails when they run in circles."""
        living = {
            pid: command
            for pid, command in arena.processes.living().items()
            if "redis-server" not in command
        }
        began, before = time.monotonic(), {pid: cpu_seconds(pid) for pid in living}
        yield
        seconds = time.monotonic() - began
        shares = {pid: max(0.0, cpu_seconds(pid) - before[pid]) / seconds for pid in living}
        for pid, share in shares.items():
            kind = "master" if pid == master.pid else "worker"
            self.worst[kind] = max(self.worst.get(kind, 0.0), share)
        # All of them together: on a busy machine each that runs in circles gets less.
        assert sum(shares.values()) < 0.5, {living[pid]: share for pid, share in shares.items()}

    def __str__(self) -> str:
        return "CPU while waiting: " + ", ".join(
            f"{kind} {share:.0%}" for kind, share in sorted(self.worst.items())
        )


class Witness(threading.Thread):
    """Writes down what is published, as anybody who reads the task sees it.

    digests: by publication; backwards: how often a publication followed one of a later generation
    """

    def __init__(self, arena: Arena, url: str, run: str) -> None:
        super().__init__(daemon=True)
        self._url, self._key = url, RunKeys(run).task
        self._over = threading.Event()
        self.digests: dict[str, set[str]] = {}
        self.backwards = 0
        arena.stack.callback(self.end)
        self.start()

    def run(self) -> None:
        latest = -1
        with client_from_url(self._url) as client:
            while not self._over.wait(0.003):
                with suppress(redis.exceptions.RedisError, DecodeError):
                    raw: Any = client.get(self._key)
                    if raw is None:
                        continue
                    task = Task.decode(raw)
                    self.digests.setdefault(task.publication, set()).add(task.digest)
                    self.backwards += task.generation < latest
                    latest = task.generation

    def end(self) -> None:
        self._over.set()
        self.join(20)

    def names_are_unique(self) -> bool:
        """Whether no two publications shared a name with different parameters."""
        return bool(self.digests) and all(len(digests) == 1 for digests in self.digests.values())
