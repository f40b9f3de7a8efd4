"""Seed lists: a policy in a few bytes a mutation, played to the same digit, every damage one
sentence.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from es_queue.errors import RunFolderError
from es_queue.files import read_npz
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies.saved_policy import POLICY_ARRAYS
from es_queue.seed_list import MAX_BYTES, format_seed_list, read_seed_list
from master.loop.checkpoint import Checkpoints
from tests.cases import each_case
from tests.memory import quick_config, run_ring
from workers.es_play import main

GA: dict[str, Any] = {
    "strategy": "ga",
    "population": 16,
    "truncation": 4,
    "candidates": 3,
    "elite_episodes": 3,
    "generations": 5,
    "eval_every": 1,
    "eval_episodes": 5,
    "final_episodes": 6,
    "target_reward": "none",
    "policy": "mlp",
    "hidden": (8,),
    "sigma": 0.3,
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ga")
    run_ring(quick_config(**GA), 2, checkpoints=Checkpoints(folder))
    return folder


@pytest.fixture(autouse=True)
def noise_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path_factory.getbasetemp() / "noise"))


@pytest.fixture
def exported(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main([str(run_folder), "--export", str(tmp_path / "elite.json")]) == 0
    assert "es-play plays it" in capsys.readouterr().out
    return tmp_path / "elite.json"


def test_an_exported_elite_plays_the_final_evaluation_to_the_last_digit(
    run_folder: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (run_folder, exported):
        assert main([str(path), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["equal"] and second["equal"]
    assert {**first, "checkpoint": ""} == {**second, "checkpoint": ""}


def damaged(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    return path


@each_case(
    ("change", "sentence"),
    [
        (lambda values: values.update(format=0), "it is not of format 1"),
        (lambda values: values.pop("seeds"), "has no 'seeds'"),
        (lambda values: values["seeds"].append(-1), "not a list of noise indices"),
        (lambda values: values["seeds"].append(2**32 - 1), "noise index"),
        (lambda values: values.update(sigma=[0.3] * 99), "sigma"),
        (lambda values: values["seeds"].append(5), "its seeds make parameters with the digest"),
        (lambda values: values.update(noise="0" * 32), "another version of the noise table"),
        (lambda values: values["config"].update(noise_size=2**31), "larger than the"),
        (lambda values: values.update(obs_mean=[1.0]), "not float32 [4]"),
    ],
)
def test_a_damaged_list_is_refused_in_one_sentence(
    exported: Path,
    change: Callable[[dict[str, Any]], Any],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = damaged(Path(shutil.copy(exported, tmp_path)), change)
    assert main([str(path)]) == 6
    said = capsys.readouterr().err
    assert sentence in said and str(path) in said and said.count("\n") == 1


@each_case("data", [b"", b"{", b"[]", b"\xff", b"3", b"{}", b'{"kind": NaN}', b"[" * 10_000])
def test_what_is_no_list_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(RunFolderError, match="not a seed list"):
        read_seed_list(tmp_path / "a.json")


def test_a_file_without_end_is_not_read_to_it(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(MAX_BYTES * 100)
    with pytest.raises(RunFolderError, match="it has more than 8388608 bytes"):
        read_seed_list(tmp_path / "a.json")


def test_a_policy_that_no_seeds_make_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ring(
        quick_config(
            population=8,
            generations=1,
            eval_every=1,
            eval_episodes=2,
            final_episodes=2,
            target_reward="none",
        ),
        checkpoints=Checkpoints(tmp_path),
    )
    assert main([str(tmp_path), "--export", str(tmp_path / "no.json")]) == 6
    assert (
        "only the best checkpoint of a run with the strategy ga has one" in capsys.readouterr().err
    )
    assert not (tmp_path / "no.json").exists()
    assert main([str(run_folder), "--export", str(tmp_path / "none" / "no.json")]) == 6
    assert "cannot be written" in capsys.readouterr().err


def test_a_run_that_began_with_other_parameters_than_its_seeds_is_refused(run_folder: Path) -> None:
    path = run_folder / "checkpoints" / "best.npz"
    arrays, meta = read_npz(path, POLICY_ARRAYS)
    arrays["parameters"][0] += 1
    with pytest.raises(RunFolderError, match="--warm-start"):
        format_seed_list(path, arrays, meta)
    assert NoiseTable.open(meta["config"]["noise_size"]).size == meta["config"]["noise_size"]
