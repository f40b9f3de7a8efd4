"""A private server and local workers, started, watched and ended together.

A run's supervisor holds them for one run; the es-master of ``--seeds`` for all of its runs.
"""

from __future__ import annotations

import logging

from master.services.local_workers import LocalWorkers
from master.services.private_server import PrivateServer

LOGGER = logging.getLogger("es_queue.services")


class LocalServices:
    """``server`` is None for a Redis that was named."""

    def __init__(self, server: PrivateServer | None) -> None:
        self.server = server
        self._workers: LocalWorkers | None = None

    def start_server(self) -> None:
        """Have the private server answer. Raises RedisError."""
        if self.server is not None:
            self.server.start()
            self._log_refused(self.server)

    def start_workers(self, workers: LocalWorkers) -> None:
        """Raises RunFolderError."""
        self._workers = workers
        workers.start()

    def restart_ended(self) -> None:
        """Start again what has ended. Raises RedisError for a server that cannot come back."""
        if self.server is not None and self.server.ensure():
            LOGGER.warning("the private server ended and was restarted")
            self._log_refused(self.server)
        for number in self._workers.supervise() if self._workers is not None else ():
            LOGGER.warning(f"local worker {number} ended and was restarted")

    def stop(self) -> None:
        """End workers and server in order."""
        if self._workers is not None:
            self._workers.stop()
        if self.server is not None:
            self.server.stop()

    def kill(self) -> None:
        """End them at once; waits for nothing."""
        if self._workers is not None:
            self._workers.kill()
        if self.server is not None:
            self.server.kill()

    def _log_refused(self, server: PrivateServer) -> None:
        if server.refused:
            LOGGER.warning(server.refused)
