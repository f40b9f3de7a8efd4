"""What one es-master looks after each second: the embedded server, its local workers, and the seats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from es_queue.protocol.channel import MasterChannel
from master.embedded import EmbeddedServer
from master.local_workers import LocalWorkers
from master.seats import Keeper

SPEAK_AFTER = 2.0


class Household:
    """The collector's housekeeper. All of it runs in the main thread, to which children are bound."""

    def __init__(self, server: EmbeddedServer | None, workers: LocalWorkers | None, keeper: Keeper, note: Callable[[str], None]) -> None:
        self._server, self._workers, self._keeper, self._note = server, workers, keeper, note

    def tick(self, channel: MasterChannel, workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool) -> list[str]:
        """Restart what has ended, keep seats open; returns workers that should give way to another run."""
        self._restart_workers()
        return self._keeper.tick(channel, workers, served, paused)

    def outage(self, seconds: float) -> None:
        """Redis did not answer: start our own server again, or say that we wait for somebody else's."""
        if self._server is not None and self._server.ensure():
            self._note("the private server had ended and was started again")
        elif seconds > SPEAK_AFTER:
            self._note("Redis does not answer; trying again")
        self._restart_workers()

    def _restart_workers(self) -> None:
        for number in self._workers.supervise() if self._workers is not None else ():
            self._note(f"local worker {number} had ended and was started again")
