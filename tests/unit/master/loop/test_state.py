"""A run's state survives its way through a checkpoint to the last bit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from es_queue.errors import RunFolderError
from es_queue.strategies.base import Batch
from master.loop.state import RunState
from master.storage import checkpoint
from tests.cases import each_case
from tests.parts import TABLE, setup_of, trained


def same(one: RunState, other: RunState) -> bool:
    mine, theirs = one.to_arrays(), other.to_arrays()
    equal = all(
        mine[name].tobytes() == theirs[name].tobytes() and mine[name].dtype == theirs[name].dtype
        for name in mine
    )
    moments = (
        one.moments.mean.tobytes() == other.moments.mean.tobytes()
        and one.moments.m2.tobytes() == other.moments.m2.tobytes()
    )
    return set(mine) == set(theirs) and equal and moments and one.to_dict() == other.to_dict()


@each_case(
    ("strategy", "values"),
    [
        ("ars", {}),
        ("openai_es", {}),
        ("openai_es", {"optimizer": "sgd"}),
        ("pgpe", {}),
        ("pgpe", {"optimizer": "adam"}),
        ("pgpe", {"optimizer": "sgd"}),
    ],
)
def test_every_part_of_a_state_comes_back_from_a_checkpoint(
    strategy: str, values: dict[str, Any]
) -> None:
    setup = setup_of(strategy, **values)
    state = trained(setup)
    centre = setup.strategy.centre(setup.strategy.published(state.strategy))
    config, back, run = checkpoint.decode(
        checkpoint.encode(setup.config, setup.spec, "a-run", state, centre)
    )
    assert (config, run) == (setup.config, "a-run")
    assert same(back, state)
    assert len(state.strategy) > 1 or strategy == "ars"


@each_case("strategy", ["ars", "openai_es", "pgpe"])
def test_learning_goes_on_from_a_checkpoint_as_if_nothing_had_been(strategy: str) -> None:
    setup = setup_of(strategy)
    state = trained(setup)
    back = checkpoint.decode(
        checkpoint.encode(setup.config, setup.spec, "a-run", state, np.zeros(6, np.float32))
    )[1]
    batch = Batch(TABLE, np.arange(4) * 50, np.arange(8.0).reshape(4, 2) ** 2)
    one, other = (setup.strategy.learn(each.strategy, batch)[0] for each in (state, back))
    assert {name: array.tobytes() for name, array in one.items()} == {
        name: array.tobytes() for name, array in other.items()
    }


def test_a_fresh_state_without_a_best_comes_back_too() -> None:
    setup = setup_of("pgpe")
    state = setup.initial_state()
    back = RunState.from_checkpoint(state.to_arrays(), json.loads(json.dumps(state.to_dict())))
    assert same(back, state) and back.best is None and back.confirm_mean is None


def test_the_scalars_are_plain_data() -> None:
    state = trained(setup_of("ars"))
    assert json.loads(json.dumps(state.to_dict())) == state.to_dict()


@each_case("missing", ["generation", "counters", "best", "stage", "step_limit", "reproducible"])
def test_a_state_that_lacks_a_part_is_refused_in_one_sentence(missing: str) -> None:
    state = trained(setup_of("ars"))
    values = state.to_dict()
    del values[missing]
    with pytest.raises(RunFolderError, match="does not hold a run's state"):
        RunState.from_checkpoint(state.to_arrays(), values)


@each_case("missing", ["moments_mean", "moments_count", "best.std"])
def test_a_state_that_lacks_an_array_is_refused_in_one_sentence(missing: str) -> None:
    state = trained(setup_of("ars"))
    arrays = state.to_arrays()
    del arrays[missing]
    with pytest.raises(RunFolderError):
        RunState.from_checkpoint(arrays, state.to_dict())


def test_counters_add_up() -> None:
    state = trained(setup_of("ars"))
    counted = state.add_counts(env_steps=5, seconds=0.5)
    assert counted == replace(
        state.counters, env_steps=state.counters.env_steps + 5, seconds=state.counters.seconds + 0.5
    )
