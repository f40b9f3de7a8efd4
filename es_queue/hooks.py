"""What a program of the user's does while a run trains: ``--hook module:Class``, or
``train(hooks=[…])``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]


class Hook:
    """Events of a run, each of which does nothing by default. They are called in the master's
    process, one after another; the next generation waits for them.

    A hook that raises is reported once, by its name, and is not called again; training continues
    without it. Nothing that a hook does changes what is trained.
    """

    def on_start(self, run: Figures) -> None:
        """The run begins, or continues. run: ``run``, ``run_dir``, and ``config``, the settings."""

    def on_generation(self, figures: Figures) -> None:
        """A generation has ended. figures: its line of metrics.jsonl."""

    def on_evaluation(self, figures: Figures) -> None:
        """The same, of a generation with an evaluation, after ``on_generation``."""

    def on_end(self, summary: Figures) -> None:
        """The run has finished or was stopped. summary: summary.json."""
