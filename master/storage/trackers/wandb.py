"""Weights & Biases, offline unless WANDB_MODE changes that; ``wandb sync`` uploads the files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from master.display.format import Record
from master.storage.trackers.base import Tracker, best_checkpoint, summary_texts


class WandbTracker(Tracker):
    """Its steps are generations, so that it drops those that a resumed run repeats. Its horizontal
    axis is environment steps.
    """

    name = "wandb"
    _wandb_run: Any = None
    _exit_code = 1

    def _open(self) -> None:
        # optional: wandb
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._wandb_run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "es-queue"),
            id=self._run,
            name=self._run,
            dir=str(self._folder.parent),  # where it makes the folder "wandb"
            mode=mode,
            # What is online already is continued; files of an offline run are always new.
            resume="allow" if mode == "online" else None,
            config=self._config.to_dict(),
            # A command line may hold a Redis URL with a password, so nothing of this process is
            # recorded.
            settings=wandb.Settings(
                silent=True,
                init_timeout=20,  # seconds; the master's lease must be renewed meanwhile
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        self._wandb_run.define_metric("*", step_metric="env_steps")

    def _write(self, figures: dict[str, float], steps: int) -> None:
        self._wandb_run.log(
            {**figures, "env_steps": steps}, step=int(figures.get("run/generation", 0))
        )

    def _finish(self, record: Record) -> None:
        self._wandb_run.summary.update(summary_texts(record))
        if path := best_checkpoint(record):
            folder = Path(self._wandb_run.dir)
            copy = shutil.copyfile(path, folder / path.name)
            self._wandb_run.save(str(copy), base_path=str(folder), policy="now")
        self._exit_code = 0

    def _close(self) -> None:
        self._wandb_run.finish(exit_code=self._exit_code)


TRACKER = WandbTracker
