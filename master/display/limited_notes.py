"""LimitedNotes: at most a few lines per minute about one topic, however much there is to note."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

MOST_NOTES, SECONDS = 4, 60.0


class LimitedNotes:
    """Passes lines on to ``note``. Of more than ``most`` in ``seconds`` the rest are counted, and
    the next line says how many.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        most: int = MOST_NOTES,
        seconds: float = SECONDS,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._note, self._seconds, self._clock = note, seconds, clock
        self._times: deque[float] = deque(maxlen=most)
        self._omitted = 0

    def __call__(self, text: str) -> None:
        now = self._clock()
        if len(self._times) == self._times.maxlen and now - self._times[0] < self._seconds:
            self._omitted += 1
            return
        self._times.append(now)
        self._note(
            f"{text} ({self._omitted} similar lines were left out)" if self._omitted else text
        )
        self._omitted = 0
