"""Fixtures for the tests with real processes, none of which outlives its test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.noise import FOLDER_VARIABLE
from tests.integration.processes import Master, Processes
from tests.leaks import leaks_in


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """For noise and sockets: a path that leaves room for a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="esq-"))
    yield folder
    leaks = leaks_in(folder)
    shutil.rmtree(folder, ignore_errors=True)
    assert leaks == [], "these files held a password of the tests"


@pytest.fixture
def processes(tmp_path: Path, short_folder: Path) -> Iterator[Processes]:
    """Starts processes; all of them and their children are ended with the test."""
    own = Processes(tmp_path, {FOLDER_VARIABLE: str(short_folder / "noise"), "TMPDIR": str(short_folder)})
    yield own
    own.end()


@pytest.fixture
def start_master(valkey_url: str, tmp_path: Path, short_folder: Path) -> Iterator[Callable[..., Master]]:
    """Starts masters in this process."""
    started: list[Master] = []

    def start(run: str, values: dict[str, Any], **more: Any) -> Master:
        started.append(Master(valkey_url, tmp_path / run, run, values, noise=short_folder / "noise", **more))
        return started[-1]

    yield start
    for one in started:
        one.stop()
