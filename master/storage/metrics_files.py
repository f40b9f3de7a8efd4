"""One line per generation: metrics.jsonl with everything, metrics.csv with the main figures."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from es_queue.files import open_file
from master.display.log_view import RunView, format_json_line
from master.status.figures import FIGURES, Record, finite_or_none

LOGGER = logging.getLogger("es_queue.storage")
METRICS, METRICS_TABLE = "metrics.jsonl", "metrics.csv"
#: A line of metrics.jsonl has about 1,200 bytes; no honest one has so many.
LONGEST_LINE = 2**16

#: The columns of metrics.csv. They keep their names and order.
TABLE_COLUMNS = tuple(name for name, figure in FIGURES.items() if "csv" in figure.places)


def metrics_files(run_dir: Path) -> list[LineFile]:
    return [
        LineFile(run_dir / METRICS, format_json_line),
        LineFile(run_dir / METRICS_TABLE, format_row, ",".join(TABLE_COLUMNS) + "\n"),
    ]


class LineFile(RunView):
    """A file to which a whole line is appended per generation; opened with the first. Without the
    file, training continues.
    """

    def __init__(self, path: Path, format_line: Callable[[Record], str], header: str = "") -> None:
        self._path, self._format_line, self._header = path, format_line, header
        self._handle: int | None = None

    def generation(self, record: Record) -> None:
        try:
            if self._handle is None:
                self._handle = self._open()
            line = self._format_line(record).encode() + b"\n"
            if os.write(self._handle, line) < len(line):
                self.close()  # the next one ends the torn line first
        except OSError as error:
            self.close()
            LOGGER.warning(
                f"{self._path} cannot be written ({error.strerror}); training continues without it"
            )

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(self._path, flags, 0o666)
        size = os.fstat(handle).st_size
        if not size:
            os.write(handle, self._header.encode())
        elif os.pread(handle, 1, size - 1) != b"\n":
            os.write(handle, b"\n")  # a master that was killed may have left half a line
        return handle


def format_row(record: Record) -> str:
    """Only numbers, so that nothing needs quotes."""

    def cell(value: object) -> str:
        number = finite_or_none(value)
        return "" if number is None else str(value) if isinstance(value, int) else f"{number:.10g}"

    return ",".join(cell(record.get(name)) for name in TABLE_COLUMNS)


def parse_json_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects among lines; other lines are skipped."""
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def read_json_lines(path: Path, most_lines: int, end_bytes: int = 0) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines, or only those in its last ``end_bytes``; other lines are
    skipped. Raises OSError.
    """
    with open_file(path) as file:
        if end_bytes and (size := file.seek(0, 2)) > end_bytes:
            file.seek(size - end_bytes)
            file.readline(end_bytes)
        elif end_bytes:
            file.seek(0)
        lines = iter(partial(file.readline, LONGEST_LINE), b"")
        yield from parse_json_lines(islice(lines, most_lines))
