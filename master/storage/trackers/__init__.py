"""``--track``: writes a run's settings, figures and result for experiment trackers."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from master.storage.trackers.base import Tracker

#: The package that each tracker needs. Its name is also its extra's, and its module's in here.
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}


def parse_trackers(text: str) -> tuple[str, ...]:
    """``wandb,mlflow`` as names, each once. Raises UsageError, before anything begins, for an
    unknown one, or one whose package is not installed.
    """
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PACKAGES:
            raise UsageError(
                f"track is {name!r}: use {', '.join(PACKAGES)}, or several, separated by commas"
            )
        if find_spec(PACKAGES[name]) is None:
            raise UsageError(
                f"--track {name} needs the package {PACKAGES[name]}: pip install 'es-queue[{name}]'"
            )
    return names


def open_trackers(
    names: Iterable[str], run: str, run_dir: Path, config: RunConfig
) -> list[Tracker]:
    """The trackers of these names; each writes into the folder of its name in ``run_dir``."""
    # optional: each module's package
    modules = [import_module(f"{__name__}.{name}") for name in names]
    return [module.TRACKER(run, run_dir, config) for module in modules]
