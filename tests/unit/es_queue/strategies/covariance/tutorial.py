"""The tutorial's formulas in plain loops, for the tests of the strategies that use them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from es_queue import testing
from es_queue.strategies import STRATEGIES, Batch, State, Strategy

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Paper:
    """The weights and rates of λ individuals and n parameters (Hansen 2016, table 1)."""

    count: int
    size: int
    active: bool
    speed: float = 1.0
    weights: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, speed = self.size, self.speed
        raw = [math.log((self.count + 1) / 2) - math.log(i + 1) for i in range(self.count)]
        better, worse = [w for w in raw if w > 0], [w for w in raw if w <= 0]
        self.mu_eff = sum(better) ** 2 / sum(w * w for w in better)
        self.c_sigma = (self.mu_eff + 2) / (n + self.mu_eff + 5)
        self.damping = 1 + self.c_sigma
        self.damping += 2 * max(0, math.sqrt((self.mu_eff - 1) / (n + 1)) - 1)
        self.c_c = (4 + self.mu_eff / n) / (n + 4 + 2 * self.mu_eff / n)
        self.c_1 = min(1.0, speed * 2 / ((n + 1.3) ** 2 + self.mu_eff))
        rank_mu = 2 * (self.mu_eff - 2 + 1 / self.mu_eff) / ((n + 2) ** 2 + self.mu_eff)
        self.c_mu = min(1 - self.c_1, speed * rank_mu)
        mass = sum(worse) ** 2 / sum(w * w for w in worse)
        limit = min(
            1 + self.c_1 / self.c_mu,
            1 + 2 * mass / (self.mu_eff + 2),
            (1 - self.c_1 - self.c_mu) / (n * self.c_mu),
        )
        scale = limit / -sum(worse) if self.active else 0.0
        self.weights = [w / sum(better) for w in better] + [scale * w for w in worse]
        self.normal = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))

    def bounded(self, rows: Floats) -> list[float]:
        """w° of rows, best first."""
        return [
            weight if weight >= 0 else weight * self.size / float(row @ row)
            for weight, row in zip(self.weights, rows, strict=True)
        ]

    def mean(self, vectors: Floats) -> Floats:
        """Over the better half."""
        pairs = zip(self.weights, vectors, strict=True)
        return np.asarray(sum(weight * vector for weight, vector in pairs if weight > 0))

    def path(self, before: Floats, rate: float, mean: Floats) -> Floats:
        return (1 - rate) * before + math.sqrt(rate * (2 - rate) * self.mu_eff) * mean


def middle(name: str, **settings: Any) -> tuple[Strategy, State, Batch, Floats]:
    """A strategy in the middle of a run on the sphere, a batch, and its rows z, best first."""
    strategy = testing.sample_strategy(STRATEGIES[name], **settings)
    state = testing.begin(strategy, 5)
    batch = testing.run_generation(strategy, state, 9)
    order = np.argsort(-batch.fitness[:, 0], kind="stable")
    rows = testing.NOISE.rows(batch.noise_indices[order], 0, strategy.size)
    return strategy, state, batch, rows.astype(np.float64)


def doubles(state: State) -> dict[str, Floats]:
    return {name: array.astype(np.float64) for name, array in state.items()}


def sigma_after(paper: Paper, sigma: Floats, path: Floats) -> Floats:
    """Cumulative step-size adaptation."""
    exponent = paper.c_sigma / paper.damping * (np.linalg.norm(path) / paper.normal - 1)
    return np.asarray(sigma * math.exp(exponent))
