"""Virtual batch normalisation: what a batch makes of a layer, where the batch comes from, and that
a checkpoint carries it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import (
    BATCH_SIZE,
    STEPS_BETWEEN,
    make_reference_batch,
)
from es_queue.errors import RunFolderError
from es_queue.policies import Policy, make_policy
from es_queue.policies.base import EPSILON
from es_queue.policies.conv import ConvPolicy
from es_queue.policies.linear_mlp import MlpPolicy
from es_queue.policies.saved_policy import load_policy
from master.loop.checkpoint import Checkpoints, encode, encode_best
from master.loop.state import Best
from master.run.setup import prepare_run
from tests.cases import each_case
from tests.memory import quick_config
from tests.parts import built
from tests.unit.es_queue.policies.test_conv import SMALL, discrete, drawn

NORMALISED = {"policy": "mlp", "hidden": (6, 5), "batch_norm": "virtual"}


def restless(policy: Policy, count: int) -> np.ndarray:
    return np.stack(
        [policy.initial(seed, "normal") + 0.1 * drawn(seed, policy.size) for seed in range(count)]
    )


def conv(
    kind: str, shape: tuple[int, ...] = SMALL, reference: np.ndarray | None = None, choices: int = 6
) -> ConvPolicy:
    policy = make_policy(
        RunConfig(policy=kind, batch_norm="virtual"),
        int(np.prod(shape)),
        discrete(choices),
        shape,
        reference,
    )
    assert isinstance(policy, ConvPolicy)
    return policy


def test_uber_s_network_has_its_published_number_of_parameters() -> None:
    assert conv("uber", (4, 84, 84), choices=18).size == 1_009_058


def mlp_by_definition(policy: MlpPolicy, vector: np.ndarray, x: np.ndarray) -> np.ndarray:
    """scale · (z - mean) / deviation + shift, in float64, of the batch and of x side by side."""
    batch = policy.reference.astype(np.float64)
    layers = [
        (weights[0].astype(np.float64), bias[0]) for weights, bias in policy.layers(vector[None])
    ]
    at = sum(weights.size + bias.size for weights, bias in layers)
    for weights, bias in layers[:-1]:
        batch, x, columns = batch @ weights + bias, x @ weights + bias, len(bias)
        mean, deviation = batch.mean(0), np.sqrt(batch.var(0) + EPSILON)
        scale, shift = vector[at : at + columns], vector[at + columns : at + 2 * columns]
        at += 2 * columns
        batch, x = (np.tanh(scale * (one - mean) / deviation + shift) for one in (batch, x))
    return x @ layers[-1][0] + layers[-1][1]


def test_a_hidden_layer_is_normalised_by_its_statistics_over_the_batch() -> None:
    policy = built("mlp", 3, 2, drawn(1, 40, 3), hidden=(6, 5), batch_norm="virtual")
    vector, x = restless(policy, 1)[0], drawn(2, 3)
    np.testing.assert_allclose(
        policy.bind(vector[None]).act_one(x),
        mlp_by_definition(policy, vector, x),
        rtol=1e-3,
        atol=1e-5,
    )


# --- the batch of a run


def test_the_batch_is_a_function_of_seed_and_environment() -> None:
    config = quick_config(**NORMALISED)
    batch = make_reference_batch(config)
    assert batch is not None and batch.shape == (BATCH_SIZE, 4) and batch.dtype == np.float32
    assert np.array_equal(make_reference_batch(replace(config, population=4)), batch)
    assert not np.array_equal(
        make_reference_batch(quick_config(**{**NORMALISED, "seed": 4})), batch
    )
    assert make_reference_batch(quick_config()) is None
    assert len(np.unique(batch, axis=0)) == BATCH_SIZE and STEPS_BETWEEN > 1


def test_a_checkpoint_carries_the_batch_and_acts_as_the_run_does(tmp_path: Path) -> None:
    setup = prepare_run(quick_config(**NORMALISED))
    state = setup.initial_state()
    assert not setup.config.obs_norm
    parameters, seen = setup.first_parameters(), drawn(3, 4)
    data = encode(setup.config, setup.spec, "a-run", state, parameters)
    saved = load_policy(Checkpoints(tmp_path).save(0, data))
    expected = setup.policy.bind(parameters[None]).act_one(seen)
    assert saved.policy.bind(saved.parameters[None]).act_one(seen).tobytes() == expected.tobytes()
    assert saved.act(seen) == int(expected.argmax())


@each_case(
    "batch", [None, np.zeros((3, 5)), np.zeros((0, 4)), np.zeros(4), np.full((2, 4), np.nan)]
)
def test_a_checkpoint_without_a_possible_batch_is_refused(
    tmp_path: Path, batch: np.ndarray | None
) -> None:
    setup = prepare_run(quick_config(**NORMALISED))
    best = Best(setup.first_parameters(), np.zeros(4, np.float32), np.ones(4, np.float32), 0, 0.0)
    data = encode_best(setup.config, setup.spec, "a-run", best, None)
    with np.load(Checkpoints(tmp_path).save_best(data)) as saved:
        arrays = {name: saved[name] for name in saved if name != "reference"}
    path = tmp_path / "changed.npz"
    np.savez(path, **arrays, **({} if batch is None else {"reference": batch}))
    with pytest.raises(RunFolderError, match=r"reference"):
        load_policy(path)
