"""What one es-master looks after each second: the guardian of its server and local workers, and the seats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from es_queue.protocol.channel import MasterChannel
from master.household.client import GuardianClient
from master.seats import Keeper

SPEAK_AFTER = 2.0


class Household:
    """The collector's housekeeper. ``guardian``: None for a run with neither a private server nor local workers."""

    def __init__(self, guardian: GuardianClient | None, keeper: Keeper, note: Callable[[str], None]) -> None:
        self._guardian, self._keeper, self._note = guardian, keeper, note

    def tick(self, channel: MasterChannel, workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool) -> list[str]:
        """Restart what has ended, keep seats open; returns workers that should give way to another run."""
        self._look_at_guardian()
        return self._keeper.tick(channel, workers, served, paused)

    def outage(self, seconds: float, trouble: str = "") -> None:
        """Redis did not answer, or refused by ``trouble``: see to it that our own is started again, or say what we wait for."""
        if not self._look_at_guardian() and seconds > SPEAK_AFTER:
            self._note(f"Redis refuses for now, trying again; it says: {trouble}" if trouble else "Redis does not answer; trying again")

    def _look_at_guardian(self) -> bool:
        """Pass on what it had to start again, and start it again itself; says whether there was any of it."""
        if self._guardian is None:
            return False
        news = self._guardian.news()
        if self._guardian.ensure():
            news.append("the guardian of the server and the local workers had ended: all of them were started again")
        for text in news:
            self._note(text)
        return bool(news)
