"""Handlers that show the messages of the loggers below ``es_queue``."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Self

from es_queue.text import sanitize

LOGGER = logging.getLogger("es_queue")
LOGGER.setLevel(logging.INFO)
LOGGER.addHandler(logging.NullHandler())
#: Messages may contain words of a worker: only handlers that sanitise them get the records.
LOGGER.propagate = False
#: Records that a person must read at once, before the run has a view.
TERMINAL = LOGGER.getChild("terminal")
LONGEST_NOTE = 1000
MOST_NOTES, SECONDS = 4, 60.0


class NoteHandler(logging.Handler):
    """Passes each sentence to ``show``, as one line without control characters. A ``with`` block
    attaches it to ``logger``. Sentences wait, without repetition, until there is a ``show``.
    """

    def __init__(
        self, show: Callable[[str], None] | None = None, logger: logging.Logger = LOGGER
    ) -> None:
        super().__init__()
        self._show, self._logger = show, logger
        self._waiting: dict[str, None] = {}

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = sanitize(record.getMessage(), LONGEST_NOTE)
        if record.name == TERMINAL.name and self._logger is not TERMINAL:
            return
        if self._show is None:
            self._waiting[text] = None
        else:
            self._show(text)

    def show_in(self, show: Callable[[str], None]) -> None:
        """Send sentences there from now on, the waiting ones first."""
        self._show = show
        for text in self._waiting:
            show(text)
        self._waiting.clear()


class DistinctNotes:
    """Logs the first of sentences that differ only in their numbers. ``end`` logs how many more
    there were, and begins again.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger, self._count = logger, Counter[str]()
        self._first: dict[str, str] = {}

    def warning(self, text: str, about: str) -> None:
        """``about``: the part of the sentence that is compared."""
        kind = re.sub(r"\d+", "#", about)
        self._count[kind] += 1
        if self._count[kind] == 1:
            self._first[kind] = about
            self._logger.warning(text)

    def end(self, what: str) -> None:
        for kind, count in self._count.items():
            if count > 1:
                self._logger.warning(f"{count - 1} more {what}: {self._first[kind]}")
        self._count.clear()


class LimitedNotes:
    """Logs at most ``most`` sentences about one topic in SECONDS. It counts the rest, and the next
    sentence contains the count.
    """

    def __init__(self, logger: logging.Logger, most: int = MOST_NOTES) -> None:
        self._logger = logger
        self._times: deque[float] = deque(maxlen=most)
        self._omitted = 0

    def warning(self, text: str) -> None:
        now = time.monotonic()
        if len(self._times) == self._times.maxlen and now - self._times[0] < SECONDS:
            self._omitted += 1
            return
        self._times.append(now)
        self._logger.warning(
            f"{text} ({self._omitted} similar lines were left out)" if self._omitted else text
        )
        self._omitted = 0
