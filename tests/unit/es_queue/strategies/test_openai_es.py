"""openai_es against the formula of the paper's code, written out in a loop."""

from __future__ import annotations

from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import ArrayNoise
from es_queue.strategies import Batch, make_strategy
from es_queue.strategies.openai_es import OpenaiES
from es_queue.strategies.shaping import utilities
from tests.cases import each_case

SIZE, PAIRS = 7, 9
NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(500, dtype=np.float32))
START = np.linspace(-1, 1, SIZE).astype(np.float32)
BATCH = Batch(
    NOISE, np.arange(0, 50 * PAIRS, 50), np.random.default_rng(1).standard_normal((PAIRS, 2))
)


def made(**settings: Any) -> OpenaiES:
    return OpenaiES(RunConfig(strategy="openai_es", population=2 * PAIRS, **settings), SIZE)


def looped(shaping: str, l2: float) -> np.ndarray:
    gradient, shaped = np.zeros(SIZE), utilities(shaping, BATCH.fitness)
    for slot, index in enumerate(BATCH.noise_indices):
        epsilon = NOISE.noise[index : index + SIZE].astype(np.float64)
        gradient += (shaped[slot, 0] - shaped[slot, 1]) * epsilon / (2 * PAIRS)
    return gradient - l2 * START


@each_case("shaping", ["centered-rank", "centered-sign-rank", "sign", "z-score", "log-rank"])
@each_case("l2", [0.0, 0.3])
def test_the_gradient_is_that_of_a_naive_loop(shaping: str, l2: float) -> None:
    gradient = made(shaping=shaping, l2=l2).gradient(START, BATCH)
    np.testing.assert_allclose(gradient, looped(shaping, l2), rtol=1e-4, atol=1e-6)


@each_case("sigma", [0.05, 0.4])
def test_the_true_form_of_the_gradient_is_divided_by_sigma_before_the_decay(sigma: float) -> None:
    true = made(gradient_form="true", sigma=sigma, l2=0.02).gradient(START, BATCH)
    np.testing.assert_allclose(
        true, looped("centered-rank", 0.0) / sigma - 0.02 * START, rtol=1e-5, atol=1e-6
    )
    scheduled = make_strategy(
        RunConfig(
            strategy="openai_es",
            gradient_form="true",
            sigma=sigma,
            sigma_schedule="piecewise:3=0.5",
        ),
        SIZE,
        3,
    )
    assert isinstance(scheduled, OpenaiES)
    np.testing.assert_allclose(
        scheduled.gradient(START, BATCH),
        looped("centered-rank", 0.0) / (sigma / 2),
        rtol=1e-5,
        atol=1e-6,
    )


def test_l2_passes_through_adam_and_weight_decay_does_not() -> None:
    equal = Batch(NOISE, BATCH.noise_indices, np.zeros((PAIRS, 2)))
    pulled, decayed = made(l2=1e-2, learning_rate=0.01), made(weight_decay=0.1, learning_rate=0.01)
    by_l2, _ = pulled.learn(pulled.start(START), equal)
    by_decay, _ = decayed.learn(decayed.start(START), equal)
    # Adam makes any gradient, however small, a step of its learning rate.
    np.testing.assert_allclose(
        START - by_l2["parameters"], 0.01 * np.sign(START), rtol=1e-3, atol=1e-9
    )
    np.testing.assert_allclose(by_decay["parameters"], 0.9 * START, rtol=1e-6)
