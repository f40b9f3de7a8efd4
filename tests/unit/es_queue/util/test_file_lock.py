"""Locks that end with their process, however it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_queue.errors import RunFolderError
from es_queue.private_files import take_lock, try_lock


def test_a_link_in_the_place_of_a_lock_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    for lock in (try_lock, lambda path, remedy: take_lock(path, 0.01, remedy)):
        with pytest.raises(RunFolderError, match=r"cannot be opened: .*; move it"):
            lock(tmp_path / "lock", "move it")
    assert not (tmp_path / "victim").exists()
