"""A model's weights are the same to the bit, with any workers and after any fault."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")

from master.cli.main import main  # noqa: E402
from tests import memory  # noqa: E402
from tests.cases import each_case  # noqa: E402
from tests.memory import Fault, Played, play  # noqa: E402

pytestmark = pytest.mark.fast

FORMS: dict[str, dict[str, Any]] = {
    "full": {},
    "rank 1": {"perturbation": "rank:1"},
    "rank 4, to the first weights": {
        "perturbation": "rank:4",
        "anchor": True,
        "weight_decay": 0.01,
    },
    "clipup": {"optimizer": "clipup", "weight_decay": 0.01},
    "bfloat16": {"model": "tests.networks:Half", "momentum": 0.0, "perturbation": "rank:2"},
}
Train = Callable[..., tuple[Played, dict[str, str]]]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train a model in memory; returns the run, and the weights' digest in each snapshot."""

    def run(*arguments: Any, scheme: str = "", **settings: Any) -> tuple[Played, dict[str, str]]:
        place = tmp_path / f"snapshots-{len(list(tmp_path.iterdir()))}"
        plain = {"model": "tests.networks:Network", "env": "", "strategy": "auto"}
        played = play(*arguments, **{**plain, "snapshots": f"{scheme}{place}", **settings})
        digests = {}
        for path in place.iterdir():
            with safetensors.safe_open(path, "pt") as reader:
                digests[path.name] = reader.metadata()["digest"]
        return played, digests

    return run


def same(first: tuple[Played, dict[str, str]], second: tuple[Played, dict[str, str]]) -> bool:
    return (first[0].outcome, first[1]) == (second[0].outcome, second[1])


@each_case("form", FORMS)
def test_the_number_of_workers_changes_no_bit_of_the_weights(train: Train, form: str) -> None:
    one = train(1, **FORMS[form])
    assert same(one, train(2, block=1, **FORMS[form]))
    assert same(one, train(3, block=1, **FORMS[form]))
    assert len(set(one[1].values())) == 3, "the weights change from snapshot to snapshot"


@each_case("form", ["full", "rank 1", "rank 4, to the first weights", "clipup"])
def test_faults_change_no_bit_of_the_weights(train: Train, form: str) -> None:
    settings = {**FORMS[form], "generations": 6, "eval_every": 3, "block": 1}
    quiet = train(1, **settings)
    dies = [Fault(memory.DIES, block) for block in (2, 9)]
    assert same(quiet, train(2, faults=dies, **settings))
    assert same(quiet, train(2, faults=[Fault(memory.FREEZES, 4)], **settings))
    assert same(quiet, train(2, redis_emptied_in=4, **settings))
    assert same(quiet, train(2, master_dies_in=4, **settings))
    assert same(quiet, train(2, master_dies_in=5, redis_dies_too=True, **settings))


def test_unfinished_snapshots_of_killed_workers_are_removed(tmp_path: Path) -> None:
    (tmp_path / "0.safetensorsabc.new").touch()
    play(model="tests.networks:Network", env="", strategy="auto", snapshots=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{n}.safetensors" for n in (0, 2, 4)
    ]


def test_a_worker_with_other_weights_is_named_and_loads_the_snapshot(train: Train) -> None:
    run, _ = train(2, model="tests.networks:Drifting", block=1, generations=8)
    reasons = [report["reason"] for report in run.reports]
    assert len(reasons) == 1, "the weights agree from then on"
    assert "the weights of generation 0 on" in reasons[0] and "(cpu)" in reasons[0]


def test_snapshots_behind_a_url_give_the_same_weights(train: Train) -> None:
    pytest.importorskip("fsspec")
    settings = {"generations": 12, "eval_every": 2, "block": 1}
    remote = train(2, scheme="file://", master_dies_in=7, **settings)
    assert len(remote[1]) < 6, "old snapshots are removed there, too"
    assert same(remote, train(1, **settings))


@each_case(
    ("missing", "place", "sentence"),
    [
        ("torch", "", "a model needs torch: pip install 'es-queue[models]'"),
        ("safetensors", "", "a model needs safetensors: pip install 'es-queue[models]'"),
        ("fsspec", "memory://here", "a model needs fsspec: pip install 'es-queue[models]'"),
        ("", "unknown://here", "snapshots cannot be written to that URL: Protocol not known"),
    ],
)
def test_a_missing_package_is_named_before_the_run_begins(
    missing: str,
    place: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    words = ["--model", "tests.networks:Network", "--snapshots", place, "--runs-dir", str(tmp_path)]
    assert main(words) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
