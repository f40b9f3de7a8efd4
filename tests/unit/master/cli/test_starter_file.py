"""Experiment files of evolution-strategies-starter: each key becomes a setting, or is said to have
no counterpart.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.resolution import resolve
from es_queue.errors import UsageError
from master.cli.options import parse_command_line
from master.cli.starter_file import RULES, read_starter_file
from tests.cases import each_case


def humanoid() -> dict[str, Any]:
    """The structure of the starter's own example."""
    return {
        "config": {
            "calc_obstat_prob": 0.01,
            "episodes_per_batch": 10000,
            "eval_prob": 0.003,
            "l2coeff": 0.005,
            "noise_stdev": 0.02,
            "snapshot_freq": 20,
            "timesteps_per_batch": 100000,
            "return_proc_mode": "centered_rank",
            "episode_cutoff_mode": "env_default",
        },
        "env_id": "Humanoid-v1",
        "exp_prefix": "humanoid",
        "optimizer": {"args": {"stepsize": 0.01}, "type": "adam"},
        "policy": {
            "args": {
                "ac_bins": "continuous:",
                "ac_noise_std": 0.01,
                "nonlin_type": "tanh",
                "hidden_dims": [256, 256],
                "connection_type": "ff",
            },
            "type": "MujocoPolicy",
        },
    }


def frostbite(kind: str) -> dict[str, Any]:
    """The structure of deep-neuroevolution's examples: es, ga or ns."""
    data: dict[str, Any] = {
        "config": {**humanoid()["config"], "calc_obstat_prob": 0.0, "episode_cutoff_mode": 5000},
        "env_id": "FrostbiteNoFrameskip-v4",
        "optimizer": {"args": {"stepsize": 0.01}, "type": "adam"},
        "policy": {"args": {}, "type": "ESAtariPolicy"},
    }
    if kind == "ga":
        del data["optimizer"]
        policy = {"args": {"nonlin_type": "relu"}, "type": "GAAtariPolicy"}
        return {**data, "population_size": 10, "num_elites": 1, "policy": policy}
    search = {"k": 7, "population_size": 3, "num_rollouts": 2, "selection_method": "novelty_prob"}
    return {**data, "algo_type": "ns", "novelty_search": search} if kind == "ns" else data


def written(folder: Path, data: Any) -> Path:
    path = folder / "experiment.json"
    path.write_text(json.dumps(data))
    return path


def changed(part: str, key: str, value: Any, data: dict[str, Any] | None = None) -> dict[str, Any]:
    data = humanoid() if data is None else data
    place = data
    for name in part.split(".") if part else ():
        place = place[name]
    place[key] = value
    return data


def test_the_starters_own_example_becomes_settings_of_ours(tmp_path: Path) -> None:
    values, _ = read_starter_file(written(tmp_path, humanoid()))
    assert values == {
        "obs_norm": True,
        "obs_sample": 0.01,
        "population": 10000,
        "eval_every": 1,
        "eval_episodes": 3,
        "l2": 0.005,
        "sigma": 0.02,
        "min_steps": 100000,
        "shaping": "centered-rank",
        "snapshot_every": 20,
        "step_limit": "env",
        "env": "Humanoid-v1",
        "learning_rate": 0.01,
        "optimizer": "adam",
        "action_bins": "none",
        "action_noise": 0.01,
        "activation": "tanh",
        "hidden": (256, 256),
        "policy": "mlp",
        "strategy": "openai_es",
    }
    assert resolve(values).gradient_form == "starter"


ATARI = {
    "env": "FrostbiteNoFrameskip-v4",
    "env_arg": (("frameskip", 4),),
    "policy": "uber",
    "obs_norm": False,
    "step_limit": "5000",
    "sigma": 0.02,
    "population": 10000,
    "min_steps": 100000,
}
ADAM = {"optimizer": "adam", "learning_rate": 0.01, "l2": 0.005, "batch_norm": "virtual"}


@each_case(
    ("kind", "settings", "lines"),
    [
        ("es", {"strategy": "openai_es", "shaping": "centered-rank", **ADAM}, 14),
        ("ga", {"strategy": "ga", "truncation": 10, "batch_norm": "none"}, 15),
        (
            "ns",
            {
                "strategy": "novelty",
                "novelty": "ns",
                "neighbours": 7,
                "members": 3,
                "member_init": "own",
                "behaviour_episodes": 2,
                **ADAM,
            },
            19,
        ),
    ],
)
def test_ubers_examples_become_settings_of_ours(
    tmp_path: Path, kind: str, settings: dict[str, Any], lines: int
) -> None:
    values, printed = read_starter_file(written(tmp_path, frostbite(kind)))
    config = resolve(values)
    expected = {**ATARI, **settings}
    assert {name: getattr(config, name) for name in expected} == expected
    assert len(printed) == lines
    assert any(
        line.startswith("env_id FrostbiteNoFrameskip-v4 -> --env FrostbiteNoFrameskip-v4 ")
        and "--env-arg frameskip=4 (" in line
        for line in printed
    )


