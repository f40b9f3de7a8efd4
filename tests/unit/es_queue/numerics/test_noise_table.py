"""The noise table: one file a host, and no index outside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import es_queue
from es_queue.errors import RunFolderError
from es_queue.numerics import noise_table
from es_queue.numerics.noise_table import NoiseTable, exclusive_lock
from es_queue.numerics.normals import table_digest

ROOT = Path(es_queue.__file__).resolve().parent.parent
SIZE = 100_000


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    """Another Python process with the code, its streams as text."""
    command = [sys.executable, "-c", code]
    surroundings = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}",
        **environment,
    }
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=surroundings
    )


@pytest.fixture(scope="module")
def table() -> NoiseTable:
    return NoiseTable.in_memory(SIZE)


# --- rows


def test_an_index_is_accepted_exactly_when_its_slice_lies_in_the_table() -> None:
    table = NoiseTable.in_memory(6)
    for index in range(-8, 9):
        for stop in range(-1, 8):
            if 0 <= stop <= 6 and 0 <= index <= 6 - stop:
                assert table.row(index, stop).shape == (stop,)
                assert table.rows(np.array([0, index]), stop // 2, stop).shape == (
                    2,
                    stop - stop // 2,
                )
                assert np.shape(table.views(np.array([index, 0]), stop // 2, stop)) == (
                    2,
                    stop - stop // 2,
                )
            else:
                with pytest.raises(ValueError, match="not"):
                    table.row(index, stop)
                for read in (table.rows, table.views):
                    with pytest.raises(ValueError, match="not"):
                        read(np.array([0, index]), min(stop, 0), stop)


# --- the file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "noise"


def test_the_file_holds_the_same_table_as_memory(table: NoiseTable, folder: Path) -> None:
    stored = NoiseTable.open(SIZE, folder)
    assert (stored.size, stored.seed, stored.digest) == (table.size, table.seed, table.digest)
    assert np.array_equal(stored.row(0, SIZE), table.row(0, SIZE))
    assert table_digest(stored.row(0, SIZE)) == stored.digest


def test_folder_and_files_are_the_users_own(folder: Path) -> None:
    path = NoiseTable.open(10, folder).path
    assert path is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o400


def truncate(path: Path) -> None:
    os.truncate(path, 4 * SIZE - 4)


def break_description(path: Path) -> None:
    path.with_suffix(".json").write_bytes(b"\xff{")


def describe_another(path: Path) -> None:
    about = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**about, "seed": 5}))


@pytest.mark.parametrize(
    "damage",
    [truncate, break_description, describe_another],
)
def test_a_damaged_table_is_made_again(table: NoiseTable, folder: Path, damage: object) -> None:
    path = NoiseTable.open(SIZE, folder).path
    assert callable(damage)
    assert path is not None
    first = path.stat().st_ino
    damage(path)
    again = NoiseTable.open(SIZE, folder)
    assert path.stat().st_ino != first
    assert again.digest == table.digest
    assert table_digest(again.row(0, SIZE)) == again.digest


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_or_folder_that_others_can_write_is_refused(folder: Path, what: str) -> None:
    path = NoiseTable.open(10, folder).path
    assert path is not None
    (path if what == "file" else folder).chmod(0o722)
    with pytest.raises(RunFolderError, match="can be written by other users"):
        NoiseTable.open(10, folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_users_file_is_refused(folder: Path) -> None:
    path = NoiseTable.open(10, folder).path
    assert path is not None
    os.chown(path, 12345, -1)
    with pytest.raises(RunFolderError, match="belongs to another user"):
        NoiseTable.open(10, folder)


# --- where the file stands


def test_the_users_choice_of_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path / "chosen"))
    path = NoiseTable.open(10).path
    assert path is not None
    assert path.parent == tmp_path / "chosen"


# --- several processes

OPEN_AND_COUNT = """
import os, sys
from pathlib import Path
from es_queue.numerics import noise_table
made, make = [], noise_table.generate_table
noise_table.generate_table = lambda *arguments: made.append(1) or make(*arguments)
print("ready", flush=True)
table = noise_table.NoiseTable.open(100_000, Path(os.environ["FOLDER"]))
print(len(made), table.digest, table.path.stat().st_ino, flush=True)
"""
READ_ALL = """
import os
from pathlib import Path
from es_queue.numerics import noise_table
noise_table.generate_table = None
table = noise_table.NoiseTable.open(int(os.environ["SIZE"]), Path(os.environ["FOLDER"]))
table.row(0, table.size).sum()
lines = Path("/proc/self/smaps").read_text().partition(str(table.path))[2].splitlines()[1:]
pairs = (line.partition(":") for line in lines[:12])
kilobytes = {name: int(rest.split()[0]) for name, _, rest in pairs}
print(*[kilobytes[f"{kind}_Clean"] + kilobytes[f"{kind}_Dirty"] for kind in ("Private", "Shared")])
"""
HOLD = """
import os, sys
from pathlib import Path
from es_queue.numerics.noise_table import exclusive_lock
with exclusive_lock(Path(os.environ["LOCK"])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def ready(process: subprocess.Popen[str]) -> bool:
    """Wait for the process's first line."""
    assert process.stdout is not None
    return process.stdout.readline() == "ready\n"


def test_of_processes_that_open_at_once_one_makes_the_table(
    table: NoiseTable, folder: Path
) -> None:
    folder.mkdir(mode=0o700)
    with exclusive_lock(folder / f"normals-{noise_table.RECIPE}-123-{SIZE}.lock"):
        others = [python(OPEN_AND_COUNT, FOLDER=str(folder)) for _ in range(3)]
        assert all(ready(one) for one in others)
    answers = [one.communicate()[0].split() for one in others]
    assert sorted(made for made, _, _ in answers) == ["0", "0", "1"]
    assert {digest for _, digest, _ in answers} == {table.digest}
    assert len({inode for _, _, inode in answers}) == 1


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="asks Linux what is shared")
def test_processes_that_read_the_whole_table_hold_one_copy_of_it(folder: Path) -> None:
    ours = NoiseTable.open(2**20, folder)
    ours.row(0, ours.size).sum()
    private, shared = map(
        int, python(READ_ALL, FOLDER=str(folder), SIZE=str(ours.size)).communicate()[0].split()
    )
    assert (private, shared) == (0, 4 * 2**10)


def test_a_maker_that_was_killed_holds_nobody_up(table: NoiseTable, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / f"normals-{noise_table.RECIPE}-123-{SIZE}.f32.partial").write_bytes(b"half a table")
    maker = python(HOLD, LOCK=str(folder / f"normals-{noise_table.RECIPE}-123-{SIZE}.lock"))
    assert ready(maker)
    maker.kill()
    maker.communicate()
    assert NoiseTable.open(SIZE, folder).digest == table.digest
