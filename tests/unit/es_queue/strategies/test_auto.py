"""What ``--strategy auto`` chooses, and what a run makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from es_queue.config.recipes import resolve
from es_queue.config.run_config import RunConfig, every_setting
from es_queue.config.settings import AUTO
from es_queue.errors import UsageError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.strategies.auto import MOST_SMALL, format_choice, with_chosen_strategy
from master.run.setup import Setup, prepare_run
from tests.cases import each_case


def prepared(**values: Any) -> tuple[RunConfig, Setup]:
    config = resolve({"env": "MountainCar-v0", "noise_size": 2**16, "seed": 1, **values})
    return config, prepare_run(config, table=NoiseTable.in_memory(2**16))


def chosen(size: int = 3, **values: Any) -> tuple[str, str]:
    config = with_chosen_strategy(resolve({"env": "MountainCar-v0", **values}), size)
    return config.strategy, config.env_seeds


def test_the_size_of_the_policy_decides() -> None:
    assert RunConfig().strategy == AUTO
    assert chosen(1) == chosen(2000) == ("snes", "slot")
    assert chosen(2001) == ("pgpe", "auto")
    assert f"{MOST_SMALL:,} parameters" in every_setting()["strategy"].text


def test_a_named_strategy_and_given_seeds_stay() -> None:
    assert chosen(10**6, strategy="cma_es") == ("cma_es", "auto")
    assert chosen(1, strategy="snes") == ("snes", "auto")
    assert chosen(1, env_seeds="generation") == ("snes", "generation")


@each_case(
    "values, strategy",
    [
        ({"optimizer": "adam"}, "pgpe"),
        ({"learning_rate": 0.1}, "pgpe"),
        ({"env_seeds": "pair"}, "pgpe"),
        ({"linear_share": 0.5, "average_decay": 0.5}, "snes"),
        ({"learning_rate": "auto", "average_decay": 0}, "snes"),
    ],
)
def test_settings_of_a_strategy_choose_one_that_uses_them(
    values: dict[str, Any], strategy: str
) -> None:
    assert chosen(**values)[0] == strategy


@each_case(
    "values, name",
    [
        ({"max_speed": 0.3, "linear_share": 0.5}, "linear_share"),
        ({"env_seeds": "pair", "linear_share": 0.5}, "linear_share"),
    ],
)
def test_a_setting_that_the_chosen_one_does_not_use_is_refused(
    values: dict[str, Any], name: str
) -> None:
    chooser = "the strategy pgpe, which auto chooses for the given settings, does not use it"
    with pytest.raises(UsageError, match=f"{name} is {values[name]}, but {chooser}"):
        RunConfig.of({"env": "MountainCar-v0", **values}, "the settings")


@each_case(
    "values, note",
    [
        ({}, "strategy snes with env_seeds slot, chosen for a policy of 9 parameters"),
        (
            {"policy": "mlp"},
            "strategy pgpe with env_seeds pair, chosen for a policy of 4,547 parameters",
        ),
        (
            {"learning_rate": 0.1},
            "strategy pgpe with env_seeds pair, chosen for the given settings",
        ),
    ],
)
def test_a_run_stores_what_was_chosen_and_notes_it(values: dict[str, Any], note: str) -> None:
    requested, setup = prepared(**values)
    config = setup.config
    assert requested.strategy == AUTO
    assert setup.learner.config == config
    assert format_choice(requested, config, setup.policy.size) == [f"{note} (docs/choosing.md)"]
    assert format_choice(config, config, setup.policy.size) == []
    assert prepare_run(config, table=setup.table).config == config
