"""Sehnke et al. 2010, Parameter-exploring policy gradients (PGPE), with ClipUp (Toklu, Liskowski,
Srivastava 2020).

https://arxiv.org/abs/2008.02387: symmetric sampling, and a learnt deviation for each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import ClassVar

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.scaling import ScaleRule
from es_queue.config.settings import declared, setting
from es_queue.numerics.arrays import Doubles, Floats, norm, squared_less_one, weighted_rows
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.gradient import AdaptiveSigma
from es_queue.strategies.optimizers import OptimizerSettings
from es_queue.strategies.shaping import ShapingSettings, utilities


class PGPE(AdaptiveSigma):
    """∇μ = (1/n) Σ ½(u⁺ − u⁻) σ⊙ε and ∇σ = (1/n) Σ ½(u⁺ + u⁻) σ⊙(ε² − 1) over n pairs."""

    class Settings(OptimizerSettings, ShapingSettings, AdaptiveSigma.Settings):
        max_speed = setting(
            0.0, "longest step of clipup; auto is twice the learning rate", low=0.0, word="auto"
        )
        sigma_max_change = setting(
            0.2, "largest relative change of the learnt sigma per generation", low=0.0, high=0.99
        )

    name = "pgpe"
    asynchronous = True
    optimizers = ("clipup", "adam", "sgd")
    scale_rules: ClassVar[Mapping[str, ScaleRule]] = {
        "clipup": ScaleRule(noise=4.0, rate=0.5),
        "adam": ScaleRule(noise=4.0, rate=0.5),
        "sgd": ScaleRule(noise=4.0, rate=1.0),
    }
    #: ClipUp's is the length of a step before momentum; Adam's about the step of each parameter;
    #: SGD's is large because ∇μ has a factor σ where the gradient of the fitness has 1/σ.
    LEARNING_RATES: ClassVar[dict[str, float]] = {"clipup": 0.06, "adam": 0.02, "sgd": 5.0}
    #: α_σ (the paper's).
    SIGMA_LEARNING_RATE = 0.1

    @classmethod
    def check_own(cls, config: RunConfig) -> None:
        super().check_own(config)
        name = cls.optimizer_name(config)
        if config.max_speed and name != "clipup":
            fix = "leave it out, or use the optimizer clipup"
            raise config.refused("max_speed", f"the optimizer {name} does not use it: {fix}")
        known = declared(cls.Settings)["sigma_max_change"]
        if config.sigma_learning_rate == 0 and config.sigma_max_change != known.default:
            why = "sigma_learning_rate is 0, so sigma is fixed: leave sigma_max_change out, or"
            raise config.refused("sigma_max_change", f"{why} set sigma_learning_rate above 0")

    @property
    def longest(self) -> float:
        """ClipUp's longest step without a schedule; that of its default rate for other optimizers,
        whose rates are no lengths.
        """
        is_clipup = self.optimizer_name(self.config) == "clipup"
        rate = self.config.learning_rate if is_clipup else 0.0
        return self.config.max_speed or 2 * (rate or self.LEARNING_RATES["clipup"])

    @property
    def max_speed(self) -> float:
        return self.longest * self.pace.learning_rate

    @property
    def first_sigma(self) -> float:
        """The first ‖σε‖ is 15 longest steps (the paper's guideline, section 3.2)."""
        return self.config.sigma or 15 * self.longest / math.sqrt(self.size)

    def start(self, parameters: Floats) -> State:
        return {**super().start(parameters), **self.optimizer.start(self.size)}

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        shaped = utilities(self.config.shaping, batch.fitness)
        shaped = shaped - shaped.mean()  # with a common offset, ∇σ would grow or shrink σ
        # ∇μ (Sehnke et al., equation 15, times σ²)
        weights = (shaped[:, 0] - shaped[:, 1]) / shaped.size
        gradient = self.weighted_steps(state["sigma"], batch, weights)
        step, moments = self.optimizer.step(state, gradient)
        sigma = self.next_sigma(state["sigma"], batch, shaped)
        after = {"parameters": self.moved(state["parameters"], step), "sigma": sigma, **moments}
        return after, self.figures(after, norm(gradient), norm(step))

    def next_sigma(self, sigma: Floats, batch: Batch, shaped: Doubles) -> Floats:
        """clip(σ + α_σ ∇σ, (1 − c) σ, (1 + c) σ), float32 [size]; σ itself when α_σ is 0."""
        given, most = self.config.sigma_learning_rate, self.config.sigma_max_change
        rate = self.SIGMA_LEARNING_RATE if given < 0 else given
        if rate == 0:
            return sigma
        noise, indices, size = batch.noise, batch.noise_indices, self.size
        weights = (shaped[:, 0] + shaped[:, 1]) / shaped.size
        slopes = (
            (1.0 if spread is sigma else spread / sigma)
            * weighted_rows(noise, indices[rows], weights[rows], size, squared_less_one)
            for rows, spread in batch.by_spread(sigma)
        )
        change = np.clip(rate * reduce(np.add, slopes), -most, most)
        return (sigma * (1 + change)).astype(np.float32)
