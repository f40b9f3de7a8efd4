"""ProcessGroup: processes that are started, watched, restarted and ended together, and that end
when this process is gone; and StopSignals, which end this process.

Groups that need each other are nested: ``with`` ends the inner one first.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Self

from es_queue.errors import EXIT_INTERRUPTED, EsQueueError, RunFolderError
from es_queue.files import read_end
from es_queue.host import process_limit_hint
from es_queue.private_files import no_link
from master import bound

POLL_SECONDS = 0.02
TAIL_LINES, TAIL_BYTES = 3, 16 * 1024
READ_BYTES = 65536

RUN_MODULE = (
    "import sys; home, module = sys.argv[1:3]; del sys.argv[1:3];"
    "home in sys.path or sys.path.insert(0, home);"
    "sys.exit(__import__(module, fromlist=['main']).main())"
)


def module_command(module: str, *words: str) -> list[str]:
    """The command that runs ``main`` of an es-queue module. With -P, packages of the current folder
    cannot replace es-queue's own, which need not be installed.
    """
    home = str(Path(__file__).resolve().parents[1])
    return [sys.executable, "-P", "-c", RUN_MODULE, home, module, *words]


@dataclass(eq=False)
class Child:
    """One place in a group, taken by one process after another.

    name:        its name in sentences
    command:     called at each start, because a second one can need other words (``--resume``)
    environment: all of it, None for this process's own; secrets belong here, because every user of
                 the host can read a command line
    pipes:       its input and output are pipes (``process.stdin``, ``lines``); only errors go to
                 the log
    backoff:     seconds before each new start in a row, none: never; a process that lived longer
                 than the last of them resets the count
    endless:     the last wait repeats for ever, instead of giving up
    comes_back:  whether an exit code deserves another start
    error:       what ``wait_ready`` raises
    trouble:     why it is not started again; empty while it may be
    """

    name: str
    command: Callable[[], Sequence[str]]
    log: Path
    environment: Mapping[str, str] | None = None
    pipes: bool = False
    backoff: Sequence[float] = ()
    endless: bool = False
    comes_back: Callable[[int], bool] = lambda code: True
    error: type[EsQueueError] = RunFolderError
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None
    trouble: str = ""
    failures: int = 0
    started: float = 0.0
    due: float | None = None
    _text: bytes = field(default=b"", repr=False)

    @property
    def is_over(self) -> bool:
        """Neither running nor to be started again."""
        return self.process is None and self.due is None

    def lines(self) -> list[str]:
        """Whole lines of its output since the last call. Never waits."""
        self.drain()
        *whole, self._text = self._text.split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def drain(self) -> None:
        """Keep its output for ``lines``: a full pipe would stop it."""
        if self.process is None or self.process.stdout is None:
            return
        output = self.process.stdout.fileno()
        while select.select([output], [], [], 0)[0] and (piece := os.read(output, READ_BYTES)):
            self._text += piece

    def last_lines(self) -> list[str]:
        """The end of its log."""
        with suppress(OSError):
            lines = read_end(self.log, TAIL_BYTES).decode(errors="replace").splitlines()
            lines = [line.strip() for line in lines if line.strip()]
            # A server's advice about its host is not why it ended.
            return ([line for line in lines if "WARNING" not in line] or lines)[-TAIL_LINES:]
        return []

    def tail(self) -> str:
        """The end of its log, for a sentence."""
        text = " | ".join(self.last_lines())
        return (
            f"{self.log} ends: {text}{process_limit_hint(text)}" if text else f"{self.log} is empty"
        )


class ProcessGroup:
    """Children that end together: by ``end``, by the end of the ``with``, or with this process.

    They are in sessions of their own, so the terminal's Ctrl-C reaches only this process. All
    methods are for one thread; it does not matter which.
    """

    def __init__(self, grace: float = 10.0) -> None:
        self.children: list[Child] = []
        self.grace = grace  # seconds from SIGTERM to SIGKILL
        self._pipe, self._held = os.pipe()  # nothing is ever written; see ``bound``

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        os.close(self._held)
        os.close(self._pipe)

    def start(self, child: Child) -> Child:
        """Raises RunFolderError for a log that cannot be written."""
        if child not in self.children:
            self.children.append(child)
        wrapper = [sys.executable, "-I", "-S", bound.__file__, str(self._pipe), str(os.getpid())]
        try:
            child.log.parent.mkdir(parents=True, exist_ok=True)
            with open(child.log, "ab", opener=no_link) as log:
                child.process = subprocess.Popen(
                    [*wrapper, *child.command()],
                    stdin=subprocess.PIPE if child.pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if child.pipes else log,
                    stderr=log,
                    env=child.environment,
                    pass_fds=[self._pipe],
                    start_new_session=True,
                )
        except OSError as error:
            raise RunFolderError(
                f"{child.name} cannot be started with the log {child.log}: {error.strerror}"
                f"{process_limit_hint(str(error))}"
            ) from error
        child.started, child.due, child.code = time.monotonic(), None, None
        return child

    def wait_ready(self, child: Child, is_ready: Callable[[], bool], seconds: float) -> None:
        """Raises the child's error if it ends for good, or is not ready in time."""
        deadline = time.monotonic() + seconds
        while not is_ready():
            self.watch()
            if child.is_over:
                raise child.error(child.trouble or f"{child.name} has ended")
            if time.monotonic() > deadline:
                raise child.error(f"{child.name} is not ready after {seconds:g} s; {child.tail()}")
            time.sleep(POLL_SECONDS)

    def watch(self) -> list[str]:
        """Notice ends, and start again those that are due; returns a sentence for each. Never
        waits.
        """
        return [news for child in self.children if (news := self.look(child))]

    def look(self, child: Child) -> str:
        """As ``watch``, for one child; empty without news."""
        code = self._reap(child)
        news = "" if code is None else self._plan(child, code)
        if child.due is not None and time.monotonic() >= child.due:
            self.start(child)
        return news

    def terminate(self) -> None:
        """SIGTERM to all, none of which starts again."""
        for child in self.children:
            child.due = None
            if child.process is not None:
                child.process.terminate()

    def end(self) -> None:
        """SIGTERM to all, and SIGKILL to those left after ``grace``, at once on a
        KeyboardInterrupt.
        """
        deadline = time.monotonic() + self.grace
        try:
            self.terminate()
            while time.monotonic() < deadline and any(child.process for child in self.children):
                time.sleep(POLL_SECONDS)
                for child in self.children:
                    self._reap(child)
        finally:
            for child in self.children:
                if child.process is not None:
                    bound.end_session(child.process.pid)
                    child.process.wait()
                    self._reap(child)

    def _reap(self, child: Child) -> int | None:
        """The exit code of a process that has just ended; it has then left its place."""
        child.drain()
        if child.process is None or (code := child.process.poll()) is None:
            return None
        child.drain()  # what it wrote between the two lines above
        if code < 0:  # its wrapper was killed, not the command
            bound.end_session(child.process.pid)
        for pipe in (child.process.stdin, child.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # words that were not sent
                    pipe.close()
        child.process, child.code = None, code if code >= 0 else 128 - code
        return child.code

    def _plan(self, child: Child, code: int) -> str:
        """Decide whether and when a process that ended is started again; returns a sentence."""
        if child.backoff and time.monotonic() - child.started > child.backoff[-1]:
            child.failures = 0
        if not child.comes_back(code):
            child.trouble = f"{child.name} ended with code {code}; {child.tail()}" if code else ""
            return child.trouble
        if child.failures >= len(child.backoff) and not (child.endless and child.backoff):
            times = f" {child.failures + 1} times in a row" if child.failures else ""
            child.trouble = f"{child.name} ended with code {code}{times}; {child.tail()}"
            return child.trouble
        seconds = child.backoff[min(child.failures, len(child.backoff) - 1)]
        child.failures, child.due = child.failures + 1, time.monotonic() + seconds
        return f"{child.name} ended with code {code} and starts again in {seconds:g} s"


def signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


# --- how es-master ends by Ctrl-C: the first asks, the second ends at once


def leave_at_once(resume_command: str) -> NoReturn:
    """End the process without cleaning up: show the cursor again, and print how to continue the
    run.
    """
    hint = f"; continue with: {resume_command}" if resume_command else ""
    for number, text in ((1, "\x1b[?25h\n" if os.isatty(1) else ""), (2, f"ended at once{hint}\n")):
        with suppress(OSError):
            os.write(number, text.encode())
    os._exit(EXIT_INTERRUPTED)


class StopSignals:
    """SIGINT, SIGTERM and a closed terminal. The first signal asks a run to stop, or is a
    KeyboardInterrupt before it begins; the second ends everything.
    """

    def __init__(self) -> None:
        self.requested = False

    def install(self, has_begun: Callable[[], bool], resume_command: Callable[[], str]) -> None:
        def handle(number: int, frame: object) -> None:
            if self.requested:
                leave_at_once(resume_command())
            self.requested = True
            if not has_begun():
                raise KeyboardInterrupt

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, handle)
