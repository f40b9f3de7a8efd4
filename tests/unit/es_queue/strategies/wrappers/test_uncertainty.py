"""Uncertainty handling: the change of ranks beside pycma's, and the numbers of episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cma
import numpy as np
import pytest

from es_queue import testing
from es_queue.config.parsing import config_from_values
from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles
from es_queue.strategies import Batch, State, Strategy, make_strategy
from es_queue.strategies.base import Info
from es_queue.strategies.capabilities import hooks
from es_queue.strategies.snes import SNES
from es_queue.strategies.wrappers import uncertainty as module
from es_queue.strategies.wrappers.uncertainty import (
    EPISODES,
    RANK_CHANGE,
    UncertaintyHandling,
    rank_change,
    tolerated_change,
    with_uncertainty_handling,
)
from tests.cases import each_case

SIZE = testing.SIZE
FIRST = np.linspace(-1, 1, SIZE).astype(np.float32)
PLAIN = ["snes", "csa_es", "sep_cma_es", "cma_es", "lm_ma_es"]


class Own(Strategy):
    """A user's own strategy."""

    per_slot = 1
    SIGMA = 0.1

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        return self.stay(state)


def made(name: str = "snes", **settings: Any) -> Strategy:
    values = {"population": 32, "noise_size": len(testing.NOISE.noise), "episodes_max": 6}
    return make_strategy(RunConfig(strategy=name, **{**values, **settings}), SIZE)


def handled(**settings: Any) -> UncertaintyHandling:
    strategy = made(**settings)
    assert isinstance(strategy, UncertaintyHandling)
    return strategy


def pycmas(first: Doubles, second: Doubles, monkeypatch: pytest.MonkeyPatch) -> float:
    """Twice pycma's measure of one generation: the paper's formula has two terms for its one."""
    mathematics = cma.utilities.math.Mh
    quantile = staticmethod(lambda data, percent: float(np.percentile(data, percent)))
    monkeypatch.setattr(mathematics, "prctile", quantile)
    monkeypatch.setattr(mathematics, "amax", staticmethod(lambda limits, least: limits))
    handler = cma.NoiseHandler(10)
    handler.theta, handler.cum = module.TOLERANCE, 1.0
    handler.fit, handler.fitre = first.tolist(), [*second, *first[len(second) :]]
    handler.idx = np.arange(len(second))
    handler.update_measure()
    return 2 * float(handler.noiseS)


