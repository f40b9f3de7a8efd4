"""Checkpoints: plain arrays, whole or not there, and the policy in them acts as it did in
the run.
"""

from __future__ import annotations

import io
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from es_queue import load_policy
from es_queue.errors import RunFolderError
from master.loop import checkpoint
from master.loop.checkpoint import MOST_KEPT, MOST_SNAPSHOTS, Checkpoints, write_atomically
from master.run.setup import Setup
from tests.parts import setup_of, trained


def bytes_of(setup: Setup, run: str = "a-run") -> bytes:
    state = trained(setup)
    return checkpoint.encode(
        setup.config,
        setup.spec,
        run,
        state,
        setup.strategy.centre(setup.strategy.published(state.strategy)),
    )


SETUP = setup_of("pgpe")
DATA = bytes_of(SETUP)


# --- whole or not there


def test_the_content_is_on_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (order.append("rename"), replace(self, to))[1]
    )
    write_atomically(tmp_path / "one", b"data")
    assert order == ["fsync", "rename", "fsync"]


def test_the_newest_few_are_kept_and_the_best_always(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save_best(b"best")
    for generation in (0, 9, 10, 11, 100_000_000):
        kept.save(generation, DATA)
    names = sorted(path.name for path in kept.folder.iterdir())
    assert (
        names == ["best.npz", "generation-00000011.npz", "generation-100000000.npz"]
        and MOST_KEPT == 2
    )
    assert kept.last_path == kept.folder / names[2]


def test_snapshots_stay_and_are_bounded(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, snapshot_every=3)

    def generations() -> list[int]:
        return sorted(int(path.stem[-8:]) for path in kept.folder.iterdir())

    for generation in (0, 1, 3, 4, 5, 6, 7, 8):
        kept.save(generation, b"")
    assert generations() == [0, 3, 6, 7, 8]
    for generation in range(9, 1000, 3):
        kept.save(generation, b"")
    there = generations()
    assert there[0] == 0 and there[-50:] == list(range(852, 1000, 3))
    assert MOST_SNAPSHOTS - 30 < len(there) <= MOST_SNAPSHOTS + MOST_KEPT


def test_the_newest_readable_one_is_chosen_over_a_damaged_one(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    assert kept.read_newest() is None
    good = bytes_of(setup_of("ars"))
    kept.save(7, good)
    kept.save(8, DATA[: len(DATA) // 2])
    kept.save_best(DATA)
    assert Checkpoints(tmp_path).read_newest() == good
    kept.save(8, DATA)
    assert Checkpoints(tmp_path).read_newest() == DATA
    (kept.folder / "generation-00000008.npz").unlink()
    (kept.folder / "generation-00000007.npz").write_bytes(b"")
    assert Checkpoints(tmp_path).read_newest() is None


# --- anything else is refused


def refused(data: bytes) -> None:
    with pytest.raises(RunFolderError) as caught:
        checkpoint.decode(data)
    assert caught.value.exit_code == 6


def test_what_is_no_checkpoint_is_refused() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array("[]"))
    single, pickled = io.BytesIO(), io.BytesIO()
    np.save(single, np.zeros(3))
    np.savez(pickled, meta=np.array([{"a": 1}], dtype=object))
    for data in (
        b"",
        b"PK",
        b"x" * 100,
        DATA[:-1],
        DATA[:200],
        buffer.getvalue(),
        single.getvalue(),
        pickled.getvalue(),
    ):
        refused(data)
    best = trained(SETUP).best
    assert best is not None
    refused(
        checkpoint.encode_best(SETUP.config, SETUP.spec, "a-run", best, None)
    )  # a policy, but no run's state


@settings(deadline=None)
@example(66, 1)  # in the header of an array, which numpy reads as Python
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_harmless_but_never_anything_else(
    place: int, change: int
) -> None:
    damaged = bytearray(DATA)
    damaged[place] ^= change
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile may warn of what it reads
        for read in (checkpoint.decode, policy_of):
            try:
                read(bytes(damaged))
            except RunFolderError as error:
                assert "\n" not in str(error)


def policy_of(data: bytes) -> None:
    """The other reader of the same file."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        load_policy(file.name)


# --- what was passed over is said


def test_a_checkpoint_that_is_passed_over_is_named_with_its_reason(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(7, DATA)
    torn = kept.save(8, DATA[:-30])
    foreign = kept.folder / "generation-00000009.npz"
    foreign.write_bytes(bytes_of(SETUP, "another-run"))
    assert (
        kept.read_newest("a-run") == DATA
        and kept.last_path == kept.folder / "generation-00000007.npz"
    )
    assert len(kept.warnings) == 2
    assert kept.warnings[0] == f"checkpoint {foreign} was skipped: it belongs to run 'another-run'"
    assert kept.warnings[1].startswith(f"checkpoint {torn} was skipped: this checkpoint cannot")
