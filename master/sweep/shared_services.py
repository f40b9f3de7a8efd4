"""The server and the local workers that all runs of a study share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Any

from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from es_queue.errors import RedisError
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    ANY_ERROR,
    client_from_url,
    first_line,
    redacted_url,
    validate_server,
)
from es_queue.util.run_folder import NamedRun
from master.cli.redis_url import format_warning, is_same_terminal, network_warnings, read_exposure
from master.run.launch import Launch
from master.services.local_workers import LocalServices, LocalWorkers, default_workers
from master.services.private_server import PrivateServer
from master.services.start_lines import redis_flags, start_lines
from master.services.tcp_access import resolve_listen_address

LOGGER = logging.getLogger("es_queue.sweep")


class SharedServices(LocalServices):
    """Server and workers for a study; all of it in the main thread, to which children
    are bound.
    """

    def __init__(self, launch: Launch, study: NamedRun, modules: Sequence[str] = ()) -> None:
        self._launch, self._study, self._modules = launch, study, modules
        self._folder = study.folder
        super().__init__(self._private_server())
        self._count = self._stale = 0
        self.url = launch.redis_url or ""

    @property
    def is_private(self) -> bool:
        return self._launch.redis_url is None

    def start(self) -> None:
        """Start a suitable server and the workers. Raises RedisError or RunFolderError."""
        self.start_server()
        if self.server is not None:
            self.url = self.server.url
        self._client = client_from_url(self.url)
        validate_server(self._client, self.name)
        if not self.is_private and not self._launch.insecure:
            self._warn(network_warnings(read_exposure(self._client, self.name)))
        self._stale = self._count_registered() if self.is_private else 0
        self._count = (
            (default_workers() if self.is_private else 0)
            if self._launch.workers is None
            else self._launch.workers
        )
        if self._count:
            self.start_workers(
                LocalWorkers(
                    self._count,
                    self._launch.queue,
                    self.url,
                    self._folder / "logs",
                    self._launch.noise_dir,
                    self._modules,
                )
            )

    def _private_server(self) -> PrivateServer | None:
        if not self.is_private:
            return None
        folder, listen = self._folder / "redis", self._launch.listen
        return PrivateServer(
            folder, listen=None if listen is None else resolve_listen_address(listen, folder)
        )

    def _warn(self, warnings: Sequence[str]) -> None:
        for text in warnings:
            print(format_warning(text), file=sys.stderr, flush=True)
            if not is_same_terminal():
                LOGGER.warning(text)

    @property
    def name(self) -> str:
        """The server's name without a password."""
        return redacted_url(self.url)

    @property
    def redis_flags(self) -> str:
        """The flags by which a command finds the server; empty for a private one."""
        return "" if self.is_private else redis_flags(self.url, self._launch.redis_password_file)

    def start_information(self) -> dict[str, str]:
        """Places of server and runs, and the commands to watch and join."""
        file = self._launch.redis_password_file
        lines = start_lines(
            self.url, self._launch.queue, self._study, self.server, self._modules, file
        )
        return {"redis": self.name, "folder": str(self._folder), **lines}

    def worker_places(self) -> int:
        """How many runs can have a worker each: as many as listen to the queue; our own count from
        the start; at least 1.

        What a private server knew when it was started are workers that ended with the study before.
        """
        return max(1, self._count, self._count_registered() - self._stale)

    def _count_registered(self) -> int:
        try:
            count: Any = self._client.scard(WORKERS_BY_QUEUE_KEY % self._launch.queue)
        except ANY_ERROR:
            return 0
        return int(count)

    def has_checkpoint(self, run: str) -> bool:
        """Whether the server has a checkpoint of the run. Raises RedisError when it does not
        answer.
        """
        try:
            return bool(self._client.exists(keys.RunKeys(run).checkpoint))
        except ANY_ERROR as error:
            raise RedisError(
                f"Redis at {self.name} does not show its data of run {run}: {first_line(error)}"
            ) from None
