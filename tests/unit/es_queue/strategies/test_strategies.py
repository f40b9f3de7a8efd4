"""What every strategy promises: it learns, it is pure, and failures and broken numbers cannot hurt
it.

Parametrised over the registry: a new strategy is tested here by being registered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_queue import testing
from es_queue.config.algorithms.facts import POLICIES
from es_queue.config.algorithms.facts import STRATEGIES as FACTS
from es_queue.config.algorithms.settings import PolicySettings, StrategySettings
from es_queue.config.run_config import RunConfig, option_fields
from es_queue.errors import UsageError
from es_queue.policies.layers.activations import ACTIVATIONS
from es_queue.policies.layers.initial_weights import INITS
from es_queue.strategies import STRATEGIES, Batch, State, Strategy, make_strategy
from es_queue.strategies.map_elites import ISO_LINE
from es_queue.strategies.map_elites_archive import CVT, GRID
from es_queue.strategies.shaping import SHAPINGS
from tests.cases import each_case
from tools import write_facts

NOISE, SIZE, FIGURES = testing.NOISE, testing.SIZE, testing.FIGURES
VARIANTS: list[dict[str, Any]] = [
    *(
        {"strategy": "openai_es", "shaping": shaping}
        for shaping in ("centered-rank", "z-score", "log-rank")
    ),
    {"strategy": "openai_es", "optimizer": "sgd"},
    {"strategy": "openai_es", "optimizer": "sgd", "weight_decay": 0.001, "l2": 0.0001},
    {"strategy": "ars"},
    {"strategy": "ars", "top": 5},
    *({"strategy": "pgpe", "optimizer": optimizer} for optimizer in ("auto", "adam", "sgd")),
    {"strategy": "pgpe", "shaping": "z-score"},
    {"strategy": "pgpe", "sigma_learning_rate": 0.0},
    {"strategy": "snes"},
    {"strategy": "snes", "population": 31},
    {"strategy": "snes", "linear_share": 0.6, "average_decay": 0.9},
    {"strategy": "csa_es"},
    {"strategy": "csa_es", "population": 16},
    *({"strategy": "sep_cma_es", "active": active} for active in (True, False)),
    {"strategy": "cma_es", "population": 31},
    {"strategy": "cma_es", "active": False},
    {"strategy": "lm_ma_es", "directions": 3},
    {"strategy": "ga", "truncation": 5},
    {"strategy": "random_search", "candidates": 3},
    {"strategy": "novelty", "novelty": "nsra", "members": 2},
    {"strategy": "map_elites", "emitter": "gaussian"},
    {"strategy": "map_elites", "archive": "cvt", "cells": (40,)},
]
#: A strategy that no line above names has its defaults.
VARIANTS += [
    {"strategy": name}
    for name in STRATEGIES
    if name not in {variant["strategy"] for variant in VARIANTS}
]
#: Those whose centre is an elite, which no gradient moves.
WITH_ELITE = ("ga", "map_elites", "random_search")
#: Those whose state has arrays of other shapes.
WITH_ARRAYS = ("csa_es", "sep_cma_es", "cma_es", "lm_ma_es", "map_elites", "novelty")


each_variant = each_case("variant", VARIANTS)
#: Strategies whose ``parameters`` are the ones that a step moves.
each_alone = each_case("variant", [one for one in VARIANTS if one["strategy"] != "novelty"])
each_strategy = each_case("name", STRATEGIES)
each_stepping = each_case(
    "name",
    [
        name
        for name, kind in STRATEGIES.items()
        if name not in (*WITH_ELITE, "novelty") and "weight_decay" in kind.used_settings()
    ],
)


def made(size: int = SIZE, **settings: Any) -> Strategy:
    return make_strategy(
        RunConfig(**{"population": 32, "seed": 1, "noise_size": len(NOISE.noise), **settings}), size
    )


def batch_of(strategy: Strategy, state: State, fitness: np.ndarray) -> Batch:
    """A generation whose pairs (or as many individuals) had the ``fitness`` [S, 2]."""
    flat = fitness.reshape(-1, strategy.per_slot)
    return replied(strategy, state, Batch(NOISE, np.arange(len(flat)), flat))


begun, same, tried = testing.begin, testing.is_same, testing.run_generation
sphere, replied = testing.sphere, testing.with_extra_results


@each_variant
@each_case("check", testing.CHECKS)
def test_each_strategy_does_what_every_strategy_must(
    check: Callable[[Strategy], None], variant: dict[str, Any]
) -> None:
    check(made(**variant))


def test_each_strategy_passes_the_shared_suite_with_its_defaults() -> None:
    for kind in STRATEGIES.values():
        testing.check_strategy(kind)


@each_case("variant", [one for one in VARIANTS if one["strategy"] != "random_search"])
def test_each_strategy_climbs_the_sphere(variant: dict[str, Any]) -> None:
    strategy = made(**variant)
    state = strategy.start(np.zeros(SIZE, np.float32))
    for seed in range(120):
        state, _ = strategy.learn(state, tried(strategy, state, seed))
    start, end = sphere(np.zeros(SIZE)), sphere(strategy.centre(strategy.published(state)))
    assert end > 0.03 * start


@each_variant
def test_results_that_arrive_in_any_order_give_the_same_bits(variant: dict[str, Any]) -> None:
    strategy = made(**variant)
    state = begun(strategy)
    batch = tried(strategy, state, 9)
    arrived = np.full_like(batch.fitness, np.nan)
    for slot in np.random.default_rng(5).permutation(len(batch.fitness)):
        arrived[slot] = batch.fitness[slot]
    assert same(
        strategy.learn(state, batch)[0], strategy.learn(state, replace(batch, fitness=arrived))[0]
    )


@each_variant
def test_a_failed_individual_counts_no_better_than_the_worst(variant: dict[str, Any]) -> None:
    strategy = made(**variant)
    state = begun(strategy)
    batch = tried(strategy, state, 9)
    slot, side = np.unravel_index(batch.fitness.argmin(), batch.fitness.shape)
    wanted, _ = strategy.learn(state, batch)
    batch.fitness[slot, side] = math.nan
    if "shaping" in strategy.used_settings() and strategy.config.shaping not in ("sign", "z-score"):
        assert same(strategy.learn(state, batch)[0], wanted)
    batch.fitness[slot, side] = math.inf
    failed_up, info = strategy.learn(state, batch)
    batch.fitness[slot, side] = -math.inf
    assert same(failed_up, strategy.learn(state, batch)[0])
    assert info["no_step"] == 0


@each_alone
def test_figures_describe_the_step(variant: dict[str, Any]) -> None:
    strategy = made(**{**variant, "weight_decay": 0.0})
    state = begun(strategy)
    after, info = strategy.learn(state, tried(strategy, state, 9))
    assert info.keys() >= FIGURES
    assert all(type(value) is float for value in info.values())
    length = np.linalg.norm(after["parameters"].astype(np.float64))
    step = np.linalg.norm(after["parameters"].astype(np.float64) - state["parameters"])
    assert info["norm"] == pytest.approx(length)
    assert info["update_ratio"] == pytest.approx(step / length, rel=1e-4)
    has_gradient = variant["strategy"] not in WITH_ELITE
    assert (info["gradient_norm"] > 0) == has_gradient
    assert info["sigma"] == strategy.sigma(after)
    assert info["no_step"] == 0


@each_stepping
def test_weight_decay_shrinks_the_parameters_after_the_step_and_leaves_the_rest_alone(
    name: str,
) -> None:
    plain, decayed = made(strategy=name), made(strategy=name, weight_decay=0.25)
    state = begun(plain)
    batch = tried(plain, state, 9)
    wanted, got = plain.learn(state, batch)[0], decayed.learn(state, batch)[0]
    np.testing.assert_allclose(got.pop("parameters"), 0.75 * wanted.pop("parameters"), rtol=1e-6)
    assert same(got, wanted)


@each_stepping
def test_weight_decay_does_not_shrink_the_parameters_when_there_is_no_step(name: str) -> None:
    strategy = made(strategy=name, weight_decay=0.25)
    state = begun(strategy)
    after, _ = strategy.learn(
        state, Batch(NOISE, np.arange(4), np.full((4, strategy.per_slot), math.nan))
    )
    assert np.array_equal(after["parameters"], state["parameters"])


@each_case(
    "variant",
    [one for one in VARIANTS if one["strategy"] in ("openai_es", "ars", "pgpe")],
)
def test_a_pair_is_the_centre_plus_and_minus_one_perturbation_in_float32(
    variant: dict[str, Any],
) -> None:
    strategy = made(**variant)
    state = begun(strategy)
    published, rows = strategy.published(state), NOISE.rows(np.array([5, 900]), 0, SIZE)
    sigma = np.float32(strategy.sigma(state))
    pairs = strategy.ask(published, float(sigma), rows)
    assert (pairs.dtype, pairs.shape) == (np.float32, (2, 2, SIZE))
    steps = state.get("sigma", sigma) * rows
    assert np.array_equal(pairs[:, 0], strategy.centre(published) + steps)
    assert np.array_equal(pairs[:, 1], strategy.centre(published) - steps)


@each_case(
    "variant",
    [one for one in VARIANTS if one["strategy"] not in WITH_ARRAYS],
)
def test_parameters_and_moments_stay_float32(variant: dict[str, Any]) -> None:
    strategy = made(**variant)
    vectors = {
        name: array
        for name, array in begun(strategy).items()
        if name in ("parameters", "base") or strategy.config.strategy != "ga"
    }
    for name, array in vectors.items():
        assert (array.dtype, array.shape) == (
            (np.int64, ()) if name == "step" else (np.float32, (SIZE,))
        )


@each_strategy
@each_case("shape", [(3, None), (4, 3), (8,)])
def test_fitness_that_does_not_fit_the_slots_is_an_error(
    name: str, shape: tuple[int | None, ...]
) -> None:
    strategy = made(strategy=name)
    with pytest.raises(ValueError, match="but must have"):
        strategy.learn(
            begun(strategy),
            Batch(NOISE, np.arange(4), np.zeros([one or strategy.per_slot for one in shape])),
        )


@each_strategy
@each_case("shaping", ["sign", "z-score", "centered-rank"])
def test_absurdly_large_fitness_leaves_every_number_finite(name: str, shaping: str) -> None:
    strategy = made(strategy=name, shaping=shaping)
    state = begun(strategy)
    fitness = np.array([[1e308, -1e308], [1.0, -1e308], [1e-308, 3.0]])
    after, info = strategy.learn(state, batch_of(strategy, state, fitness))
    assert all(np.isfinite(array).all() for array in after.values())
    assert all(math.isfinite(value) for value in info.values())
    assert same(after, state) == bool(info["no_step"])


@each_strategy
def test_a_grown_population_is_learnt_from_whole(name: str) -> None:
    strategy = made(strategy=name)
    state = begun(strategy)
    few, many = (
        batch_of(strategy, state, np.eye(16, 2)),
        batch_of(strategy, state, np.eye(40, 2)[::-1]),
    )
    assert not same(strategy.learn(state, few)[0], strategy.learn(state, many)[0])
    assert not same(strategy.learn(state, many)[0], state)


@each_case("shaping", ["sign", "centered-sign-rank", "centered-rank", "z-score", "log-rank"])
def test_signs_are_asked_for_exactly_where_shaping_is_of_signs(shaping: str) -> None:
    by_sign = shaping in ("sign", "centered-sign-rank")
    assert made(strategy="openai_es", shaping=shaping).fitness_by_sign is by_sign
    assert made(strategy="pgpe", shaping=shaping).fitness_by_sign is by_sign
    assert made(strategy="ars", shaping=shaping).fitness_by_sign is False


@each_case(
    ("settings", "sentence"),
    [
        (
            {"strategy": "cma"},
            f"there is no strategy 'cma'; choose {', '.join(STRATEGIES)}",
        ),
        (
            {"strategy": "pgpe", "population": 31},
            "population is 31, but pgpe samples mirrored pairs: use an even number",
        ),
        (
            {"strategy": "ars", "top": 17},
            "top is 17, but a population of 32 has 16 pairs: use at most 16",
        ),
        (
            {"strategy": "openai_es", "optimizer": "clipup"},
            "optimizer is clipup, but openai_es does not take it: use auto, adam or sgd",
        ),
        (
            {"strategy": "ars", "optimizer": "adam"},
            "optimizer is adam, but ars does not take it: leave it at auto",
        ),
        ({"strategy": "ars", "size": 0}, "no parameters to train"),
        (
            {"strategy": "snes", "env_seeds": "pair"},
            "env_seeds is pair, but snes samples no pairs: use generation or slot",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as refusal:
        made(**settings)
    assert "\n" not in str(refusal.value)


def test_every_pair_may_be_kept_by_name() -> None:
    assert made(strategy="ars", top=16).config.top == 16


def test_what_settings_know_of_strategies_is_what_their_classes_say() -> None:
    is_current = write_facts.FILE.read_text("utf-8") == write_facts.written()
    assert is_current, "run python -m tools.write_reference"


def test_every_setting_of_strategies_and_policies_is_used_and_every_used_one_declared() -> None:
    for facts, settings in ((FACTS, StrategySettings), (POLICIES, PolicySettings)):
        used = {name for about in facts.values() for name in about.settings}
        assert used == set(settings.__annotations__)


def test_the_choices_of_a_setting_are_all_that_there_is() -> None:
    choices = {name: field.metadata["choices"] for name, field in option_fields().items()}
    assert choices["shaping"] == tuple(SHAPINGS)
    assert choices["activation"] == tuple(ACTIVATIONS)
    assert choices["init"] == ("auto", *INITS)
    assert choices["archive"] == (GRID, CVT)
    assert choices["emitter"] == (ISO_LINE, "gaussian")


def test_the_facts_of_strategies_are_readable_without_numpy() -> None:
    assert {name: kind.optimizers for name, kind in STRATEGIES.items()} == {
        name: facts.optimizers for name, facts in FACTS.items()
    }
    assert all(
        set(kind.used_settings()) == set(FACTS[name].settings) for name, kind in STRATEGIES.items()
    )
