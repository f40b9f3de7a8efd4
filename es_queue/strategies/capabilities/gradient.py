"""Strategies that move their mean by steps: learning rate and decay."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from es_queue.config.declarations import Setting
from es_queue.numerics.arrays import Floats
from es_queue.strategies.base import Strategy

#: What strategies declare whose one centre can be averaged (``es_queue.strategies.averaged``).
AVERAGE_DECAY = Setting(
    "average_decay",
    0.0,
    "share of the running average of the parameters that each generation keeps; above 0, the "
    "average is evaluated and saved",
    low=0.0,
    high=0.999,
)


class GradientStrategy(Strategy):
    """A strategy whose centre moves by a step, and then decays."""

    settings: ClassVar[tuple[Setting, ...]] = (
        Setting(
            "learning_rate",
            0.0,
            "step size of the update; auto is the strategy's own default",
            low=0.0,
            default_word="auto",
        ),
        Setting(
            "learning_rate_schedule",
            "constant",
            "factor of the learning rate per generation: constant, exponential:RATE[,LEAST], "
            "linear:END,N or piecewise:N=FACTOR,...",
        ),
        Setting(
            "weight_decay",
            0.0,
            "multiply the parameters by 1 - weight_decay after each step",
            low=0.0,
            high=1.0,
        ),
    )

    def moved(self, parameters: Floats, step: Floats) -> Floats:
        """(1 − weight_decay)(θ + step), float32 [size]; the decay passes through no optimizer."""
        return np.float32(1 - self.config.weight_decay * self.pace.decay) * (parameters + step)
