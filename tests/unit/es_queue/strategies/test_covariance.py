"""Strategies with a shape against their papers' formulas in plain loops, with whole matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from es_queue import testing
from es_queue.errors import UsageError
from es_queue.strategies import STRATEGIES, Batch, State, Strategy
from es_queue.strategies.covariance import CMAES, LMMAES, MOST_PARAMETERS, XNES
from tests.cases import each_case
from tests.parts import cores

SIZE = 12
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


# --- csa_es


@each_case("rate", [1.0, 0.3])
def test_a_step_of_csa_es_is_the_papers(rate: float) -> None:
    strategy, state, batch, rows = middle("csa_es", learning_rate=rate)
    paper, before = Paper(32, strategy.size, active=False), doubles(state)
    mean = paper.mean(rows)
    path = paper.path(before["path"], paper.c_sigma, mean)
    after, info = strategy.learn(state, batch)
    parameters = before["parameters"] + rate * before["sigma"] * mean
    np.testing.assert_allclose(after["parameters"], parameters, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["path"], path, rtol=1e-4, atol=1e-5)
    sigma = sigma_after(paper, before["sigma"], path)
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-5)
    assert info["sigma"] == pytest.approx(float(sigma[0]), rel=1e-5)


# --- sep_cma_es


@each_case("active", [True, False])
@each_case("length", [1.0, 30.0])
def test_a_step_of_sep_cma_es_is_the_papers(active: bool, length: float) -> None:
    strategy, state, batch, rows = middle("sep_cma_es", active=active)
    state["path"][:] = length / math.sqrt(SIZE)
    paper, before = Paper(32, SIZE, active, (SIZE + 2) / 3), doubles(state)
    mean = paper.mean(rows * before["deviations"])
    path = paper.path(before["path"], paper.c_sigma, paper.mean(rows))
    after, _ = strategy.learn(state, batch)
    parameters = before["parameters"] + before["sigma"] * mean
    np.testing.assert_allclose(after["parameters"], parameters, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], sigma_after(paper, before["sigma"], path), rtol=1e-5)
    moves = 1.0 if length == 1 else 0.0
    covariance_path = (1 - paper.c_c) * before["covariance_path"]
    covariance_path += moves * math.sqrt(paper.c_c * (2 - paper.c_c) * paper.mu_eff) * mean
    np.testing.assert_allclose(after["covariance_path"], covariance_path, rtol=1e-4, atol=1e-5)
    variances = diagonal(paper, before["deviations"] ** 2, covariance_path, rows, moves)
    np.testing.assert_allclose(after["deviations"] ** 2, variances, rtol=1e-4)


def diagonal(paper: Paper, before: Floats, path: Floats, rows: Floats, moves: float) -> Floats:
    """Equation 47 of the tutorial for each variance."""
    delta = (1 - moves) * paper.c_c * (2 - paper.c_c)
    after = np.empty(SIZE)
    for j in range(SIZE):
        samples = zip(paper.bounded(rows), rows, strict=True)
        rank_mu = sum(weight * before[j] * row[j] ** 2 for weight, row in samples)
        kept = 1 + paper.c_1 * delta - paper.c_1 - paper.c_mu * sum(paper.weights)
        after[j] = kept * before[j] + paper.c_1 * path[j] ** 2 + paper.c_mu * rank_mu
    return after


# --- lm_ma_es


#: So few that all of the paper's c_c,j stay below their bound.
FEW = 4


def applied(directions: Floats, z: Floats) -> Floats:
    """Lines 6 to 9."""
    d = z
    for place, direction in enumerate(directions):
        c_d = 1 / (1.5**place * SIZE)
        d = (1 - c_d) * d + c_d * direction * (direction @ d)
    return d


@each_case("generations", [0, 3, 30])
def test_a_step_of_lm_ma_es_is_the_papers(generations: int) -> None:
    strategy = testing.sample_strategy(LMMAES, population=FEW)
    state = testing.begin(strategy, generations)
    batch = testing.run_generation(strategy, state, 99)
    order = np.argsort(-batch.fitness[:, 0], kind="stable")
    rows = testing.NOISE.rows(batch.noise_indices[order], 0, SIZE).astype(np.float64)
    paper, before = Paper(FEW, SIZE, active=False), doubles(state)
    factors = before["directions"][: min(generations, 4 + int(3 * math.log(SIZE)))]
    after, _ = strategy.learn(state, batch)
    step = before["sigma"] * paper.mean(np.array([applied(factors, row) for row in rows]))
    np.testing.assert_allclose(after["parameters"], before["parameters"] + step, atol=1e-5)
    c_sigma = min(2 * FEW / SIZE, 0.5)
    path = paper.path(before["path"], c_sigma, paper.mean(rows))
    sigma = before["sigma"] * math.exp(c_sigma / 2 * (path @ path / SIZE - 1))
    np.testing.assert_allclose(after["sigma"], sigma, rtol=1e-4)
    for place, direction in enumerate(before["directions"]):
        expected = paper.path(direction, FEW / (4**place * SIZE), paper.mean(rows))
        np.testing.assert_allclose(after["directions"][place], expected, rtol=1e-4, atol=1e-5)


# --- cma_es


@each_case("active", [True, False])
def test_a_step_of_cma_es_is_the_papers(active: bool) -> None:
    strategy, state, batch, rows = middle("cma_es", active=active)
    paper, before = Paper(32, SIZE, active), doubles(state)
    matrix = before["columns"].T
    mean = paper.mean(rows)
    path = paper.path(before["path"], paper.c_sigma, mean)
    unit = np.eye(SIZE)
    change = paper.c_1 / 2 * (np.outer(path, path) - unit)
    for weight, bounded, row in zip(paper.weights, paper.bounded(rows), rows, strict=True):
        change += paper.c_mu / 2 * (bounded * np.outer(row, row) - weight * unit)
    after, _ = strategy.learn(state, batch)
    parameters = before["parameters"] + before["sigma"] * (matrix @ mean)
    np.testing.assert_allclose(after["parameters"], parameters, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["sigma"], sigma_after(paper, before["sigma"], path), rtol=1e-5)
    np.testing.assert_allclose(after["columns"].T, matrix @ (unit + change), rtol=1e-4, atol=1e-6)


def test_any_number_of_cores_gives_the_same_bits() -> None:
    size = 700  # the products are then worth threads
    strategy = testing.sample_strategy(CMAES, size, population=16)
    state = strategy.start(np.zeros(size, np.float32))
    indices = np.arange(0, 1600, 100)
    fitness = np.random.default_rng(1).normal(size=(16, 1))
    states = []
    for count in (1, 3):
        with cores(count):
            after = state
            for _ in range(2):
                after, _ = strategy.learn(after, Batch(testing.NOISE, indices, fitness))
        states.append(after)
    assert testing.is_same(*states)
    assert not np.array_equal(states[0]["columns"], state["columns"])


@each_case("kind", [CMAES, XNES])
def test_a_policy_whose_matrix_would_be_too_large_is_refused_in_one_sentence(kind: Any) -> None:
    testing.sample_strategy(kind, MOST_PARAMETERS)
    with pytest.raises(UsageError, match="at most 2,000 parameters, but this one has 2,001: use"):
        testing.sample_strategy(kind, MOST_PARAMETERS + 1)


# --- xnes


def exponential(matrix: np.ndarray) -> np.ndarray:
    """Of a symmetric matrix, from its eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors * np.exp(values) @ vectors.T)


