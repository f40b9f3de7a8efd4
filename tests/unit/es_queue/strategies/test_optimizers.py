"""The optimizers against their papers' formulas in float64, and their promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.strategies.optimizers import SGD, Adam, ClipUp, Optimizer

GRADIENTS = np.random.default_rng(0).standard_normal((20, 6))


def steps_of(optimizer: Optimizer, gradients: np.ndarray) -> np.ndarray:
    moments, steps = optimizer.start(gradients.shape[1]), []
    for gradient in gradients:
        step, moments = optimizer.step(moments, gradient)
        steps.append(step)
    return np.array(steps)


def test_sgd_averages_gradients_with_its_momentum() -> None:
    velocity, wanted = np.zeros(6), []
    for gradient in GRADIENTS:
        velocity = 0.9 * velocity + 0.1 * gradient
        wanted.append(0.5 * velocity)
    np.testing.assert_allclose(steps_of(SGD(0.5, 0.9), GRADIENTS), wanted, rtol=1e-4, atol=1e-6)


def test_adam_corrects_the_bias_of_both_moments() -> None:
    first, second, wanted = np.zeros(6), np.zeros(6), []
    for count, gradient in enumerate(GRADIENTS, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        wanted.append(0.01 * (first / (1 - 0.9**count)) / np.sqrt(second / (1 - 0.999**count)))
    np.testing.assert_allclose(steps_of(Adam(0.01), GRADIENTS), wanted, rtol=1e-3, atol=1e-6)


def test_adams_epsilon_stands_beside_the_root_as_in_the_starter() -> None:
    adam = Adam(1.0, beta1=0.0, beta2=0.0, epsilon=0.5)
    step, _ = adam.step(adam.start(1), np.array([2.0]))
    assert step[0] == pytest.approx(2 / 2.5)


def test_clipup_steps_by_the_learning_rate_whatever_the_gradients_size() -> None:
    clipup = ClipUp(0.1, 10.0, 0.9)
    small, _ = clipup.step(clipup.start(2), np.array([3e-30, 4e-30]))
    large, _ = clipup.step(clipup.start(2), np.array([3e100, 4e100]))
    np.testing.assert_allclose([small, large], [[0.06, 0.08]] * 2, rtol=1e-6)


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 10), st.floats(1e-3, 10), st.floats(0, 0.999))
@settings(max_examples=60, deadline=None)
def test_clipup_is_never_faster_than_its_top_speed(
    seed: int, learning_rate: float, max_speed: float, momentum: float
) -> None:
    drift = np.random.default_rng(seed).standard_normal((12, 5)) + 1
    speeds = np.linalg.norm(steps_of(ClipUp(learning_rate, max_speed, momentum), drift), axis=1)
    assert (speeds <= max_speed * (1 + 1e-6)).all()
