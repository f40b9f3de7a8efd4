"""The replay log: parameters computed again from it have the run's digests, and no changed byte
goes unseen.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.errors import RunFolderError
from es_queue.protocol.control import SET, ControlRequest
from es_queue.slots import Shape
from es_queue.strategies import STRATEGIES
from master.loop.checkpoint import Checkpoints
from master.storage import replay
from master.storage.generation_store import GenerationStore
from master.storage.replay import LoggedGeneration, list_log_files, read_frames, replay_run
from tests.cases import each_case
from tests.memory import MemoryServer, Sink, quick_config, run_ring
from tests.tiny import QUAD

RUN = "memory"
SHORT = {
    "env": QUAD,
    "strategy": "pgpe",
    "population": 8,
    "generations": 6,
    "eval_every": 2,
    "eval_episodes": 4,
    "target_reward": "none",
    "final_episodes": 2,
}


def logged(
    folder: Path, state: Any = None, requests: tuple[ControlRequest, ...] = (), **values: Any
) -> Any:
    """A ring that leaves a log and checkpoints in ``folder``."""
    server = MemoryServer(commands=[one.encode() for one in requests])
    sink = Sink()
    store = GenerationStore(RUN, folder, 0)
    outcome, _ = run_ring(
        quick_config(**{**SHORT, **values}),
        server=server,
        sink=sink,
        state=state,
        store=store,
        checkpoints=Checkpoints(folder),
    )
    store.log.close()
    assert not any("replay log" in note for note in sink.notes)
    return outcome, sink


def replayed(folder: Path) -> str:
    said: list[str] = []
    assert replay_run(RUN, folder, folder / "noise", said.append) == 0
    return said[0]


@each_case("strategy", STRATEGIES)
def test_a_run_computed_again_from_its_log_has_the_same_digests(
    strategy: str, tmp_path: Path
) -> None:
    used = STRATEGIES[strategy].Settings
    more: dict[str, Any] = {"cells": (2,)} if hasattr(used, "cells") else {}
    if hasattr(used, "truncation"):
        more = {"truncation": 4}
    if hasattr(used, "weight_decay"):
        more = {"weight_decay": 0.01, "decay_schedule": "linear:0,4"}
    outcome, _ = logged(
        tmp_path,
        strategy=strategy,
        sigma_schedule="exponential:0.9",
        **more,
    )
    assert f"generations 0 to 6 of run {RUN}" in replayed(tmp_path)
    assert outcome.digest in replayed(tmp_path)
    assert "which the newest checkpoint has too" in replayed(tmp_path)


def test_what_people_changed_is_computed_again_too(tmp_path: Path) -> None:
    request = ControlRequest(
        "0a0b0c0d", SET, "ada@host", 0.0, {"sigma": 0.5, "learning_rate": 0.3}, 3
    )
    outcome, _ = logged(tmp_path, requests=(request,))
    assert outcome.digest in replayed(tmp_path)
    assert outcome.state.changes


def test_a_restart_by_deadline_is_computed_again_too(tmp_path: Path) -> None:
    missed = {
        "strategy": "snes",
        "population": 6,
        "sigma": 0.1,
        "sigma_schedule": "exponential:0.9",
        "eval_every": 2,
        "eval_episodes": 2,
        "restart_deadlines": "1=1e6",
        "generations": 7,
    }
    outcome, sink = logged(tmp_path, **missed)
    assert [record["descent"] for record in sink.records if record.get("descent")] == [1, 2, 3]
    assert outcome.digest in replayed(tmp_path)


def test_every_changed_byte_is_found(tmp_path: Path) -> None:
    logged(tmp_path, generations=3)
    (path,) = list_log_files(tmp_path / "replay")
    whole = path.read_bytes()
    steps = np.linspace(0, len(whole) - 1, 150).astype(int)
    for place in map(int, steps):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunFolderError):
            replayed(tmp_path)
    path.write_bytes(whole)
    replayed(tmp_path)


def forged(results: bytes) -> bytes:
    """With the fitness of each pair in the other order."""
    changed = np.frombuffer(results, Shape(2, 2, 0).result).copy()
    changed["fitness"] = changed["fitness"][:, ::-1]
    return changed.tobytes()


def test_a_fitness_that_was_changed_with_its_chain_of_digests_gives_another_parameter(
    tmp_path: Path,
) -> None:
    logged(tmp_path, generations=3, strategy="ars")
    (path,) = list_log_files(tmp_path / "replay")
    whole, digest = b"", b""
    for number, frame in enumerate(read_frames(path)):
        payload = frame.payload
        if number == 2:
            generation = LoggedGeneration.decode(payload)
            results = [(one, forged(data)) for one, data in generation.results]
            payload = replace(generation, results=results).encode()
        digest = replay.chain_digest(digest, payload)
        whole += len(payload).to_bytes(4, "little") + digest + payload
    path.write_bytes(whole)
    with pytest.raises(
        RunFolderError, match="parameters of generation 2 computed again have the digest"
    ):
        replayed(tmp_path)


def test_a_newest_checkpoint_that_cannot_be_read_and_an_empty_file_are_found(
    tmp_path: Path,
) -> None:
    logged(tmp_path, generations=3)
    newest = max((tmp_path / "checkpoints").glob("generation-*.npz"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:500] + bytes([whole[500] ^ 255]) + whole[501:])
    with pytest.raises(
        RunFolderError,
        match=r"the log is intact up to generation 3, but checkpoint .* was skipped",
    ):
        replayed(tmp_path)
    newest.write_bytes(whole)
    (path,) = list_log_files(tmp_path / "replay")
    path.write_bytes(b"")
    with pytest.raises(RunFolderError, match="is empty"):
        replayed(tmp_path)


def test_a_resumed_run_goes_on_with_its_log_and_cuts_off_what_it_will_do_again(
    tmp_path: Path,
) -> None:
    half, _ = logged(tmp_path, generations=3)
    whole, _ = logged(tmp_path / "whole")
    state = replace(half.state, stage="training", reason="")
    (path,) = list_log_files(tmp_path / "replay")
    path.write_bytes(path.read_bytes() + b"torn")
    outcome, _ = logged(tmp_path, state=state)
    assert len(list_log_files(tmp_path / "replay")) == 1
    assert outcome.digest == whole.digest and whole.digest in replayed(tmp_path)
    logged(tmp_path, state=state)
    assert whole.digest in replayed(tmp_path), (
        "generations 3 to 5 were done twice and stand there once"
    )
    shutil.rmtree(tmp_path / "checkpoints")
    logged(tmp_path, state=state, generations=4)
    assert f"generations 0 to 4 of run {RUN}" in replayed(tmp_path), (
        "what came after is another past"
    )


def test_a_long_log_is_cut_into_files_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FILE_BYTES", 1)
    outcome, _ = logged(tmp_path)
    assert len(list_log_files(tmp_path / "replay")) == 7
    assert outcome.digest in replayed(tmp_path)
    monkeypatch.setattr(
        replay, "MOST_LOG_BYTES", 3 * (tmp_path / "replay" / "00000001.log").stat().st_size
    )
    outcome, _ = logged(tmp_path / "few")
    assert 1 < len(list_log_files(tmp_path / "few" / "replay")) < 7
    assert "generations 0 to" not in replayed(tmp_path / "few") and outcome.digest in replayed(
        tmp_path / "few"
    )


def test_a_folder_without_a_log_and_one_of_another_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no replay log of memory"):
        replayed(tmp_path)
    logged(tmp_path, generations=1)
    with pytest.raises(RunFolderError, match="belongs to run 'memory', not other"):
        replay_run("other", tmp_path, tmp_path / "noise")
