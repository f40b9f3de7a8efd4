"""``--video-every N``: es-play films the unperturbed policy every N generations."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from pathlib import Path

from es_queue.errors import RunFolderError, UsageError
from es_queue.text import sanitize
from master.processes import Child, ProcessGroup

LOGGER = logging.getLogger("es_queue.display")
VIDEO_FOLDER = "videos"
INSTALL = "pip install 'es-queue[video]'"
#: The longest wait for a film when its run ends.
LAST_VIDEO_SECONDS = 120.0
POLL_SECONDS = 0.05
#: At a low priority: training comes first.
PLAYER = ["nice", "-n", "10", sys.executable, "-P", "-m", "workers.es_play"]


class VideoJobs:
    """One run's films, made one after another from the records of generations. A failure is
    reported once and ends the filming, not the run.
    """

    def __init__(self, run_dir: Path, every: int, noise_dir: Path | None) -> None:
        # start-up: numpy; the command line imports this module
        from es_queue.numerics.noise_table import FOLDER_VARIABLE

        self._run_dir, self._every = run_dir, every
        self._environment = {
            **os.environ,
            **({} if noise_dir is None else {FOLDER_VARIABLE: str(noise_dir)}),
        }
        self._group = ProcessGroup(grace=0)
        self._next_generation = 0
        #: The generation being filmed, and those that wait.
        self._filmed: int | None = None
        self._queue = deque[int]()

    def needs(self, generation: int) -> bool:
        """Whether the generation's record must stay until its film is made."""
        return bool(self._every) and (
            generation >= self._next_generation
            or generation == self._filmed
            or generation in self._queue
        )

    def add(self, generation: int) -> None:
        if self._every and generation >= self._next_generation:
            self._next_generation = generation - generation % self._every + self._every
            self._queue.append(generation)
        self._start_next()

    def drop(self, generation: int) -> None:
        if generation == self._filmed or generation in self._queue:
            if generation == self._filmed:
                self._filmed = None
            else:
                self._queue.remove(generation)
            LOGGER.warning("making a film takes longer than a generation: some films are skipped")

    def _start_next(self) -> None:
        if not self._is_busy() and self._queue:
            self._start_video(self._queue.popleft())

    def _start_video(self, generation: int) -> None:
        target = self._run_dir / VIDEO_FOLDER / f"{generation:08d}.gif"
        command = [*PLAYER, str(self._run_dir), "--trust"]
        command += ["--generation", str(generation), "--record", str(target)]
        log = self._run_dir / "logs" / "films.log"
        self._group.children = [Child("es-play", lambda: command, log, self._environment)]
        try:
            self._group.start(self._group.children[0])
        except RunFolderError as error:
            self._disable(str(error))
            return
        self._filmed = generation

    def close(self, seconds: float = LAST_VIDEO_SECONDS) -> None:
        """Wait so long for each film, then end it; with 0 seconds, start no other."""
        try:
            is_busy = self._is_busy()
            waiting = len(self._queue) + is_busy
            if seconds and waiting > 1:
                LOGGER.warning(f"making {waiting} more films: Ctrl-C skips them")
            deadline = time.monotonic() + seconds
            while is_busy and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                if not (is_busy := self._is_busy()):
                    self._start_next()
                    deadline, is_busy = time.monotonic() + seconds, self._is_busy()
            skipped = [number for number in (self._filmed, *self._queue) if number is not None]
            if is_busy and seconds and skipped:
                LOGGER.warning(
                    f"a film takes longer than {seconds:g} s: {len(skipped)} are skipped; "
                    f"es-play {self._run_dir} --generation {skipped[0]} --record FILE.gif makes one"
                )
        finally:  # even if interrupted, leave no player behind
            self._group.__exit__()

    def _is_busy(self) -> bool:
        """A failed film is reported."""
        if not self._group.children:
            return False
        self._group.watch()
        (child,) = self._group.children
        if not child.is_over:
            return True
        self._group.children = []
        is_kept, self._filmed = self._filmed is not None, None
        if child.code and is_kept:  # a record that was removed meanwhile is no trouble
            lines = child.last_lines()
            self._disable(lines[-1] if lines else f"es-play ended with {child.code}")
        return False

    def _disable(self, why: str) -> None:
        self._every = 0
        self._queue.clear()
        LOGGER.warning(
            f"no more films are made ({sanitize(why.removeprefix('es-play: '), 300)}); "
            "training continues"
        )


def validate_video_support(every: int) -> None:
    """Raises UsageError if a run needs films but their package is missing."""
    if not every:
        return
    try:
        # optional: Pillow
        import PIL.Image  # noqa: F401 - is it there?
    except ImportError:
        raise UsageError(
            f"--video-every needs a package that is not installed (PIL): {INSTALL}"
        ) from None
