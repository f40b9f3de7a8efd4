"""Services that a process provides to its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from es_queue.host import default_workers
from es_queue.protocol.keys import Clocks
from master.display.log_view import RunView
from master.run.launch import Launch
from master.run.run_paths import RunPaths
from master.run.setup import Setup
from master.services.local_workers import LocalServices
from master.services.private_server import PrivateServer
from master.services.start_lines import redis_flags
from master.services.tcp_access import resolve_listen_address


@dataclass
class StopSignal:
    """is_interrupted: whether a person asked to stop; is_looping: the run has begun, so that an
    interrupt ends it in order
    """

    is_interrupted: Callable[[], bool]
    is_looping: bool = False

    def start_looping(self) -> None:
        self.is_looping = True


class OwnServices(LocalServices):
    """Those of one run."""

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self._launch = launch

    def start_private_server(self, paths: RunPaths) -> str:
        """Start a private server in the run's folder; returns its URL."""
        paths.prepare()
        folder, launch = paths.run_dir / "redis", self._launch
        listen = None if launch.listen is None else resolve_listen_address(launch.listen, folder)
        self.server = PrivateServer(folder, listen=listen, queue=launch.queue)
        self.start_server()
        if self.server.is_owned:  # else another master's workers are there, too
            self.start_local_workers(paths, self.server.url)
        return self.server.url

    def start_local_workers(self, paths: RunPaths, url: str) -> None:
        """Start the local workers, if the run needs some and has none yet."""
        launch, is_private = self._launch, self.server is not None
        count = launch.workers
        if count is None:
            count = default_workers() if is_private else 0
        if count:
            shared = not is_private or launch.listen is not None
            logs = paths.run_dir / "logs"
            self.start_workers(count, launch.queue, url, logs, shared, launch.noise_dir)


@dataclass(frozen=True)
class Services:
    """client, url: of the run's Redis"""

    launch: Launch
    clocks: Clocks
    client: Any
    url: str
    stop: StopSignal
    own: OwnServices

    @property
    def redis_flags(self) -> str:
        """The flags by which a command finds the server; empty for a private one."""
        if self.own.server is not None:
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
