"""A warm start: what a checkpoint brings into a new run, and which it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.errors import UsageError
from es_queue.numerics.statistics import Moments
from es_queue.pretrained import environment_names, path_of
from master.loop.checkpoint import Checkpoints, encode, encode_best
from master.loop.state import RunState
from master.run.launch import parse_warm_start
from master.run.setup import Setup
from master.run.warm_start import WIDENED_COUNT, extend_moments, make_warm_state, read_warm_start
from tests.cases import each_case
from tests.parts import setup_of, trained


def seen(setup: Setup) -> RunState:
    """A state that has learnt something, and seen 500 observations."""
    rows = np.random.default_rng(1).normal(3.0, 2.0, (500, setup.spec.observation_size))
    state = trained(setup)
    return replace(state, moments=state.moments.merge(Moments.of(rows)))


def saved(folder: Path, setup: Setup, state: RunState, *, best: bool = False) -> Path:
    checkpoints = Checkpoints(folder)
    if best:
        assert state.best is not None
        return checkpoints.save_best(encode_best(setup.config, setup.spec, "old", state.best, None))
    return checkpoints.save(
        state.generation,
        encode(setup.config, setup.spec, "old", state, state.strategy["parameters"]),
    )


def test_parameters_and_statistics_come_over_to_the_bit_and_the_optimiser_begins_afresh(
    tmp_path: Path,
) -> None:
    setup = setup_of("openai_es")
    old = seen(setup)
    state = make_warm_state(setup, saved(tmp_path, setup, old))
    np.testing.assert_array_equal(state.strategy["parameters"], old.strategy["parameters"])
    np.testing.assert_array_equal(state.moments.m2, old.moments.m2)
    assert (state.generation, state.moments.count, int(state.strategy["step"])) == (
        0,
        old.moments.count,
        0,
    )
    assert state.origin.startswith("generation 3 of run old, digest ")
    assert RunState.restore(*state.save()).origin == state.origin


def test_unknown_observations_begin_as_in_generation_0_and_are_soon_known() -> None:
    moments = seen(setup_of("ars")).moments
    many = replace(
        moments,
        count=100 * WIDENED_COUNT,
        m2=moments.m2 * (100 * WIDENED_COUNT / moments.count),
    )
    wide = extend_moments(many, 5)
    frozen = wide.freeze(0.0)
    assert wide.count == WIDENED_COUNT
    np.testing.assert_array_equal(frozen.mean[3:], [0, 0])
    np.testing.assert_array_equal(frozen.std[3:], [1, 1])
    np.testing.assert_allclose(frozen.std[:3], moments.freeze(0.0).std, rtol=1e-6)
    assert extend_moments(many, 3) is many
    chosen = extend_moments(many, 3, np.array([2, 0])).freeze(0.0)  # by --observe
    np.testing.assert_allclose(chosen.std, [frozen.std[0], 1, frozen.std[2]], rtol=1e-6)
    assert chosen.mean[1] == 0 and chosen.mean[2] == frozen.mean[2]


@each_case(
    ("values", "sentence"),
    [
        (
            {"obs_norm": False},
            "it was trained with obs_norm True, but this run has False: use the same",
        ),
        ({"obs_clip": 1.0}, "it was trained with obs_clip 5.0, but this run has 1.0"),
        ({"policy": "mlp"}, "a linear policy cannot become a mlp one"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(
    values: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    setup = setup_of("ars")
    path = saved(tmp_path, setup, seen(setup))
    with pytest.raises(UsageError, match=rf"warm-start .* does not fit this run: {sentence}"):
        make_warm_state(setup_of("ars", **values), path)


# --- policies that come along


@each_case("name", [name for name in environment_names() if path_of(name).suffix == ".npz"])
def test_a_policy_that_comes_along_begins_a_run_by_its_name(name: str) -> None:
    path = parse_warm_start(f"pretrained:{name}")
    _, moments, origin = read_warm_start(path)
    assert path == path_of(name)
    assert bool((moments.m2 >= 0).all()) and origin.startswith("generation ")