@each_case(
    ("kind", "part", "key", "value", "words"),
    [
        ("ga", "", "num_elites", 2, "num_elites 2: use 1, because there is one elite"),
        ("ns", "novelty_search", "selection_method", "round_robin", "use novelty_prob"),
        ("ns", "", "algo_type", "nsra", "use ns or nsr"),
        ("ga", "policy.args", "nonlin_type", "tanh", "use relu"),
        ("es", "", "num_elites", 1, "'num_elites', which neither"),
        ("es", "policy", "type", "AtariPolicy", "MujocoPolicy, ESAtariPolicy and GAAtariPolicy"),
    ],
)
def test_what_of_ubers_has_no_counterpart_is_refused_by_name(
    tmp_path: Path, kind: str, part: str, key: str, value: Any, words: str
) -> None:
    data = changed(part, key, value, frostbite(kind))
    with pytest.raises(UsageError) as refused:
        read_starter_file(written(tmp_path, data))
    assert words in str(refused.value)


def test_every_key_is_told(tmp_path: Path) -> None:
    _, lines = read_starter_file(written(tmp_path, humanoid()))
    keys = {line.split(" ")[0] for line in lines[:-1]}
    assert keys == set(RULES) - {
        "optimizer.args.momentum",
        "optimizer.args.beta1",
        "optimizer.args.beta2",
        "optimizer.args.epsilon",
        "policy.init_from",
    }
    assert "config.noise_stdev 0.02 -> --sigma 0.02" in lines
    assert any(line.startswith("config.snapshot_freq 20 -> --snapshot-every 20") for line in lines)
    assert all(" -> --" in line or " -> no counterpart: " in line for line in lines)


def test_a_flag_wins_over_the_file_and_the_launch_tells(tmp_path: Path) -> None:
    values, launch = parse_command_line(
        ["--config", str(written(tmp_path, humanoid())), "--sigma", "0.05", "--env", "Humanoid-v5"]
    )
    assert (values["sigma"], values["env"], values["l2"]) == (0.05, "Humanoid-v5", 0.005)
    assert len(launch.starter_notes) == 20


@each_case(
    ("part", "key", "value", "setting", "ours"),
    [
        (
            "config",
            "episode_cutoff_mode",
            "adaptive:100,0.5,1.5",
            "step_limit",
            "adaptive:100,0.5,1.5",
        ),
        ("config", "calc_obstat_prob", 0, "obs_norm", False),
        ("config", "eval_prob", 0, "eval_every", 0),
        ("config", "episodes_per_batch", 39, "population", 40),
        ("config", "return_proc_mode", "centered_sign_rank", "shaping", "centered-sign-rank"),
        ("policy.args", "ac_bins", "uniform:10", "action_bins", "uniform:10"),
    ],
)
def test_each_form_of_a_value_has_its_counterpart(
    tmp_path: Path, part: str, key: str, value: Any, setting: str, ours: Any
) -> None:
    assert read_starter_file(written(tmp_path, changed(part, key, value)))[0][setting] == ours


@each_case(
    ("part", "key", "value", "words"),
    [
        ("config", "l2coeff", "much", "l2"),
        ("config", "noise_sigma", 0.1, "noise_sigma"),
        ("config", "eval_prob", 3, "probability from 0 to 1"),
        ("config", "episodes_per_batch", 0.5, "whole number"),
        ("config", "return_proc_mode", "centred", "centered_rank or sign"),
        ("policy.args", "nonlin_type", "gelu", "tanh or relu or lrelu or elu"),
        ("policy", "type", "AtariPolicy", "MujocoPolicy"),
        ("policy.args", "connection_type", "lstm", "ff"),
        ("optimizer", "type", "rmsprop", "adam or sgd"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(
    tmp_path: Path, part: str, key: str, value: Any, words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        read_starter_file(written(tmp_path, changed(part, key, value)))
    assert words in str(refused.value) and "experiment.json" in str(refused.value)


@each_case("data", [{}, [], {"env_id": "Humanoid-v1"}, 3])
def test_other_json_is_no_experiment_file(tmp_path: Path, data: Any) -> None:
    with pytest.raises(UsageError, match="not an experiment file of evolution-strategies-starter"):
        read_starter_file(written(tmp_path, data))


def test_a_file_that_is_no_json_or_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        read_starter_file(tmp_path / "torn.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_starter_file(tmp_path / "gone.json")


def test_a_file_that_nests_without_end_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text(
        '{"env_id": "A-v0", "optimizer": {}, "policy": {}, "config": '
        + '{"a": ' * 900
        + "1"
        + "}" * 901
    )
    with pytest.raises(UsageError, match=r"config.a.a"):
        read_starter_file(deep)
