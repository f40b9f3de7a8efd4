"""``--tensorboard``: a run's figures as TensorBoard reads them, in the folder ``tensorboard`` of
the run.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from es_queue.errors import UsageError
from master.display.format import Record, finite_or_none

TENSORBOARD_FOLDER = "tensorboard"
INSTALL = "pip install 'es-queue[tensorboard]'"
#: What is drawn of a generation, by its name in TensorBoard. Over environment steps of training;
#: wall-clock is TensorBoard's own.
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


def validate_tensorboard_support(enabled: bool) -> None:
    """Raise UsageError, before anything begins, where the package that writes event files is not
    installed.
    """
    if enabled and find_spec("tensorboardX") is None:
        raise UsageError(f"--tensorboard needs the package tensorboardX: {INSTALL}")


class EventFile:
    """A run's event file; opened with the first generation. What a resumed run did twice
    TensorBoard shows once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._is_broken = False

    def append(self, record: Record) -> str:
        """Write a generation's figures; a sentence where that failed, which ends it."""
        if self._is_broken:
            return ""
        step = int(finite_or_none(record.get("env_steps")) or 0)
        try:
            if self._writer is None:
                self._writer = self._open(step)
            for tag, name in TAGS.items():
                value = finite_or_none(record.get(name))
                if value is not None:
                    self._writer.add_scalar(tag, value, step)
            self._writer.flush()
        except (
            Exception
        ) as error:  # a library of others, in a thread of its own: whatever it is, the run goes on
            self._is_broken = True
            return (
                f"{self._folder} cannot be written ({type(error).__name__}: {error}); training "
                f"continues without it"
            )
        return ""

    def _open(self, step: int) -> Any:
        # optional: tensorboardX
        from tensorboardX import SummaryWriter

        former = self._folder.exists() and any(self._folder.iterdir())
        return SummaryWriter(str(self._folder), purge_step=step if former else None)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
