"""SGD with momentum, Adam and ClipUp: pure functions of a gradient to climb and a state.

Moments are float32, like the parameters: a checkpoint holds the whole state. Norms are float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.settings import AUTO, setting
from es_queue.numerics.arrays import Doubles, Floats, norm

Moments = dict[str, NDArray[Any]]


class OptimizerSettings:
    optimizer = setting(AUTO, "optimizer of the update", choices=(AUTO, "adam", "sgd", "clipup"))
    momentum = setting(0.9, "momentum of sgd and clipup", low=0.0, high=0.9999)


class Optimizer(ABC):
    """Turns the gradient of the fitness into the step that is added to the parameters."""

    learning_rate: float

    def start(self, size: int) -> Moments:
        """The state before the first step for ``size`` parameters."""
        return {"velocity": np.zeros(size, np.float32)}

    @abstractmethod
    def step(self, moments: Moments, gradient: Doubles) -> tuple[Floats, Moments]:
        """The step uphill, float32 [size], and the state after it, from ``moments``, which may
        include other arrays.
        """


@dataclass(frozen=True)
class SGD(Optimizer):
    """v ← μ v + (1 − μ) g; the step is α v (the momentum of evolution-strategies-starter,
    ``optimizers.py``).
    """

    learning_rate: float
    momentum: float = 0.9

    def step(self, moments: Moments, gradient: Doubles) -> tuple[Floats, Moments]:
        velocity = blend(self.momentum, moments["velocity"], gradient.astype(np.float32))
        return np.float32(self.learning_rate) * velocity, {"velocity": velocity}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), bias-corrected in the order of its section 2, as the starter does.

    a = α √(1 − β₂ᵗ) / (1 − β₁ᵗ); the step is a m / (√v + ε).
    """

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def start(self, size: int) -> Moments:
        zeros = np.zeros(size, np.float32)
        return {"first_moment": zeros, "second_moment": zeros.copy(), "step": np.array(0, np.int64)}

    def step(self, moments: Moments, gradient: Doubles) -> tuple[Floats, Moments]:
        count = int(moments["step"]) + 1
        slope = gradient.astype(np.float32)
        first = blend(self.beta1, moments["first_moment"], slope)
        second = blend(self.beta2, moments["second_moment"], np.square(slope))
        rate = self.learning_rate * math.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
        root: Floats = np.sqrt(second)
        return np.float32(rate) * first / (root + np.float32(self.epsilon)), {
            "first_moment": first,
            "second_moment": second,
            "step": np.array(count, np.int64),
        }


@dataclass(frozen=True)
class ClipUp(Optimizer):
    """ClipUp (Toklu, Liskowski, Srivastava 2020, algorithm 1): a step of fixed length, with
    momentum, bounded.

    v ← m v + α g/‖g‖, the second term absent when g = 0; then ‖v‖ ≤ max_speed by scaling. The step
    is v.
    """

    learning_rate: float
    max_speed: float
    momentum: float = 0.9

    def step(self, moments: Moments, gradient: Doubles) -> tuple[Floats, Moments]:
        velocity = np.float32(self.momentum) * moments["velocity"]
        length = norm(gradient)
        if length > 0:
            velocity = velocity + (gradient * (self.learning_rate / length)).astype(np.float32)
        speed = norm(velocity)
        if speed > self.max_speed:
            velocity = velocity * np.float32(self.max_speed / speed)
        return velocity, {"velocity": velocity}


def make_optimizer(
    name: str, learning_rate: float, momentum: float, max_speed: float = 0.0
) -> Optimizer:
    """The optimizer adam, sgd or clipup, with the settings that it uses."""
    known: dict[str, Optimizer] = {
        "adam": Adam(learning_rate),
        "sgd": SGD(learning_rate, momentum),
        "clipup": ClipUp(learning_rate, max_speed, momentum),
    }
    return known[name]


def blend(keep: float, old: Floats, new: Floats) -> Floats:
    """keep · old + (1 − keep) · new, element by element in float32."""
    return np.float32(keep) * old + np.float32(1 - keep) * new