@each_case("seed", range(20))
def test_the_change_of_ranks_is_pycmas(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(seed)
    first = generator.normal(size=int(generator.integers(6, 60)))
    changes = generator.normal(size=2 + len(first) // 10) * generator.choice([0.01, 0.3, 3])
    changes -= np.median(changes)
    second = first[: len(changes)] + changes
    assert rank_change(first, second) == pytest.approx(pycmas(first, second, monkeypatch))


def test_what_the_second_environment_seeds_add_to_all_individuals_is_no_uncertainty() -> None:
    first = np.random.default_rng(1).normal(size=30)
    unchanged, shifted = rank_change(first, first[:5]), rank_change(first, first[:5] - 7)
    assert unchanged is not None
    assert unchanged < 0
    assert shifted == unchanged


def test_an_individual_without_two_results_says_nothing() -> None:
    first = np.array([1.0, np.nan, 3.0, 4.0, 5.0])
    assert rank_change(first, np.array([np.nan, 2.0])) is None
    with_failure = rank_change(first, np.array([np.nan, 2.0, 9.0]))
    assert with_failure is not None
    assert with_failure == rank_change(first, np.array([np.nan, np.nan, 9.0]))


def generation(strategy: Strategy, state: State, number: int, noise: float) -> State:
    """The state after a generation whose results differ by ``noise`` when played again."""
    batch = testing.run_generation(strategy, state, number)
    spread = float(batch.fitness.std())
    again = batch.fitness[: len(batch.elite_fitness), 0]
    generator = np.random.default_rng(number)
    changed = again + noise * spread * generator.normal(size=len(again))
    return strategy.learn(state, replace(batch, elite_fitness=changed, generation=number))[0]


def test_episodes_grow_while_ranks_are_noise_and_shrink_again() -> None:
    strategy = handled(episodes=2)
    state, played = strategy.start(FIRST), list[int]()
    for number in range(30):
        played.append(strategy.episodes(state))
        state = generation(strategy, state, number, 10.0 if number < 15 else 0.0)
    assert played[0] == played[-1] == 2
    assert max(played) == played[15] == 6
    assert played[:15] == sorted(played[:15])


def test_workers_read_the_number_of_episodes_that_the_master_plans() -> None:
    strategy = handled()
    state = {**strategy.start(FIRST), EPISODES: np.array(3.7)}
    published, config = strategy.published(state), strategy.config
    assert strategy.fits(len(published), 0)
    assert hooks.with_episodes(strategy, state, config).episodes == 3
    assert hooks.with_published_episodes(strategy, published, config).episodes == 3
    assert hooks.with_episodes(made(episodes_max=0), state, config) is config


@each_case("number", [np.nan, -np.inf, np.inf, -5.0, 0.0, 3e9])
def test_no_published_number_asks_for_impossible_episodes(number: float) -> None:
    strategy = handled(episodes=2)
    published = strategy.published(strategy.start(FIRST))
    published[-1] = number
    assert 2 <= strategy.published_episodes(published) <= 6


@each_case("name", PLAIN)
def test_the_search_is_that_without_uncertainty_handling(name: str) -> None:
    strategy, plain = made(name), made(name, episodes_max=0)
    state, alone = strategy.start(FIRST), plain.start(FIRST)
    for number in range(3):
        state = generation(strategy, state, number, 1.0)
        alone = plain.learn(
            alone,
            replace(testing.run_generation(plain, alone, number), generation=number),
        )[0]
        assert state.keys() - alone.keys() == {EPISODES, RANK_CHANGE}
        assert all(np.array_equal(state[key], alone[key]) for key in alone)
    centre = strategy.centre(strategy.published(state))
    assert np.array_equal(centre, plain.centre(plain.published(alone)))


def test_a_generation_without_a_step_also_changes_the_number_of_episodes() -> None:
    strategy = handled()
    state = {**strategy.start(FIRST), EPISODES: np.array(5.0)}
    batch = testing.run_generation(strategy, state, 0)
    flat, again = np.ones_like(batch.fitness), np.ones_like(batch.elite_fitness)
    after, info = strategy.learn(state, replace(batch, fitness=flat, elite_fitness=again))
    assert info["no_step"] == 1.0
    assert info["episodes_per_individual"] == strategy.episodes(state) == 5
    assert strategy.episodes(after) == 4


def test_tolerated_changes_are_the_quantile_of_all_changes_of_a_rank() -> None:
    for count in (1, 2, 5, 24):
        for rank in range(1, 2 * count):
            changes = np.abs(np.arange(1, 2 * count) - rank)
            quantile = np.quantile(changes, module.TOLERANCE / 2)
            assert tolerated_change(rank, count) == pytest.approx(float(quantile))


def test_a_class_that_does_not_name_the_setting_is_refused() -> None:
    path = "tests.unit.es_queue.strategies.wrappers.test_uncertainty:Own"
    with pytest.raises(UsageError, match="add it to the settings of its class"):
        made(path)
    assert made(path, episodes_max=0).config.episodes == 1


def test_pairs_are_refused() -> None:
    class Mirrored(SNES):
        name = ""
        per_slot = 2

    with pytest.raises(UsageError, match="episodes_max needs a strategy without pairs"):
        with_uncertainty_handling(Mirrored)


@each_case(
    "settings, sentence",
    [
        ({"strategy": "pgpe"}, "episodes_max is 6, but the strategy pgpe does not use it"),
        ({"strategy": "csa_es", "restarts": "ipop"}, "collects generations"),
        ({"islands": 2}, "divides the population"),
        ({"tune": "sigma"}, "divides the population"),
        ({"schedule": "async"}, "needs generations that close on their own slots"),
        ({"episodes": 7}, "episodes_max is 6, below the 7 of episodes: use 7 or more, or 0"),
    ],
)
def test_what_it_cannot_be_combined_with_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    values = {"env": "CartPole-v1", "strategy": "snes", "episodes_max": 6, **settings}
    with pytest.raises(UsageError, match=sentence):
        config_from_values(values, "the settings")
