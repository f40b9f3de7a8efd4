"""Locks that end with their process, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from es_queue.errors import RunFolderError
from es_queue.private_files import take_lock, try_lock


def test_a_lock_is_released_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "from es_queue.private_files import *; import pathlib; "
        f"lock = try_lock(pathlib.Path({str(path)!r})); print(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline()
        assert take_lock(path, 0.01) is None
        other.kill()
        other.wait()
    lock = take_lock(path)
    assert lock is not None
    os.close(lock)


def test_a_link_in_the_place_of_a_lock_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    for lock in (try_lock, lambda path, remedy: take_lock(path, 0.01, remedy)):
        with pytest.raises(RunFolderError, match=r"cannot be opened: .*; move it"):
            lock(tmp_path / "lock", "move it")
    assert not (tmp_path / "victim").exists()
