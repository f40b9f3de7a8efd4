"""``check_strategy(MyClass)``: what every strategy must do, for es-queue's own and for yours.

The checks are plain functions of a strategy that raise AssertionError; no test framework is needed.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.numerics.arrays import ArrayNoise, Doubles
from es_queue.strategies.averaged import AVERAGE
from es_queue.strategies.base import Batch, State, Strategy, validate_individuals

__all__ = ["CHECKS", "check_strategy", "run_generation", "sample_strategy"]

SIZE = 12
NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(60_000, dtype=np.float32))
#: Where the test function is highest (0).
GOAL = np.linspace(-0.6, 0.6, SIZE)
FIGURES = {"norm", "gradient_norm", "update_ratio", "sigma", "no_step"}


def check_strategy(kind: type[Strategy], **settings: Any) -> None:
    """Check a strategy's class under ``settings`` of a RunConfig. Raises AssertionError that names
    the problem, and StrategyFailure for a problem that would end a run.
    """
    for check in CHECKS:
        check(sample_strategy(kind, **settings))


def sample_strategy(kind: type[Strategy], size: int = SIZE, **settings: Any) -> Strategy:
    """A strategy of this class for policies of ``size`` parameters and a population of 32."""
    name = kind.name or f"{kind.__module__}:{kind.__qualname__}"
    values = {"strategy": name, "population": 32, "seed": 1, "noise_size": len(NOISE.noise)}
    config = RunConfig(**{**values, **settings})
    return kind(config if kind.name else config.completed(kind), size, RateFactors())


def sphere(policies: NDArray[Any]) -> Doubles:
    """Fitness of policies [..., SIZE]: highest (0) at GOAL."""
    return np.asarray(-np.square(policies - GOAL, dtype=np.float64).sum(axis=-1))


def run_generation(strategy: Strategy, state: State, seed: int) -> Batch:
    slots = strategy.config.population // strategy.per_slot
    indices = np.random.default_rng(seed).choice(50_000, slots, replace=False)
    build, published = strategy.builder(NOISE), strategy.published(state)
    sigma = strategy.sigma(state)
    built = [build(published, sigma, 0, slot, index) for slot, index in enumerate(indices.tolist())]
    for pair in built:
        validate_individuals(strategy, pair, (strategy.per_slot, strategy.size))
    individuals = np.stack(built)
    batch = Batch(NOISE, indices, sphere(individuals), behaviour=individuals[:, :, :2])
    return with_extra_results(strategy, state, batch)


def with_extra_results(strategy: Strategy, state: State, batch: Batch) -> Batch:
    """The batch with the second results of its candidates, no better than the first, and with the
    behaviour of the centres.
    """
    published, count = strategy.published(state), strategy.centre_count(state)
    draw = partial(np.full, strategy.size, dtype=np.float32)
    rows = [strategy.centre_of(published, slot, draw) for slot in range(1, count)]
    centres = np.array(rows, np.float32).reshape(-1, strategy.size)
    if count > 1:
        batch = replace(batch, centre_fitness=sphere(centres))
    if strategy.wants_behaviour:
        by_fitness = np.clip(batch.fitness, -1e9, 1e9).astype(np.float32)[..., None]
        batch = replace(
            batch,
            behaviour=batch.behaviour if batch.behaviour.size else by_fitness.repeat(2, axis=-1),
            centre_behaviour=centres[:, :2],
        )
    first = batch.fitness[:, 0].tolist()
    slots = strategy.candidates(state, batch).tolist()
    again = [first[slot] if slot < len(first) else -np.inf for slot in slots]
    return replace(batch, elite_fitness=np.array(again))


def begin(strategy: Strategy, generations: int = 3) -> State:
    """A state in the middle of a run, so that no array of it is trivially zero."""
    state = strategy.start(np.full(strategy.size, 0.1, np.float32))
    for seed in range(generations):
        state, _ = strategy.learn(state, run_generation(strategy, state, seed))
    return state


def is_same(state: State, other: State) -> bool:
    return state.keys() == other.keys() and all(
        np.array_equal(state[name], other[name]) for name in state
    )


# --- the checks


def check_start(strategy: Strategy) -> None:
    first = np.full(strategy.size, 0.5, np.float32)
    state = strategy.start(first)
    first[:] = 9
    assert (state["parameters"] == 0.5).all(), "start must copy the first parameters"
    try:
        strategy.start(np.zeros(strategy.size + 1, np.float32))
    except ValueError:
        return
    raise AssertionError("start must refuse parameters of another length with a ValueError")


def check_published(strategy: Strategy) -> None:
    state = begin(strategy)
    published = strategy.published(state)
    assert published.dtype == np.float32 and published.ndim == 1, "published must be float32 [n]"
    assert published.flags.c_contiguous, "published must be contiguous"
    assert strategy.fits(len(published), 0), "fits must accept the length of what is published"
    assert not strategy.fits(1, 0), "fits must refuse an impossible length"
    centre = strategy.centre(published)
    unperturbed = state.get(AVERAGE, state["parameters"])
    assert np.array_equal(centre, unperturbed), "centre must be the state's parameters"
    alone = np.zeros_like(published)
    alone[: strategy.size] = centre
    assert np.array_equal(strategy.centre(alone), centre), "what is published must begin with it"
    first = strategy.start(np.full(strategy.size, 0.1, np.float32))
    kinds = [{name: array.dtype for name, array in each.items()} for each in (first, state)]
    assert kinds[0]["parameters"] == np.float32, "the state's parameters must be float32"
    assert kinds[0] == kinds[1], "tell must keep the state's types"


def check_individuals(strategy: Strategy) -> None:
    state = begin(strategy)
    published, sigma = strategy.published(state), strategy.sigma(state)
    rows = NOISE.rows(np.arange(7), 0, strategy.size)
    block = strategy.ask(published, sigma, rows)
    validate_individuals(strategy, block, (7, strategy.per_slot, strategy.size))
    for slot in range(7):
        single = strategy.ask(published, sigma, rows[slot : slot + 1])[0]
        assert np.array_equal(single, block[slot]), "a slot must have the same bits in any block"


def check_purity(strategy: Strategy) -> None:
    state = begin(strategy)
    batch = run_generation(strategy, state, 9)
    copies, fitness = {name: array.copy() for name, array in state.items()}, batch.fitness.copy()
    for array in (*state.values(), batch.fitness, batch.noise_indices):
        array.flags.writeable = False
    after, _ = strategy.learn(state, batch)
    assert is_same(state, copies), "tell must not change the state"
    assert np.array_equal(batch.fitness, fitness), "tell must not change the batch"
    assert not is_same(after, state), "tell must learn from a generation"
    twin = type(strategy)(strategy.config, strategy.size, strategy.pace)
    assert is_same(after, twin.learn(state, batch)[0]), "tell must depend on its arguments only"


def check_checkpoint(strategy: Strategy) -> None:
    state, file = begin(strategy), io.BytesIO()
    np.savez(file, **state)  # type: ignore[arg-type]
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        restored = dict(stored)
    batch = run_generation(strategy, state, 9)
    after, again = strategy.learn(state, batch)[0], strategy.learn(restored, batch)[0]
    assert is_same(after, again), "a state must survive a checkpoint"


def check_all_failed(strategy: Strategy) -> None:
    state = begin(strategy)
    batch = run_generation(strategy, state, 9)
    batch.fitness[:] = np.nan
    after, info = strategy.learn(state, batch)
    assert is_same(after, state) and after is not state, "no step if every individual failed"
    assert (info["no_step"], info["update_ratio"], info["gradient_norm"]) == (1, 0, 0)


def check_failures(strategy: Strategy) -> None:
    state = begin(strategy)
    batch = run_generation(strategy, state, 9)
    slot, side = np.unravel_index(batch.fitness.argmax(), batch.fitness.shape)
    afters = []
    for failure in (np.inf, -np.inf, np.nan):
        batch.fitness[slot, side] = failure
        after, info = strategy.learn(state, batch)
        assert info["no_step"] == 0, "one failed individual must not stop learning"
        afters.append(after)
    assert all(is_same(after, afters[0]) for after in afters), "all failures must count the same"


def check_extremes(strategy: Strategy) -> None:
    state = begin(strategy)
    fitness = np.array([[1e308, -1e308], [1.0, -1e308], [1e-308, 3.0]])
    fitness = fitness.reshape(-1, strategy.per_slot)
    batch = with_extra_results(strategy, state, Batch(NOISE, np.arange(len(fitness)), fitness))
    after, info = strategy.learn(state, batch)
    assert all(np.isfinite(array).all() for array in after.values())
    assert all(np.isfinite(value) for value in info.values())
    assert is_same(after, state) == bool(info["no_step"]), "no_step must be 1 if nothing changed"


def check_figures(strategy: Strategy) -> None:
    state = begin(strategy)
    after, info = strategy.learn(state, run_generation(strategy, state, 9))
    assert info.keys() >= FIGURES, f"figures must hold {', '.join(sorted(FIGURES))}"
    assert all(type(value) is float for value in info.values()), "figures must be floats"
    assert info["sigma"] == strategy.sigma(after), "sigma must be the next generation's"


Check = Callable[[Strategy], None]
CHECKS: tuple[Check, ...] = (
    check_start,
    check_published,
    check_individuals,
    check_purity,
    check_checkpoint,
    check_all_failed,
    check_failures,
    check_extremes,
    check_figures,
)
