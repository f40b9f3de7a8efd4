"""Module names that operators have typed work although the modules have new names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rq.utils import import_attribute

from master.services.local_workers import HARDENED_CLASSES
from workers.hardened_worker import SeatJob, SeatWorker

HOUSE = Path(__file__).resolve().parents[2]
OLD_CLASSES = {
    "RQ_JOB_CLASS": "workers.rq_classes.SeatJob",
    "RQ_WORKER_CLASS": "workers.rq_classes.SeatWorker",
}


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=HOUSE,
        env={**os.environ, **environment},
    )


def test_the_old_names_of_the_hardened_classes_are_the_same_classes() -> None:
    assert {name: import_attribute(path) for name, path in OLD_CLASSES.items()} == {
        "RQ_JOB_CLASS": SeatJob,
        "RQ_WORKER_CLASS": SeatWorker,
    }
    assert set(OLD_CLASSES) == set(HARDENED_CLASSES)


def test_rq_worker_takes_the_old_names_of_the_hardened_classes(valkey_url: str) -> None:
    command = ("-m", "rq.cli", "worker", "--burst", "--url", valkey_url, "nothing")
    done = run(*command, **OLD_CLASSES)
    assert done.returncode == 0, done.stderr
    assert run(*command, RQ_JOB_CLASS="workers.rq_classes.Other").returncode != 0


def test_python_m_es_queue_acl_still_writes_users_and_passwords(tmp_path: Path) -> None:
    done = run("-m", "es_queue.acl", tmp_path / "keys")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "keys").iterdir()} == {
        "users.acl",
        "master.password",
        "worker.password",
        "viewer.password",
    }
    assert run("-m", "es_queue.acl").returncode == 2


def test_python_m_master_supervised_still_is_the_supervised_command() -> None:
    old, new = (run("-m", name) for name in ("master.supervised", "master.cli.supervised"))
    assert old.returncode == new.returncode == 2
    assert old.stderr == new.stderr != ""
