"""Checks once per second by one es-master of its supervisor."""

from __future__ import annotations

import logging

from master.services.supervisor_client import SupervisorClient

LOGGER = logging.getLogger("es_queue.services")
NOTE_AFTER_SECONDS = 2.0


class SupervisorWatch:
    """``supervisor``: None for a run with neither a private server nor local workers."""

    def __init__(self, supervisor: SupervisorClient | None) -> None:
        self._supervisor = supervisor

    def handle_outage(self, seconds: float, trouble: str = "") -> None:
        """Redis did not answer, or refused by ``trouble``: see to it that our own is started again,
        or say what we wait for.
        """
        if not self.check() and seconds > NOTE_AFTER_SECONDS:
            LOGGER.warning(
                f"Redis refuses commands ({trouble}); trying again"
                if trouble
                else "Redis does not answer; trying again"
            )

    def check(self) -> bool:
        """Pass on what it had to start again, and start it again itself; returns whether there was
        any of it.
        """
        if self._supervisor is None:
            return False
        news = self._supervisor.read_news()
        if self._supervisor.ensure():
            news.append(
                "the supervisor of the server and the local workers ended: all of them were "
                "restarted"
            )
        for text in news:
            LOGGER.warning(text)
        return bool(news)
