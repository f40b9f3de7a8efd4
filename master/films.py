"""``--video-every N``: a film of the unperturbed policy every so many generations, made beside the run by es-play."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from es_queue.errors import UsageError
from master.wording import printable

FOLDER = "videos"
INSTALL = "pip install 'es-queue[video]'"
#: A film that is under way when its run ends is waited for so long.
LAST_SECONDS = 30.0
NICENESS = 10
MOST_WORDS = 4_000


class Films:
    """One run's. One film is made at a time; a generation that comes meanwhile gets none. Trouble is said once and ends the filming, not the run."""

    def __init__(self, run_dir: Path, every: int, noise_dir: Path | None, note: Callable[[str], None]) -> None:
        from es_queue.noise import FOLDER_VARIABLE  # numpy, which a command line is read without

        self._run_dir, self._every, self._note = run_dir, every, note
        self._environment = {**os.environ, **({} if noise_dir is None else {FOLDER_VARIABLE: str(noise_dir)})}
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] | None = None
        self._due = 0

    def kept(self, generation: int) -> None:
        """The record of a generation's life has been written, from which es-play makes its policy."""
        if not self._every or generation < self._due or self._busy():
            return
        self._due = generation - generation % self._every + self._every
        target = self._run_dir / FOLDER / f"{generation:08d}.gif"
        command = [sys.executable, "-P", "-m", "workers.play", str(self._run_dir), "--trust"]
        command += ["--generation", str(generation), "--record", str(target)]
        try:
            self._forget_words()
            self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
            # A session of its own, so that Ctrl-C in the terminal is the master's alone.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._words, env=self._environment, start_new_session=True)
        except OSError as error:
            self._give_up(str(error))
            return
        with suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICENESS)

    def close(self, seconds: float = LAST_SECONDS) -> None:
        """Wait for the film that is under way, and end it where that takes too long."""
        try:
            if self._process is not None:
                self._process.wait(seconds)
                self._busy()
        except subprocess.TimeoutExpired:
            pass
        finally:  # whoever will not wait any longer leaves no player behind
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._process = None
            self._forget_words()

    def _busy(self) -> bool:
        """Whether a film is under way. One that has failed is said."""
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            return True
        self._process = None
        if code:
            said = self._said()
            self._give_up(said[-1] if said else f"es-play ended with {code}")
        return not self._every

    def _said(self) -> list[str]:
        """What es-play wrote on its standard error."""
        assert self._words is not None, "a film has a file for its words"
        self._words.seek(0)
        return self._words.read(MOST_WORDS).decode(errors="replace").strip().splitlines()

    def _forget_words(self) -> None:
        if self._words is not None:
            self._words.close()
            self._words = None

    def _give_up(self, why: str) -> None:
        self._every = 0
        self._note(f"no more films are made ({printable(why.removeprefix('es-play: '), 300)}); training goes on")


def refuse_without_film(every: int) -> None:
    """Raises UsageError where films are wanted and what writes them is missing."""
    if not every:
        return
    try:
        import PIL.Image  # noqa: F401 - is it there?
    except ImportError:
        raise UsageError(f"--video-every needs a package that is not installed (PIL): {INSTALL}") from None
