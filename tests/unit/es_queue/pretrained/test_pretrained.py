"""Policies that come with the package: small, with the command and digest that made them, and as
good as they say.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue import pretrained
from es_queue.numerics.fingerprint import array_digest
from master.loop.checkpoint import Checkpoints
from tests.cases import each_case
from tests.memory import quick_config, run_ring
from tools.bundle_policy import main as adding
from workers.es_play import main
from workers.policy_files import read_contents

QUICK: dict[str, Any] = {
    "population": 4,
    "generations": 1,
    "eval_every": 1,
    "eval_episodes": 1,
    "final_episodes": 2,
    "target_reward": "none",
}


@pytest.fixture(autouse=True)
def noise_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path_factory.getbasetemp() / "noise"))


@each_case("environment", pretrained.environment_names())
def test_each_is_small_and_is_the_policy_that_its_digest_names(environment: str) -> None:
    path = pretrained.path_of(environment)
    arrays, meta = read_contents(path)
    assert path.stat().st_size <= pretrained.MAX_BYTES
    assert array_digest(np.asarray(arrays["parameters"], np.float32)) == meta.get(
        "digest", json.loads(path.read_text())["digest"] if path.suffix == ".json" else ""
    )
    assert pretrained.training_command(meta).startswith(
        f"es-master --env {environment} "
    ) and f"--seed {meta['config']['seed']}" in pretrained.training_command(meta)


@pytest.mark.slow
@pytest.mark.parametrize("environment", pretrained.environment_names())
def test_each_repeats_its_recorded_evaluation(
    environment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine of other bits the mean may differ, but not by much."""
    assert main(["--pretrained", environment, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["episodes"] == 100 and found["eval_mean"] == pytest.approx(
        found["recorded"], rel=0.1
    )


def test_it_is_said_who_made_it_and_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pretrained", "CartPole-v1", "--episodes", "1"]) == 0
    assert "trained with: es-master --env CartPole-v1 --seed 1\n" in capsys.readouterr().out
    assert main(["--pretrained", "Nothing-v0"]) == 2
    assert (
        "there is no bundled policy for 'Nothing-v0'; there are policies for Acrobot-v1, "
        in capsys.readouterr().err
    )
    for argv in ([], ["--pretrained", "CartPole-v1", "some.npz"]):
        assert main(argv) == 2
        assert "give either a CHECKPOINT or --pretrained ENV" in capsys.readouterr().err


@each_case(("strategy", "ending"), [("pgpe", ".npz"), ("ga", ".json")])
def test_a_runs_policy_is_added_and_takes_the_place_of_the_former(
    strategy: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ring(quick_config(strategy=strategy, **QUICK), checkpoints=Checkpoints(tmp_path / "run"))
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    for other in pretrained.ENDINGS:
        (shipped / f"CartPole-v1{other}").touch()
    assert (
        adding(
            [
                str(tmp_path / "run"),
                "es-master --env CartPole-v1 --seed 3",
                "--folder",
                str(shipped),
            ]
        )
        == 0
    )
    assert [one.name for one in shipped.iterdir()] == [
        f"CartPole-v1{ending}"
    ] and pretrained.environment_names(shipped) == ["CartPole-v1"]
    capsys.readouterr()
    assert main([str(pretrained.path_of("CartPole-v1", shipped))]) == 0
    told = capsys.readouterr().out
    assert (
        "equal to the recorded evaluation to the last digit" in told
        and "trained with: es-master --env CartPole-v1 --seed 3" in told
    )
