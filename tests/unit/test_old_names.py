"""Names of modules and settings that operators have typed, and that files hold, work although they
have new names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rq.utils import import_attribute

from es_queue.config.changeable import validate_resume_changes
from es_queue.config.parsing import FORMER_NAMES, config_from_json
from es_queue.config.run_config import RunConfig, option_fields
from master.cli.options import parse_command_line
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


def test_former_names_of_settings_are_read_from_flags_files_and_stored_runs(tmp_path: Path) -> None:
    assert set(FORMER_NAMES.values()) <= set(option_fields())
    assert not set(FORMER_NAMES) & set(option_fields())
    config_file = tmp_path / "run.toml"
    config_file.write_text('env = "CartPole-v1"\nkeep-slots = 7\n')
    for words in (["--keep-slots", "7"], ["--config", str(config_file)]):
        values, _ = parse_command_line(["--env", "CartPole-v1", *words])
        assert values["keep_generations"] == 7
    assert validate_resume_changes({"keep_slots": 7}) == {"keep_generations": 7}
    stored = RunConfig(env="CartPole-v1", keep_generations=7).to_json()
    assert "keep_generations" in stored
    former = stored.replace("keep_generations", "keep_slots")
    assert config_from_json(former).keep_generations == 7
