"""Who lived in a generation: written as it was answered, bounded, and each individual made again to
the bit.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.errors import RunFolderError
from es_queue.slot_record import read_record, record_path, recorded_generations
from master.loop.checkpoint import Checkpoints, surplus_generations
from master.loop.listeners import Outcome
from master.storage.generation_store import GenerationStore
from tests.memory import Sink, quick_config, run_ring
from tests.unit.workers.play.test_play_cli import played, refused

SMALL = {
    "noise_size": 2**14,
    "policy": "linear",
    "population": 8,
    "generations": 4,
    "eval_every": 2,
    "eval_episodes": 2,
    "final_episodes": 2,
    "backend": "stock",
    "target_reward": "none",
}


def stored(folder: Path, config: RunConfig, most: int, reader: Any = None) -> tuple[Outcome, Sink]:
    """A run whose generations are kept in ``folder``."""
    sink = Sink()
    store = GenerationStore("memory", folder, most, reader)
    outcome, _ = run_ring(config, sink=sink, store=store)
    store.log.close()
    return outcome, sink


def trained(folder: Path, **values: Any) -> RunConfig:
    config = quick_config(**{**SMALL, **values})
    stored(folder, config, config.keep_generations)
    return config


WAYS: list[dict[str, Any]] = [
    {"strategy": "ars", "obs_norm": True, "obs_sample": 0.5},
    {"strategy": "openai_es", "episodes": 3, "policy": "mlp", "hidden": (4,)},
    {
        "strategy": "pgpe",
        "env": "Pendulum-v1",
        "action_noise": 0.2,
        "step_limit": "30",
        "eval_step_limit": 30,
    },
    {"strategy": "ga", "truncation": 4, "candidates": 3, "elite_episodes": 2},
    {"strategy": "snes", "policy": "mlp", "hidden": (4,), "batch_norm": "virtual"},
    {
        "strategy": "openai_es",
        "policy": "lstm",
        "hidden": (3,),
        "env": "Pendulum-v1",
        "action_noise": 0.1,
        "step_limit": "30",
        "eval_step_limit": 30,
    },
    {"strategy": "random_search", "candidates": 3, "elite_episodes": 2},
    {"strategy": "novelty", "behaviour": "last-observation"},
    {"strategy": "ars", "schedule": "async"},
]


@pytest.mark.parametrize(
    "values",
    WAYS,
    ids=lambda one: (
        f"{one['strategy']}-{one.get('policy', 'linear')}-{one.get('schedule', 'sync')}"
    ),
)
def test_whoever_lived_is_made_again_to_the_bit(
    values: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, **values)
    assert recorded_generations(tmp_path) == [0, 1, 2, 3]
    compared = 0
    for generation in (0, 3):
        record = read_record(record_path(tmp_path, generation))
        own = record.columns["generation"] == generation
        for slot in sorted(set(record.columns["slot"][own].tolist()))[:3]:
            signs = record.columns["sign"][own & (record.columns["slot"] == slot)]
            for individual, sign in enumerate(signs):
                found = played(
                    capsys,
                    tmp_path,
                    "--generation",
                    generation,
                    "--slot",
                    f"{slot}{'-' if sign < 0 else '+'}",
                )
                assert found["equal"] is True, (generation, slot, individual)
                assert (
                    found["length_mean"] * found["episodes"]
                    == record.row(slot, individual)["length"]
                )  # type: ignore[index]
                compared += 1
    assert compared >= 3


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a record's file by name."""
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def test_a_snapshot_is_played_as_the_record_of_its_generation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, saved = tmp_path / "recorded", tmp_path / "saved"
    trained(recorded, generations=6)
    run_ring(
        quick_config(**{**SMALL, "generations": 6, "keep_generations": 0}),
        checkpoints=Checkpoints(saved, snapshot_every=2),
    )
    words = "--generation", 2, "--episodes", 3
    snapshot, record = played(capsys, saved, *words), played(capsys, recorded, *words)
    assert snapshot["generation"] == 2 and snapshot["checkpoint"].endswith(
        "generation-00000002.npz"
    )
    assert record["checkpoint"] == str(record_path(recorded, 2)), "each output names its file"
    assert snapshot["eval_mean"] == record["eval_mean"]
    assert "the run has kept none" in refused(capsys, 6, saved, "--generation", 3)


# --- bounded


@pytest.mark.parametrize("most", [2, 3, 10, 33])
def test_however_long_a_run_lives_files_stay_bounded_and_its_whole_life_in_view(most: int) -> None:
    there: list[int] = []
    for generation in range(3000):
        there.append(generation)
        for gone in surplus_generations(there, most):
            there.remove(gone)
        assert len(there) <= most and there[-1] == generation
        if generation > most:
            newest = there[-(most // 2) :]
            assert newest == list(range(generation - len(newest) + 1, generation + 1))
    older = there[: len(there) - most // 2]
    assert older[0] == 0
    if most >= 10:
        assert max(np.diff(older)) <= 4 * 3000 / most


# --- bad input


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--generation", "77"], 6, "has no generation 77: it has 4 from 0 to 3"),
        (["--generation", "x"], 2, "--generation is 'x'"),
        (
            ["--generation", "1", "--slot", "99-"],
            6,
            "has no slot 99-: it has slots 0 to 3, with two individuals (+ and -) each",
        ),
        (["--slot", "1+"], 2, "add --generation"),
        (["--record", "film.avi"], 2, "must end in .gif or .mp4"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    argv: list[str], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    assert said in refused(capsys, code, tmp_path, *argv)


def test_a_file_that_was_tampered_with_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path)
    path = record_path(tmp_path, 1)
    arrays = read_arrays(path)
    for changes in (
        {"slot": arrays["slot"][:3]},
        {"published": arrays["published"][:-1]},
        {"meta": np.array("{}")},
        {"meta": np.array("[")},
    ):
        np.savez(path, **{**arrays, **changes})
        assert str(path) in refused(capsys, 6, tmp_path, "--generation", "1")
        with pytest.raises(RunFolderError):
            read_record(path)
    rows = len(arrays["slot"])
    for changes in (
        {"slot": np.array(3)},
        {"slot": arrays["slot"][:, None]},
        {"slot": np.array(["a"] * rows)},
        {"fitness": np.full(rows, np.inf)},
        {"return": np.zeros(rows, complex)},
        {"behaviour": np.zeros(rows)},
        {"noise_index": np.zeros(rows, [("a", "i4")])},
        {"seed": np.zeros(rows, "M8[s]")},
    ):
        np.savez(path, **{**arrays, **changes})
        assert re.search(
            "not numeric|not of plain numbers",
            refused(capsys, 6, tmp_path, "--generation", "1", "--slot", "1+"),
        )
    path.write_bytes(b"nothing")
    assert "not a readable .npz file" in refused(capsys, 6, tmp_path, "--generation", "1")
