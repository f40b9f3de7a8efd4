"""A run's state survives its way through a checkpoint to the last bit."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from es_queue.errors import RunFolderError
from es_queue.normalization import RunningMoments
from es_queue.strategies.base import Batch
from master import checkpoint
from master.setup import Setup, prepare
from master.state import FINAL, Best, Counters, RunState
from tests.ring import quick_config
from tests.tiny import QUAD
from tests.unit.test_evaluate import TABLE


def setup_of(strategy: str, **values: Any) -> Setup:
    return prepare(quick_config(env=QUAD, strategy=strategy, population=8, noise_size=TABLE.size, **values), table=TABLE)


def trained(setup: Setup, generations: int = 3) -> RunState:
    """A state that has moved: optimiser moments, statistics, counters and a best policy in it."""
    state, rng = setup.start(), np.random.default_rng(2)
    for _ in range(generations):
        batch = Batch(TABLE, rng.integers(0, 1000, 4), rng.normal(size=(4, 2)))
        state = replace(state, generation=state.generation + 1, strategy=setup.strategy.learn(state.strategy, batch)[0])
    best = Best(rng.normal(size=setup.policy.size).astype(np.float32), np.float32([1, 2, 3]), np.float32([4, 5, 6]), 2, 1 / 3, True)
    counters = Counters(**{one.name: number / 3 if one.name == "seconds" else number for number, one in enumerate(fields(Counters), 2**40)})
    moments = RunningMoments(17, rng.normal(size=3), rng.normal(size=3) ** 2)
    return replace(
        state, moments=moments, best=best, counters=counters, stage=FINAL, reason="target", step_limit=4,
        confirm_mean=0.1 + 0.2, last_evaluation=-1e-300, reproducible=False,
    )  # fmt: skip


def same(one: RunState, other: RunState) -> bool:
    mine, theirs = one.to_arrays(), other.to_arrays()
    equal = all(mine[name].tobytes() == theirs[name].tobytes() and mine[name].dtype == theirs[name].dtype for name in mine)
    return set(mine) == set(theirs) and equal and one.to_dict() == other.to_dict()


@pytest.mark.parametrize(
    ("strategy", "values"),
    [("ars", {}), ("openai_es", {}), ("openai_es", {"optimizer": "sgd"}), ("pgpe", {}), ("pgpe", {"optimizer": "adam"}), ("pgpe", {"optimizer": "sgd"})],
)
def test_every_part_of_a_state_comes_back_from_a_checkpoint(strategy: str, values: dict[str, Any]) -> None:
    setup = setup_of(strategy, **values)
    state = trained(setup)
    centre = setup.strategy.centre(setup.strategy.published(state.strategy))
    config, back, run = checkpoint.decode(checkpoint.encode(setup.config, setup.spec, "a-run", state, centre))
    assert (config, run) == (setup.config, "a-run")
    assert same(back, state)
    assert len(state.strategy) > 1 or strategy == "ars"


@pytest.mark.parametrize("strategy", ["ars", "openai_es", "pgpe"])
def test_learning_goes_on_from_a_checkpoint_as_if_nothing_had_been(strategy: str) -> None:
    setup = setup_of(strategy)
    state = trained(setup)
    back = checkpoint.decode(checkpoint.encode(setup.config, setup.spec, "a-run", state, np.zeros(6, np.float32)))[1]
    batch = Batch(TABLE, np.arange(4) * 50, np.arange(8.0).reshape(4, 2) ** 2)
    one, other = (setup.strategy.learn(each.strategy, batch)[0] for each in (state, back))
    assert {name: array.tobytes() for name, array in one.items()} == {name: array.tobytes() for name, array in other.items()}


def test_a_fresh_state_without_a_best_comes_back_too() -> None:
    setup = setup_of("pgpe")
    state = setup.start()
    back = RunState.read(state.to_arrays(), json.loads(json.dumps(state.to_dict())))
    assert same(back, state) and back.best is None and back.confirm_mean is None


def test_the_scalars_are_plain_data() -> None:
    state = trained(setup_of("ars"))
    assert json.loads(json.dumps(state.to_dict())) == state.to_dict()


@pytest.mark.parametrize("missing", ["generation", "counters", "best", "stage", "step_limit", "reproducible"])
def test_a_state_that_lacks_a_part_is_refused_in_one_sentence(missing: str) -> None:
    state = trained(setup_of("ars"))
    values = state.to_dict()
    del values[missing]
    with pytest.raises(RunFolderError, match="does not hold a run's state"):
        RunState.read(state.to_arrays(), values)


@pytest.mark.parametrize("missing", ["moments_mean", "moments_count", "best.std"])
def test_a_state_that_lacks_an_array_is_refused_in_one_sentence(missing: str) -> None:
    state = trained(setup_of("ars"))
    arrays = state.to_arrays()
    del arrays[missing]
    with pytest.raises(RunFolderError):
        RunState.read(arrays, state.to_dict())


def test_counters_add_up() -> None:
    state = trained(setup_of("ars"))
    counted = state.counted(env_steps=5, seconds=0.5)
    assert counted == replace(state.counters, env_steps=state.counters.env_steps + 5, seconds=state.counters.seconds + 0.5)