@each_case("scale", [1.0, 20.0])
def test_generations_of_xnes_are_the_papers(scale: float) -> None:
    """``scale``: of the rate, so that the exponential is far from 1 + its argument, too."""
    size, count = 6, 20
    rate = scale * (9 + 3 * math.log(size)) / (5 * size * math.sqrt(size))
    strategy = testing.sample_strategy(
        XNES, size, population=count, sigma=0.5, covariance_learning_rate=rate
    )
    state = strategy.start(np.arange(size, dtype=np.float32))
    mean, sigma, shape = np.arange(size, dtype=float), 0.5, np.eye(size)
    utilities = np.maximum(0, math.log(count / 2 + 1) - np.log(np.arange(1, count + 1)))
    utilities = utilities / utilities.sum() - 1 / count
    generator = np.random.default_rng(3)
    for _ in range(3):
        indices = generator.integers(0, 50_000, count)
        noise = testing.NOISE.rows(indices, 0, size)
        fitness = generator.normal(size=(count, 1))
        published = strategy.published(state)
        individuals = strategy.ask(published, strategy.sigma(state), noise)[:, 0]
        np.testing.assert_allclose(
            individuals, mean + sigma * noise @ shape.T, rtol=2e-3, atol=1e-4
        )
        state, _ = strategy.learn(state, Batch(testing.NOISE, indices, fitness))
        weights = utilities[np.argsort(np.argsort(-fitness[:, 0]))]
        mean = mean + sigma * shape @ (weights @ noise)
        gradient = sum(
            weight * (np.outer(row, row) - np.eye(size))
            for weight, row in zip(weights, noise.astype(float), strict=True)
        )
        stretch = np.trace(gradient) / size
        sigma *= math.exp(rate / 2 * stretch)
        shape = shape @ exponential(rate / 2 * (gradient - stretch * np.eye(size)))
        np.testing.assert_allclose(state["parameters"], mean, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(state["sigma"][0], sigma, rtol=1e-4)
        np.testing.assert_allclose(state["columns"].T, shape, rtol=2e-3, atol=1e-4)
        assert np.linalg.det(state["columns"]) == pytest.approx(1, rel=1e-2)
