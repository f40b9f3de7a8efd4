"""What one es-master looks after each second: the supervisor of its server and local workers, and
the seats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from es_queue.protocol.channel import MasterChannel
from master.fleet.seat_manager import SeatManager
from master.services.supervisor_client import SupervisorClient

NOTE_AFTER_SECONDS = 2.0


class Maintenance:
    """The collector's housekeeper. ``supervisor``: None for a run with neither a private server nor
    local workers.
    """

    def __init__(
        self,
        supervisor: SupervisorClient | None,
        seat_manager: SeatManager,
        note: Callable[[str], None],
    ) -> None:
        self._supervisor, self._seat_manager, self._note = supervisor, seat_manager, note

    def tick(
        self,
        channel: MasterChannel,
        workers: Mapping[str, Mapping[str, str]],
        served: bool,
        paused: bool,
    ) -> list[str]:
        """Restart what has ended, keep seats open; returns workers that should give way to another
        run.
        """
        self._check_supervisor()
        return self._seat_manager.tick(channel, workers, served, paused)

    def handle_outage(self, seconds: float, trouble: str = "") -> None:
        """Redis did not answer, or refused by ``trouble``: see to it that our own is started again,
        or say what we wait for.
        """
        if not self._check_supervisor() and seconds > NOTE_AFTER_SECONDS:
            self._note(
                f"Redis refuses for now, trying again; it says: {trouble}"
                if trouble
                else "Redis does not answer; trying again"
            )

    def _check_supervisor(self) -> bool:
        """Pass on what it had to start again, and start it again itself; says whether there was any
        of it.
        """
        if self._supervisor is None:
            return False
        news = self._supervisor.read_news()
        if self._supervisor.ensure():
            news.append(
                "the guardian of the server and the local workers had ended: all of them "
                "were started again"
            )
        for text in news:
            self._note(text)
        return bool(news)
