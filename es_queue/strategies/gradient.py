"""Strategies that move their mean by steps, and those that also learn their deviations: one per
parameter or one for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, reduce
from typing import ClassVar

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import FORMS, parse_rate_schedule
from es_queue.config.settings import setting
from es_queue.numerics.arrays import Doubles, Floats, norm, weighted_rows
from es_queue.strategies.base import Batch, State, Strategy
from es_queue.strategies.optimizers import Optimizer, make_optimizer


class StepSettings(Strategy.Settings):
    learning_rate = setting(
        0.0,
        "step size of the update; auto is the strategy's own default",
        low=0.0,
        word="auto",
        live=True,
    )
    learning_rate_schedule = setting(
        "constant",
        "factor of the learning rate per generation: constant, exponential:RATE[,LEAST], "
        "linear:END,N or piecewise:N=FACTOR,...",
        form=parse_rate_schedule,
        forms=FORMS,
        metavar="SCHEDULE",
        live=True,
    )
    weight_decay = setting(
        0.0,
        "multiply the parameters by 1 - weight_decay after each step",
        low=0.0,
        high=1.0,
        live=True,
    )
    decay_schedule = setting(
        "constant",
        "multiply l2 and weight_decay by a factor that depends on the generation, written as "
        "in --learning-rate-schedule",
        form=parse_rate_schedule,
        forms=FORMS,
        metavar="SCHEDULE",
        live=True,
    )


class AveragedSettings(StepSettings):
    average_decay = setting(
        0.0,
        "share of the running average of the parameters that each generation keeps; above 0, the "
        "average is evaluated and saved",
        low=0.0,
        high=0.999,
    )


class GradientStrategy(Strategy):
    """A strategy whose centre moves by a step, and then decays."""

    Settings: ClassVar[type[Strategy.Settings]] = StepSettings
    #: Step size if the configuration gives none; the second by optimizer.
    LEARNING_RATE: ClassVar[float] = 1.0
    LEARNING_RATES: ClassVar[Mapping[str, float]] = {}

    @property
    def step_rate(self) -> float:
        default = self.LEARNING_RATES.get(self.optimizer_name(self.config), self.LEARNING_RATE)
        return (self.config.learning_rate or default) * self.pace.learning_rate

    @cached_property
    def optimizer(self) -> Optimizer:
        """Of a strategy that has ``optimizers``."""
        name, momentum = self.optimizer_name(self.config), self.config.momentum
        return make_optimizer(name, self.step_rate, momentum, self.max_speed)

    @property
    def max_speed(self) -> float:
        """ClipUp's longest step: by default two learning rates (its paper, section 3.2)."""
        return 2 * self.step_rate

    @classmethod
    def check_own(cls, config: RunConfig) -> None:
        super().check_own(config)
        if config.decay_schedule != "constant" and not (
            getattr(config, "l2", 0) or config.weight_decay
        ):
            why = "l2 and weight_decay are 0: set one of them, or leave the schedule out"
            raise config.refused("decay_schedule", why)

    def moved(self, parameters: Floats, step: Floats) -> Floats:
        """(1 − weight_decay)(θ + step), float32 [size]; the decay passes through no optimizer."""
        return np.float32(1 - self.config.weight_decay * self.pace.decay) * (parameters + step)


class LearntSigma(GradientStrategy):
    """A strategy whose state also has ``sigma``, float32 [n]: scheduled, and kept when settings
    change.
    """

    Settings: ClassVar[type[Strategy.Settings]] = AveragedSettings
    #: The first deviation, or 0 if ``RADIUS`` is the length ‖σε‖ of the first perturbations, in
    #: policies of any size.
    SIGMA: ClassVar[float] = 0.0
    RADIUS: ClassVar[float] = 1.8

    @property
    def first_sigma(self) -> float:
        """The deviation at the start, before its schedule."""
        return self.config.sigma or self.SIGMA or self.RADIUS / math.sqrt(self.size)

    @property
    def deviations(self) -> int:
        """n."""
        return 1

    def start(self, parameters: Floats) -> State:
        sigma = np.full(self.deviations, self.first_sigma * self.pace.sigma, np.float32)
        return {**super().start(parameters), "sigma": sigma}

    def spread(self, state: State) -> Floats:
        return state["sigma"]

    def migrate_state(self, state: State, before: Strategy) -> State:
        """The learnt σ, scaled to the root mean square that ``--set sigma`` names, else by the
        change of the schedule.
        """
        factor = self.pace.sigma / before.pace.sigma if before.pace.sigma > 0 else 1.0
        if self.config.sigma and self.config.sigma != before.config.sigma:
            now = self.sigma(state)
            factor = self.config.sigma * self.pace.sigma / now if now > 0 else 1.0
        if factor == 1.0:
            return state
        return {**state, "sigma": (state["sigma"] * factor).astype(np.float32)}


class AdaptiveSigma(LearntSigma):
    """A deviation for each parameter: ``sigma`` is float32 [size], and is published too."""

    class Settings(AveragedSettings):
        sigma_learning_rate = setting(
            -1.0,
            "step size of the learnt sigma; 0 keeps sigma fixed, auto is the strategy's own "
            "default",
            low=-1.0,
            word="auto",
        )

    @property
    def deviations(self) -> int:
        return self.size

    def published(self, state: State) -> Floats:
        """The centre and the deviations, float32 [2 · size]."""
        return np.concatenate([state["parameters"], state["sigma"]])

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """Individuals with the published deviations; the scalar ``sigma`` is not used."""
        return self.around(published, published[self.size :] * noise)

    def sigma(self, state: State) -> float:
        """The root mean square of the deviations, ‖σ‖/√size, for people."""
        return norm(state["sigma"]) / math.sqrt(self.size)

    def weighted_steps(self, sigma: Floats, batch: Batch, weights: Doubles) -> Doubles:
        """Σ w σ⊙ε, float64 [size], each perturbation with its own σ."""
        noise, indices, size = batch.noise, batch.noise_indices, self.size
        parts = (
            spread * weighted_rows(noise, indices[rows], weights[rows], size)
            for rows, spread in batch.by_spread(sigma)
        )
        return reduce(np.add, parts)


class AdaptiveSharedSigma(LearntSigma):
    """One deviation for all parameters: ``sigma`` is float32 [1], the publication's sigma."""

    def sigma(self, state: State) -> float:
        return float(state["sigma"][0])
