"""When a supervisor ends, and how it and its master speak: by files, locks and signals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_queue.errors import RunBusyError, RunFolderError
from es_queue.protocol.timing import Clocks
from es_queue.util.file_lock import try_lock, write_pid
from master.run.supervisor_client import (
    SupervisorClient,
)
from master.services.supervisor_files import (
    SupervisorFiles,
    SupervisorSpec,
)

CLOCKS = Clocks(lease=10.0, grace=60.0)


# --- files


@pytest.fixture
def files(tmp_path: Path) -> SupervisorFiles:
    one = SupervisorFiles(tmp_path / "guardian")
    one.prepare()
    return one


SPEC = SupervisorSpec(
    "run",
    "/runs/run/redis",
    "/bin/server",
    "127.0.0.1:7000",
    "",
    2,
    "default",
    None,
    "/runs/run/logs",
    dict(CLOCKS.__dict__),
)


# --- the master's side


def client_of(files: SupervisorFiles, **changes: Any) -> SupervisorClient:
    spec = replace(SPEC, **{"server": None, "listen": None, "workers": 0, **changes})
    return SupervisorClient(files.folder, spec, {"RQ_REDIS_URL": "unix:///nowhere"}, None)


@pytest.fixture
def client(files: SupervisorFiles) -> Iterator[SupervisorClient]:
    one = client_of(files)
    yield one
    one.stop()
    one._child.reap()  # one that was adopted by another and ended by that one


def test_no_process_of_another_host_is_signalled(
    client: SupervisorClient, files: SupervisorFiles
) -> None:
    lock = try_lock(files.supervisor_lock)
    assert lock is not None
    write_pid(lock, os.getpid())  # a signal would reach this very process
    files.spec.write_text(replace(SPEC, host="elsewhere").to_json())
    with pytest.raises(RunBusyError, match="still run on elsewhere"):
        client.start()
    os.close(lock)
    client.release()


def test_how_a_guardian_failed_is_said_by_its_master(files: SupervisorFiles) -> None:
    files.log.mkdir(parents=True)
    client = client_of(files)
    with pytest.raises(RunFolderError, match="cannot be started in"):
        client.start()
    client.stop()
    files.log.rmdir()
    (files.folder / "file").write_text("")
    heir = client_of(files, workers=1, logs=str(files.folder / "file" / "logs"))
    with pytest.raises(RunFolderError, match="cannot be started with the log"):
        heir.start()
    heir.stop()


# --- maintenance
