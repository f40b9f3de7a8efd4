"""Strategies that move their mean by steps: learning rate and decay."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.strategies.base import Strategy


class GradientStrategy(Strategy):
    """A strategy whose centre moves by a step, and then decays."""

    settings: ClassVar[tuple[str, ...]] = (
        "learning_rate",
        "learning_rate_schedule",
        "weight_decay",
    )

    def moved(self, parameters: Floats, step: Floats) -> Floats:
        """(1 − weight_decay)(θ + step), float32 [size]; the decay passes through no optimizer."""
        return np.float32(1 - self.config.weight_decay * self.pace.decay) * (parameters + step)
