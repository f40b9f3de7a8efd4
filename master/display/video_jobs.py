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
        place = {} if noise_dir is None else {FOLDER_VARIABLE: str(noise_dir)}
        self._environment = {**os.environ, **place}
        self._group = ProcessGroup(grace=0)
        self._next_generation = 0
        #: The generation being filmed, and those that wait.
        self._queue = deque[int]()

    def needs(self, generation: int) -> bool:
        """Whether the generation's record must stay until its film is made."""
        return bool(self._every) and (
            generation >= self._next_generation or generation in self._queue
        )

    def add(self, generation: int) -> None:
        if self._every and generation >= self._next_generation:
            self._next_generation = generation - generation % self._every + self._every
            self._queue.append(generation)
        self._film()

    def drop(self, generation: int) -> None:
        if generation in self._queue:
            self._queue.remove(generation)
            LOGGER.warning("making a film takes longer than a generation: some films are skipped")

    def _film(self) -> bool:
        """Start the next film if none is being made; whether one is. A failed one is reported."""
        for child in self._group.children:
            self._group.watch()
            if not child.is_over:
                return True
            self._group.children = []
            if int(child.name) not in self._queue:  # its record was removed meanwhile
                continue
            self._queue.remove(int(child.name))
            if child.code:
                self._disable([f"es-play ended with {child.code}", *child.last_lines()][-1])
        if not self._queue:
            return False
        generation = str(self._queue[0])
        target = self._run_dir / VIDEO_FOLDER / f"{self._queue[0]:08d}.gif"
        command = [*PLAYER, str(self._run_dir), "--trust", "--generation", generation]
        command += ["--record", str(target)]
        log = self._run_dir / "logs" / "films.log"
        self._group.children = [Child(generation, lambda: command, log, self._environment)]
        try:
            self._group.start(self._group.children[0])
        except RunFolderError as error:
            self._group.children = []
            self._disable(str(error))
        return bool(self._group.children)

    def close(self, seconds: float = LAST_VIDEO_SECONDS) -> None:
        """Wait so long for each film, then end it; with 0 seconds, start no other."""
        try:
            if seconds and len(self._queue) > 1:
                LOGGER.warning(f"making {len(self._queue)} more films: Ctrl-C skips them")
            left, deadline = len(self._queue), time.monotonic() + seconds
            while seconds and self._film() and time.monotonic() < deadline:
                if len(self._queue) < left:  # the next one has begun
                    left, deadline = len(self._queue), time.monotonic() + seconds
                time.sleep(POLL_SECONDS)
            if seconds and self._queue:
                LOGGER.warning(
                    f"a film takes longer than {seconds:g} s: {len(self._queue)} are skipped; "
                    f"es-play {self._run_dir} --generation {self._queue[0]} --record FILE.gif "
                    "makes one"
                )
        finally:  # even if interrupted, leave no player behind
            self._group.__exit__()

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
