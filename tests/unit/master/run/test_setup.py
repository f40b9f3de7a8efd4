"""From a configuration to a run: what the master decides once, and what it refuses before anything
starts.
"""

from __future__ import annotations

from typing import Any

import pytest

from es_queue.errors import UsageError
from master.run.setup import (
    new_run_notes,
    prepare_run,
    validate_action_bound,
)
from tests.cases import each_case
from tests.memory import quick_config
from tests.parts import TABLE
from tests.tiny import QUAD


def refused(**values: Any) -> str:
    with pytest.raises(UsageError) as caught:
        prepare_run(quick_config(**values), table=TABLE)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@each_case(("env", "said"), [("CartPole", True), ("CartPole-v1", False)])
def test_a_new_run_names_the_version_that_it_trains(env: str, said: bool) -> None:
    config = quick_config(env=env, strategy="snes")
    notes = new_run_notes(config, prepare_run(config, table=TABLE))
    assert any("this run trains CartPole-v1" in note for note in notes) == said


def test_observations_are_not_normalised_if_old_generations_are_compared_with_new_ones() -> None:
    requested = quick_config(strategy="map_elites")
    setup = prepare_run(requested, table=TABLE)
    assert requested.obs_norm and not setup.config.obs_norm
    assert "compares results of all generations" in new_run_notes(requested, setup)[0]


def test_a_noise_table_without_a_place_for_every_slot_is_refused() -> None:
    assert "64 slots need as many different positions for 10 parameters: use 74 or more" in refused(
        noise_size=70, population=64
    )
    assert (
        prepare_run(quick_config(noise_size=74, population=64), table=TABLE).config.noise_size == 74
    )


def test_patience_is_refused_where_rewards_are_never_positive() -> None:
    assert "never positive" in refused(env="Pendulum-v1", patience="50,0")
    assert "never positive" in refused(env="Pendulum-v1", patience="50,0", reward_shift=1.0)
    assert prepare_run(
        quick_config(env="Pendulum-v1", patience="50,0", reward_shift=-1.0), table=TABLE
    )
    assert prepare_run(quick_config(patience="50,0"), table=TABLE)


def test_stall_is_refused_beyond_the_observation() -> None:
    assert "observations 0 to 3" in refused(stall="4:0.1:10")
    assert prepare_run(quick_config(stall="3:0.1:10"), table=TABLE)


def test_action_noise_is_refused_where_actions_are_choices() -> None:
    assert "no continuous actions" in refused(action_noise=0.1)
    assert prepare_run(quick_config(env=QUAD, action_noise=0.1), table=TABLE)


def test_a_bound_of_actions_that_are_choices_is_refused_in_a_new_run_and_read_in_an_old_one() -> (
    None
):
    config = quick_config(env="CartPole-v1", action_bound="tanh")
    setup = prepare_run(config, table=TABLE)
    with pytest.raises(
        UsageError, match="action_bound is tanh, but CartPole-v1 has discrete actions"
    ):
        validate_action_bound(config, setup.spec)
    box = quick_config(env="Pendulum-v1", action_bound="tanh")
    validate_action_bound(box, prepare_run(box, table=TABLE).spec)
