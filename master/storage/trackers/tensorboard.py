"""TensorBoard's event files."""

from __future__ import annotations

from typing import Any

from master.storage.trackers.base import Tracker


class TensorBoardTracker(Tracker):
    """TensorBoard shows once what a resumed run repeats. The horizontal axis is environment steps;
    wall-clock is TensorBoard's own.
    """

    name = "tensorboard"
    _writer: Any = None

    def _open(self) -> None:
        """The first step opens the writer, because a resumed run repeats steps."""

    def _write(self, figures: dict[str, float], steps: int) -> None:
        if self._writer is None:
            # optional: tensorboardX
            from tensorboardX import SummaryWriter

            former = self._folder.exists() and any(self._folder.iterdir())
            self._writer = SummaryWriter(str(self._folder), purge_step=steps if former else None)
        for tag, value in figures.items():
            self._writer.add_scalar(tag, value, steps)
        self._writer.flush()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()


TRACKER = TensorBoardTracker
