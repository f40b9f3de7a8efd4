"""Record a second worker that joins a run, as an SVG: ``python -m tools.record_joining FILE``.

It runs a real session in an empty folder: es-master with one worker, an rq worker from a second
terminal, es-status, and Ctrl-C for that worker. The film shows each line when it was printed;
pauses are shortened.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 108
LONGEST_PAUSE = 1.2  # seconds in the film
DEADLINE = 120.0
MASTER = (
    "es-master --env BipedalWalker-v2 --run walk --seed 4 --workers 1 --max-seconds 25 "
    "--final-episodes 5"
)
STYLES = {1: "cyan", 2: "green", 3: "magenta"}
COLOUR_CODE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Recording:
    """Lines with the terminal and the second in which they appeared."""

    folder: str
    lines: list[tuple[float, int, str]] = field(default_factory=list)

    def add(self, terminal: int, line: str) -> None:
        text = COLOUR_CODE.sub("", line).rstrip().replace(self.folder, "~")
        self.lines.append((time.monotonic(), terminal, text))

    def contains(self, pattern: str) -> re.Match[str] | None:
        found = (re.search(pattern, text) for _, _, text in self.lines)
        return next(filter(None, found), None)


def wait_for(condition: Callable[[], object]) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the session did not do what the recording needs")
        time.sleep(0.05)


@contextmanager
def terminal(recording: Recording, number: int, command: str) -> Iterator[subprocess.Popen[str]]:
    """A command whose output is recorded; it has ended afterwards."""
    recording.add(number, f"$ {command}")
    process = subprocess.Popen(
        command.replace("~", recording.folder).split(),
        cwd=recording.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    reader = threading.Thread(target=read_lines, args=(recording, number, process))
    reader.start()
    try:
        yield process
    finally:
        process.wait(DEADLINE)
        reader.join()


def read_lines(recording: Recording, number: int, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip():
            recording.add(number, line)


def has_two_workers(folder: str) -> bool:
    shown = subprocess.run(
        ["es-status", "walk"], cwd=folder, capture_output=True, text=True, check=False
    )
    return "2 living" in shown.stdout


def record(folder: str) -> Recording:
    recording = Recording(folder)
    with terminal(recording, 1, MASTER):
        wait_for(lambda: recording.contains("generation 0"))
        join = recording.contains(r"join +(.*)")
        assert join is not None
        with terminal(recording, 2, join[1]) as worker:
            wait_for(lambda: has_two_workers(folder))
            with terminal(recording, 3, "es-status walk"):
                pass
            recording.add(2, "^C")
            worker.send_signal(signal.SIGINT)
    return recording


def schedule(recording: Recording) -> list[float]:
    """When each line appears in the film, in seconds."""
    times, shown = [stamp for stamp, _, _ in recording.lines], [0.5]
    for before, after in itertools.pairwise(times):
        shown.append(shown[-1] + min(LONGEST_PAUSE, max(0.08, after - before)))
    return shown


def draw(recording: Recording) -> str:
    """The SVG: rich's own, without a font from elsewhere, each line at its time."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    for _, number, text in recording.lines:
        line = Text(f"{number} │ ", style=STYLES[number])
        line.append(text, style="bold white" if text.startswith(("$", "^")) else "white")
        line.truncate(WIDTH - 1, overflow="ellipsis")
        console.print(line)
    drawing = console.export_svg(title="a second worker joins", unique_id="joining")
    drawing = re.sub(r"@font-face \{.*?\}\n", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("font-family: Fira Code", "font-family: Fira Code, Menlo, Consolas")
    return animate(drawing, schedule(recording))


def animate(drawing: str, times: list[float]) -> str:
    """Hide each row of text until its time, except for readers who want no motion."""
    rules = [f".row{row} {{ animation-delay: {shown:.2f}s }}" for row, shown in enumerate(times)]
    style = (
        "@media (prefers-reduced-motion: no-preference) {\n"
        ".row { opacity: 0; animation: appear 0.01s linear forwards }\n"
        + "\n".join(rules)
        + "\n}\n"
        "@keyframes appear { to { opacity: 1 } }\n</style>"
    )
    drawing = drawing.replace("</style>", style, 1)
    return re.sub(
        r'<text class="([\w-]+)"([^>]*clip-path="url\(#joining-line-(\d+)\)")',
        lambda found: f'<text class="{found[1]} row row{found[3]}"{found[2]}',
        drawing,
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m tools.record_joining", description=__doc__)
    parser.add_argument("out", type=Path, metavar="FILE", help="the SVG to write")
    out: Path = parser.parse_args().out
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["COLUMNS"] = str(WIDTH - 4)
    for name in ("RQ_REDIS_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as folder:
        drawing = draw(record(folder))
    out.write_text(drawing, "utf-8")


if __name__ == "__main__":
    main()
