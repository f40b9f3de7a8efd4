"""The base of trackers, and the figures that they get."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from es_queue.config.run_config import RunConfig
from master.display.format import Record, finite_or_none

USER_IN_URL = re.compile(r"//\S*@")
#: What is tracked of a generation: its name in a tracker, and its name in metrics.jsonl.
TAGS = {
    "evaluation/mean": "eval_mean",
    "evaluation/std": "eval_std",
    "evaluation/min": "eval_min",
    "evaluation/best": "eval_best",
    "training/return_mean": "return_mean",
    "training/return_std": "return_std",
    "training/return_max": "return_max",
    "training/fitness_mean": "fitness_mean",
    "training/episode_length": "length_mean",
    "training/cut_fraction": "cut_fraction",
    "search/sigma": "sigma",
    "search/norm": "norm",
    "search/update_ratio": "update_ratio",
    "search/centre_rank": "centre_rank",
    "run/generation": "generation",
    "run/steps_per_second": "steps_per_second",
    "run/workers": "workers",
    "run/seconds": "seconds",
}


class Tracker(ABC):
    """One run in the files of one tracker. Its package is third-party code: after any exception
    from it, training continues without it.
    """

    #: Its name, and that of its folder in the run's.
    name: ClassVar[str]

    def __init__(self, run: str, run_dir: Path, config: RunConfig) -> None:
        self._run, self._config, self._folder = run, config, run_dir / self.name
        self._is_open = self._is_broken = False

    def append(self, record: Record) -> str:
        """Write a generation's figures. Returns a sentence if that failed, which ends the
        tracker.
        """
        numbers = {tag: finite_or_none(record.get(name)) for tag, name in TAGS.items()}
        figures = {tag: value for tag, value in numbers.items() if value is not None}
        steps = int(finite_or_none(record.get("env_steps")) or 0)
        return self._attempt(lambda: self._write(figures, steps))

    def summary(self, record: Record) -> str:
        """Write the run's end with its best checkpoint. Returns a sentence if that failed."""
        return self._attempt(lambda: self._finish(record))

    def close(self) -> str:
        """Close its files; calling it again is harmless."""
        if not self._is_open:
            return ""
        self._is_open = False
        return self._attempt(self._close, opens=False)

    def _attempt(self, write: Callable[[], None], *, opens: bool = True) -> str:
        is_reported = self._is_broken
        if is_reported and opens:
            return ""
        try:
            if opens and not self._is_open:
                self._open()
                self._is_open = True
            write()
        except Exception as error:
            self._is_broken = True
            if not is_reported:
                return (
                    f"{self._folder} cannot be written ({without_users(error)}); "
                    "training continues without it"
                )
        return ""

    @abstractmethod
    def _open(self) -> None:
        """Called with the first figures."""

    @abstractmethod
    def _write(self, figures: dict[str, float], steps: int) -> None: ...

    def _finish(self, record: Record) -> None:  # noqa: B027 (TensorBoard has no such record)
        """The run has ended in order."""

    @abstractmethod
    def _close(self) -> None: ...


def summary_texts(record: Record) -> dict[str, str]:
    """The texts that are kept about a run's end."""
    return {name: str(record.get(name)) for name in ("state", "digest", "reproducible")}


def best_checkpoint(record: Record) -> Path | None:
    path = record.get("best_checkpoint")
    return Path(path) if isinstance(path, str) else None


def without_users(error: Exception) -> str:
    """An error in words, without the user and password of any address in it."""
    return f"{type(error).__name__}: {USER_IN_URL.sub('//', str(error))}"
