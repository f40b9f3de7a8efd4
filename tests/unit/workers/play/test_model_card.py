"""``es-play --card``: a folder in the form of a Hugging Face model repository."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from es_queue.numerics.fingerprint import array_digest
from tests.unit.workers.play.test_play_cli import CARTPOLE, checkpoint, played, refused
from workers.es_play import main


def make_card(folder: Path, **changes: Any) -> tuple[Path, float]:
    """The card of a run's best policy, and the policy's mean return."""
    mean = checkpoint(folder / "best.npz", replace(CARTPOLE, strategy="openai_es"), **changes)
    assert main([str(folder), "--card", str(folder / "card")]) == 0
    return folder / "card", mean


def test_a_card_holds_the_policy_its_settings_and_its_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card, mean = make_card(tmp_path)
    names = {"README.md", "config.json", "policy.npz"}
    assert {path.name for path in card.iterdir()} - {"policy.onnx"} == names
    assert json.loads((card / "config.json").read_text())["seed"] == 3
    _, header, body = (card / "README.md").read_text().split("---\n")
    (index,) = yaml.safe_load(header)["model-index"]
    assert index["results"][0]["metrics"][0]["value"] == f"{mean:.2f} +/- 0.00"
    with np.load(tmp_path / "best.npz") as archive:
        assert array_digest(archive["parameters"]) in body
    capsys.readouterr()
    assert played(capsys, card / "policy.npz")["eval_mean"] == mean


def test_huggingface_hub_reads_the_card_and_writes_the_same_metadata(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    card, mean = make_card(tmp_path)
    data = hub.ModelCard.load(card / "README.md").data
    (result,) = data.eval_results
    assert (data.library_name, data.model_name) == ("es-queue", "some-run")
    assert (result.dataset_name, result.metric_value) == ("CartPole-v1", f"{mean:.2f} +/- 0.00")
    header = (card / "README.md").read_text().split("---\n")[1]
    metadata = yaml.safe_load(header)
    written = yaml.safe_load(data.to_yaml())
    for block in (metadata, written):
        block["model-index"][0]["results"][0]["metrics"][0].pop("verified", None)
    assert written == metadata


def test_names_in_a_checkpoint_cannot_break_out_of_the_metadata(tmp_path: Path) -> None:
    name = "x: 1\n---\nlicense: mit"
    card, _ = make_card(tmp_path, run=name)
    text = (card / "README.md").read_text()
    assert text.count("\n---\n") == 1 and "license" not in yaml.safe_load(text.split("---\n")[1])


def test_a_folder_that_holds_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    assert "name a new or empty folder" in refused(
        capsys, 2, tmp_path / "best.npz", "--card", tmp_path / "mine"
    )
    assert (tmp_path / "mine" / "README.md").read_text() == "mine"
    words = (tmp_path, "--card", tmp_path / "new")
    assert "leave --export out" in refused(capsys, 2, *words, "--export", "policy.npz")
    assert "leave --generation out" in refused(capsys, 2, *words, "--generation", "3")
