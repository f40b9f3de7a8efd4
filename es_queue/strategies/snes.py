"""Wierstra, Schaul, Glasmachers, Sun, Peters, Schmidhuber 2014, Natural evolution strategies
(separable NES, SNES).

https://jmlr.org/papers/v15/wierstra14a.html, algorithm 6 and table 1: the natural gradient of a
Gaussian with a deviation for each parameter. A slot is one individual, so the population can be any
number from two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from es_queue.config.scaling import ScaleRule
from es_queue.config.settings import setting
from es_queue.numerics.arrays import (
    Doubles,
    Floats,
    norm,
    squared_less_one,
    steady_exp,
    weighted_rows,
)
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.gradient import AdaptiveSigma
from es_queue.strategies.shaping import all_equal, blended_rank, with_failures_last


class SNES(AdaptiveSigma):
    """μ ← μ + η_μ σ⊙Σ u s and σ ← σ⊙exp(½ η_σ Σ u (s² − 1)) over individuals μ + σ⊙s."""

    class Settings(AdaptiveSigma.Settings):
        linear_share = setting(
            0.0,
            "share of centred ranks in the utilities; the rest are the paper's log ranks",
            low=0.0,
            high=1.0,
        )

    name = "snes"
    per_slot = 1
    asynchronous = True
    scale_rules: ClassVar[Mapping[str, ScaleRule]] = {"": ScaleRule(noise=4.0, rate=1.0)}
    #: η_μ (table 1).
    LEARNING_RATE = 1.0

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """One step of μ (``parameters``) and of σ; none if no two individuals differ."""
        fitness = with_failures_last(batch.fitness[:, 0])
        if all_equal(fitness):
            return self.stay(state)
        shaped = blended_rank(fitness, self.config.linear_share)
        gradient = self.weighted_steps(state["sigma"], batch, shaped)
        step = (self.step_rate * gradient).astype(np.float32)
        after = {
            "parameters": self.moved(state["parameters"], step),
            "sigma": self.next_sigma(state["sigma"], batch, shaped),
        }
        return after, self.figures(after, norm(gradient), norm(step))

    def next_sigma(self, sigma: Floats, batch: Batch, shaped: Doubles) -> Floats:
        """σ⊙exp(½ η_σ Σ u (s² − 1)), float32 [size]; σ itself when η_σ is 0.

        The natural gradient of ln σ does not contain σ, so the formula also holds for perturbations
        with another σ.
        """
        given = self.config.sigma_learning_rate  # η_σ (table 1)
        rate = (3 + math.log(self.size)) / (5 * math.sqrt(self.size)) if given < 0 else given
        if rate == 0:
            return sigma
        slope = weighted_rows(batch.noise, batch.noise_indices, shaped, self.size, squared_less_one)
        return (sigma * steady_exp(0.5 * rate * slope)).astype(np.float32)
