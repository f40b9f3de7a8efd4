"""Figures from a run's history: the evaluation curve, and the usual wait of a generation."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from es_queue.protocol.keys import RunKeys
from es_queue.text import to_text
from master.display.format import finite_or_none
from master.status.redis_reader import (
    LONGEST_VALUE,
    PROGRESS_FIELDS,
    RedisReader,
)
from master.storage.metrics_files import read_json_lines

#: Read so many entries at most, in pieces, until there are so many evaluations.
MOST_EVALUATIONS = 500
MOST_ENTRIES = 5000
READ_COUNT = 250
#: Fields of an entry that are kept; with those of the page's curves. An entry may have any number
#: of others.
KEPT = (
    "generation",
    "env_steps",
    "seconds",
    "seconds_wait",
    "return_mean",
    "return_std",
    "return_max",
    "eval_mean",
    "eval_std",
    "eval_min",
)
#: So many newest generations say what is usual.
MOST_RECENT = 50
METRICS_BYTES = 4 * 2**20
MOST_LINES = 50_000


class History:
    """The newest generations of one run; ``update`` fetches only new ones.

    evaluations: (generation, mean return), oldest first; waits: seconds that the newest generations
    waited; newest: the last record's short values
    """

    def __init__(self) -> None:
        self.evaluations: deque[tuple[float, float]] = deque(maxlen=MOST_EVALUATIONS)
        self.waits: deque[float] = deque(maxlen=MOST_RECENT)
        self.newest: Mapping[str, Any] = {}
        self._last = ""

    @property
    def usual_wait_seconds(self) -> float | None:
        """The median; None before the first generation."""
        return statistics.median(self.waits) if self.waits else None

    def update(self, server: RedisReader, run: str) -> None:
        """Read new entries of the run's stream."""
        fresh = list(reversed(self._newest(server, RunKeys(run).history)))
        if fresh:
            self._last = fresh[-1][0]
        self.add_records(fields for _, fields in fresh)

    def _newest(self, server: RedisReader, key: str) -> list[tuple[str, dict[str, str]]]:
        """Entries after the last one seen, newest first."""
        entries_found: list[tuple[str, dict[str, str]]] = []
        least, highest, evaluations = f"({self._last}" if self._last else "-", "+", 0
        while len(entries_found) < MOST_ENTRIES and evaluations < MOST_EVALUATIONS:
            (piece,) = server.ask([("xrevrange", key, highest, least, READ_COUNT)])
            entries = [(to_text(name), parse_entry(fields)) for name, fields in piece or ()]
            entries_found += entries
            evaluations += sum("eval_mean" in fields for _, fields in entries)
            if len(entries) < READ_COUNT:
                break
            highest = f"({entries[-1][0]}"
        return entries_found

    def read_file(self, metrics: Path) -> None:
        with suppress(OSError):
            self.add_records(read_json_lines(metrics, MOST_LINES, METRICS_BYTES))

    def add_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add records in order; the last one of a generation counts."""
        for record in records:
            self.newest = {
                name: record[name] for name in (*PROGRESS_FIELDS, *KEPT) if short(record.get(name))
            }
            mean, generation, wait = (
                finite_or_none(record.get(name))
                for name in ("eval_mean", "generation", "seconds_wait")
            )
            if mean is not None:
                while (
                    self.evaluations
                    and generation is not None
                    and self.evaluations[-1][0] >= generation
                ):
                    self.evaluations.pop()
                self.evaluations.append((-1.0 if generation is None else generation, mean))
            if wait is not None and wait >= 0:
                self.waits.append(wait)


def parse_entry(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    kept = ((name, (fields or {}).get(name.encode())) for name in KEPT)
    return {
        name: to_text(value)
        for name, value in kept
        if value is not None and len(value) <= LONGEST_VALUE
    }


def short(value: object) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= LONGEST_VALUE
    return finite_or_none(value) is not None
