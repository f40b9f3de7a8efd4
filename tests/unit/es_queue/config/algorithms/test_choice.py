"""What ``--strategy auto`` chooses, and what a run makes of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from es_queue.config.algorithms.choice import (
    GENERAL,
    MOST_SMALL,
    SMALL,
    SMALL_SEEDS,
    format_choice,
    with_chosen_strategy,
)
from es_queue.config.algorithms.facts import STRATEGIES
from es_queue.config.algorithms.settings import StrategySettings
from es_queue.config.parsing import config_from_values
from es_queue.config.resolution import resolve
from es_queue.config.run_config import AUTO, RunConfig, users_of
from es_queue.errors import UsageError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.strategies import make_strategy
from master.run.setup import Setup, prepare_run
from tests.cases import each_case

#: A value of each strategy's setting that is not its default.
GIVEN: dict[str, Any] = {
    "optimizer": "adam",
    "learning_rate": 0.1,
    "max_speed": 0.3,
    "average_decay": 0.5,
    "shaping": "z-score",
}


def chosen_strategy(config: RunConfig, size: int) -> str:
    return with_chosen_strategy(config, size).strategy


def prepared(**values: Any) -> tuple[RunConfig, Setup]:
    config = resolve({"env": "Pendulum-v1", "noise_size": 2**16, "seed": 1, **values})
    return config, prepare_run(config, table=NoiseTable.in_memory(2**16))


def test_the_size_of_the_policy_decides() -> None:
    config = RunConfig()
    assert config.strategy == AUTO
    assert chosen_strategy(config, 1) == chosen_strategy(config, MOST_SMALL) == SMALL
    assert chosen_strategy(config, MOST_SMALL + 1) == GENERAL


@each_case("name", STRATEGIES)
def test_a_named_strategy_is_used_for_any_size(name: str) -> None:
    config = RunConfig(strategy=name)
    assert chosen_strategy(config, 1) == chosen_strategy(config, 10**6) == name


@each_case("name", GIVEN)
def test_a_setting_of_a_strategy_is_that_of_the_general_one(name: str) -> None:
    assert GENERAL in users_of(name)
    config = config_from_values({"env": "Pendulum-v1", name: GIVEN[name]}, "the settings")
    assert chosen_strategy(config, 1) == GENERAL


def test_a_setting_that_the_general_one_does_not_use_is_refused() -> None:
    sentence = "top is 3, but the strategy pgpe, which auto chooses with it, does not use it"
    with pytest.raises(UsageError, match=sentence):
        config_from_values({"env": "Pendulum-v1", "top": 3}, "the settings")


@each_case(
    "values, strategy",
    [
        ({"episodes_max": 8}, SMALL),
        ({"linear_share": 0.5, "average_decay": 0.5}, SMALL),
        ({"shaping": "centered-rank"}, GENERAL),
        ({"momentum": 0.9}, GENERAL),
        ({"env_seeds": "pair"}, GENERAL),
        ({"env_seeds": "slot"}, AUTO),
    ],
)
def test_a_given_setting_counts_even_if_it_is_the_default(
    values: dict[str, Any], strategy: str
) -> None:
    assert resolve({"env": "Pendulum-v1", **values}).strategy == strategy


def test_no_setting_of_a_strategy_is_given_by_default() -> None:
    for field in fields(StrategySettings):
        assert getattr(RunConfig(), field.name) == field.default


@each_case(
    "values, strategy",
    [({}, SMALL), ({"policy": "mlp"}, GENERAL), ({"policy": "mlp", "hidden": (8,)}, SMALL)],
)
def test_a_run_stores_what_was_chosen_and_notes_it(values: dict[str, Any], strategy: str) -> None:
    requested, setup = prepared(**values)
    assert requested.strategy == AUTO
    assert setup.config.strategy == setup.learner.config.strategy == strategy
    (note,) = format_choice(requested, setup.config, setup.policy.size)
    assert note.startswith(f"strategy {strategy}, chosen for a policy of {setup.policy.size:,}")
    assert format_choice(setup.config, setup.config, setup.policy.size) == []
    assert setup.config.env_seeds == (SMALL_SEEDS if strategy == SMALL else "pair")
    assert prepare_run(setup.config, table=setup.table).config == setup.config


def test_given_environment_seeds_stay() -> None:
    config = RunConfig(env_seeds="generation")
    assert with_chosen_strategy(config, 1).env_seeds == "generation"
    assert with_chosen_strategy(RunConfig(strategy=SMALL), 1).env_seeds == AUTO


def test_settings_that_do_not_fit_what_was_chosen_are_refused() -> None:
    with pytest.raises(UsageError, match="population is 7, but pgpe samples mirrored pairs"):
        prepared(policy="mlp", population=7)
    assert prepared(population=7)[1].strategy.per_slot == 1


def test_a_strategy_made_from_python_is_chosen_too() -> None:
    config = RunConfig(noise_size=2**16)
    assert make_strategy(config, 10).config.strategy == SMALL
    assert make_strategy(config, MOST_SMALL + 1).config.strategy == GENERAL
