"""Fixtures for the tests with real processes, none of which outlives its test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from master.services.private_server import PrivateServer
from tests.integration.household import ROOT
from tests.integration.processes import Master, Processes, folder_variables
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
    own = Processes(tmp_path, folder_variables(short_folder))
    yield own
    own.end()


@pytest.fixture
def start_master(
    valkey_url: str, tmp_path: Path, short_folder: Path
) -> Iterator[Callable[..., Master]]:
    """Starts masters in this process."""
    started: list[Master] = []

    def start(run: str, values: dict[str, Any], **more: Any) -> Master:
        started.append(
            Master(valkey_url, tmp_path / run, run, values, noise=short_folder / "noise", **more)
        )
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def server(short_folder: Path) -> Iterator[PrivateServer]:
    """An embedded server that is not started yet."""
    one = PrivateServer(
        Path(tempfile.mkdtemp(dir=short_folder)) / "a folder#1"
    )  # its socket's name must fit
    yield one
    one.stop()


@pytest.fixture
def client(server: PrivateServer) -> Iterator[redis.Redis]:
    """A client of the embedded server, which is started."""
    server.start()
    with redis.Redis.from_url(server.url) as one:
        yield one


@pytest.fixture
def start_other() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code as another owner and waits for its line "ready"."""
    others: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        other = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        others.append(other)
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        return other

    yield start
    for other in others:
        other.kill()
        other.communicate()
