"""Services that a process provides to its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from es_queue.protocol.timing import Clocks
from master.display.format import Record
from master.loop.listeners import Sink
from master.run.launch import Launch
from master.run.run_paths import RunPaths
from master.run.setup import Setup
from master.run.supervisor_client import SupervisorClient, make_supervisor_client
from master.services.private_server import PrivateServer
from master.services.start_lines import redis_flags


class RunView(Sink, Protocol):
    """Shows a run: ``Reporter`` for the command line, less for Python."""

    def note(self, text: str) -> None: ...

    def started(self, about: dict[str, str]) -> None: ...

    def summary(self, record: Record) -> None: ...


@dataclass
class StopSignal:
    """is_interrupted: whether a person asked to stop; is_looping: the run has begun, so that an
    interrupt ends it in order
    """

    is_interrupted: Callable[[], bool]
    is_looping: bool = False

    def start_looping(self) -> None:
        self.is_looping = True


class OwnProcesses:
    """The private server and the supervisor that a master starts for its run; each may be None."""

    def __init__(self, launch: Launch, clocks: Clocks) -> None:
        self._launch, self._clocks = launch, clocks
        self.server: PrivateServer | None = None
        self.supervisor: SupervisorClient | None = None

    def start_server(self, paths: RunPaths, modules: Sequence[str]) -> str:
        """Start a private server in the run's folder; returns its URL."""
        paths.prepare()
        self.server = PrivateServer(paths.run_dir / "redis")
        self.start(paths, modules)
        return self.server.url

    def start(self, paths: RunPaths, modules: Sequence[str]) -> None:
        """Start the supervisor, if the run needs one and has none yet."""
        if self.supervisor is None:
            self.supervisor = make_supervisor_client(
                self._launch, paths, self._clocks, self.server, modules
            )
            if self.supervisor is not None:
                self.supervisor.start()

    def restart(self, _: float) -> None:
        if self.server is not None and self.supervisor is not None:
            self.supervisor.ensure()

    def release(self) -> None:
        """Leave the server to another living master."""
        if self.server is not None and self.supervisor is not None:
            self.supervisor.release()

    def stop(self) -> None:
        if self.supervisor is not None:
            self.supervisor.stop()

    def kill(self) -> None:
        if self.supervisor is not None:
            self.supervisor.kill()


@dataclass(frozen=True)
class Services:
    """client, url: of the run's Redis; private_server, supervisor: None for a run that has none"""

    launch: Launch
    clocks: Clocks
    client: Any
    url: str
    stop: StopSignal
    private_server: PrivateServer | None = None
    supervisor: SupervisorClient | None = None

    @property
    def local_workers(self) -> int:
        return 0 if self.supervisor is None else self.supervisor.local_workers

    @property
    def redis_flags(self) -> str:
        """The flags by which a command finds the server; empty for a private one."""
        if self.private_server is not None:
            return ""
        return redis_flags(self.url, self.launch.redis_password_file)


@dataclass(frozen=True)
class LeaseClaim:
    """The lease that this master has taken: its name, and the token that fences every write."""

    holder: str
    token: str


@dataclass(frozen=True)
class RunContext:
    """A run whose lease this master has taken. is_resumed: it has had a master before"""

    services: Services
    paths: RunPaths
    setup: Setup
    view: RunView
    claim: LeaseClaim
    is_resumed: bool = False

    @property
    def run_words(self) -> str:
        """The words by which a command finds the run and its server."""
        return f"{self.paths.named_run.word}{self.services.redis_flags}"
