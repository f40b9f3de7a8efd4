"""Batches of several publications (--schedule async): each perturbation counts with its own
deviations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.strategies.shaping import utilities
from tests.unit.es_queue.strategies.test_pgpe import (
    BATCH,
    INDICES,
    NOISE,
    PAIRS,
    SIGMA,
    SIZE,
    START,
    made,
)

OLD = np.linspace(0.5, 0.2, SIZE).astype(np.float32)
FIRST = 4


def learnt(parts: list[tuple[slice, Floats]], **settings: Any) -> dict[str, np.ndarray]:
    strategy = made(
        optimizer="sgd", learning_rate=1.0, momentum=0.0, sigma_max_change=0.99, **settings
    )
    return strategy.learn({**strategy.start(START), "sigma": SIGMA}, replace(BATCH, spreads=parts))[
        0
    ]


def test_both_gradients_of_two_parts_are_those_of_a_naive_loop() -> None:
    after = learnt([(slice(0, FIRST), OLD), (slice(FIRST, PAIRS), SIGMA)])
    shaped = utilities("centered-rank", BATCH.fitness)
    centre, deviation = np.zeros(SIZE), np.zeros(SIZE)
    for row, ((plus, minus), index) in enumerate(zip(shaped - shaped.mean(), INDICES, strict=True)):
        sigma, epsilon = (
            (OLD if row < FIRST else SIGMA),
            NOISE.noise[index : index + SIZE].astype(np.float64),
        )
        centre += (plus - minus) / 2 * sigma * epsilon / PAIRS
        deviation += (plus + minus) / 2 * sigma * (epsilon**2 - 1) / PAIRS
    np.testing.assert_allclose(after["parameters"], START + centre, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], SIGMA + 0.1 * deviation, rtol=1e-5)
    assert not np.allclose(after["parameters"], learnt([])["parameters"]), (
        "the older deviations make a difference"
    )
