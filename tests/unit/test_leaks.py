"""The look for passwords in what the tests leave finds each that is planted, and nothing that is
meant to hold one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import leaks
from tests.leaks import MARK, leaks_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "looked at"


def planted(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("place", ["start", "middle", "border", "end"])
def test_a_mark_is_found_wherever_it_stands(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "PIECE", 64)
    before = {"start": 0, "middle": 100, "border": 60, "end": 64}[place]
    path = planted(
        folder / "deep" / "er" / "log",
        b"\0" * before + MARK.encode() + b"\xff" * (0 if place == "end" else 100),
    )
    assert leaks_in(folder) == [str(path)]
    path.unlink()
    assert leaks_in(folder) == []


def test_a_private_file_may_hold_one_as_long_as_it_is_private(folder: Path) -> None:
    path = planted(folder / "url", MARK.encode())
    assert leaks_in(folder) == []
    path.chmod(0o640)
    assert leaks_in(folder) == [str(path)]
    path.unlink()
    other = planted(folder / "notes", MARK.encode())
    assert leaks_in(folder) == [str(other)]
    other.unlink()


def test_a_files_name_counts_and_links_and_pipes_do_not(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    outside = planted(tmp_path / "password", MARK.encode())
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    leaks.os.mkfifo(folder / "pipe")
    assert leaks_in(folder) == []
    named = planted(folder / f"trace-{MARK}", b"")
    assert leaks_in(folder) == [str(named)]
    named.unlink()
