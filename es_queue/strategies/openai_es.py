"""Salimans, Ho, Chen, Sidor, Sutskever 2017, Evolution Strategies as a Scalable Alternative to
Reinforcement Learning.

https://arxiv.org/abs/1703.03864, in the form of the authors' evolution-strategies-starter
(``es.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from es_queue.config.scaling import ScaleRule
from es_queue.config.settings import setting
from es_queue.numerics.arrays import Doubles, Floats, norm, weighted_rows
from es_queue.strategies.base import Batch, Info, State
from es_queue.strategies.gradient import AveragedSettings, GradientStrategy, StepSettings
from es_queue.strategies.optimizers import OptimizerSettings
from es_queue.strategies.shaping import ShapingSettings, utilities


class SharedSigmaGradient(GradientStrategy):
    """The gradient g = (1/2n) Σ (u⁺ − u⁻) ε − l2 θ of utilities over n pairs, for Adam or SGD.

    Like the starter's, it lacks the factor 1/σ: this makes no difference to Adam, but l2 weighs
    more. If ``gradient_form`` is true, the sum is divided by σ, as in the paper.
    """

    class Settings(OptimizerSettings, StepSettings):
        gradient_form = setting(
            "starter",
            "starter: the gradient of evolution-strategies-starter; true: divided by sigma, as in "
            "the paper",
            choices=("starter", "true"),
        )
        l2 = setting(0.0, "coefficient of -l2*parameters added to the gradient", low=0.0, live=True)

    optimizers = ("adam", "sgd")
    scale_rules: ClassVar[Mapping[str, ScaleRule]] = {
        "adam": ScaleRule(noise=8.0, rate=0.5),
        "sgd": ScaleRule(noise=8.0, rate=1.0),
    }
    #: The starter's 0.02 suits its large networks, not a linear policy.
    SIGMA = 0.05
    #: Adam's is about the step of each parameter. SGD's is large because g is (without 1/σ, of
    #: ranks) small.
    LEARNING_RATES: ClassVar[dict[str, float]] = {"adam": 0.03, "sgd": 0.5}

    def start(self, parameters: Floats) -> State:
        return {**super().start(parameters), **self.optimizer.start(self.size)}

    def climb(self, parameters: Floats, batch: Batch, shaped: Doubles) -> Doubles:
        """g of utilities ``shaped`` [S, 2], float64 [size] (the paper's algorithm 2, line 11, with
        mirrored sampling).
        """
        weights = (shaped[:, 0] - shaped[:, 1]) / shaped.size
        slope = weighted_rows(batch.noise, batch.noise_indices, weights, self.size)
        if self.config.gradient_form == "true":
            slope = slope / self.sigma({})
        decay = float(self.config.l2) * self.pace.decay
        return slope - decay * parameters.astype(np.float64)


class OpenaiES(SharedSigmaGradient):
    """The gradient of shaped fitness, climbed by Adam or SGD."""

    class Settings(ShapingSettings, SharedSigmaGradient.Settings, AveragedSettings):
        pass

    name = "openai_es"
    asynchronous = True

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        shaped = utilities(self.config.shaping, batch.fitness)
        gradient = self.climb(state["parameters"], batch, shaped)
        step, moments = self.optimizer.step(state, gradient)
        after = {"parameters": self.moved(state["parameters"], step), **moments}
        return after, self.figures(after, norm(gradient), norm(step))
