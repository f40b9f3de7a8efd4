"""Files that another user left in the current folder: only modules that this user names run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import BIN

#: Optional packages that libraries of es-queue look for, and that are not installed.
PROBED = ("hiredis", "xxhash", "envpool", "uvloop", "orjson", "setproctitle", "sentry_sdk", "cffi")
TINY = (
    "--env CartPole-v1 --backend stock --generations 2 --population 4 --eval-episodes 1 "
    "--eval-every 1 --noise-size 16384 --min-steps 0"
)

ZOO = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
import helpers
class Zoo(CartPoleEnv):
    metadata = {"render_modes": []}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which each probed module writes its name when it is imported."""
    for name in (*PROBED, "helpers"):
        (tmp_path / f"{name}.py").write_text(
            "import pathlib\n"
            f"pathlib.Path({str(tmp_path)!r}, 'ran-' + __name__).touch()\n"
            "__version__ = '9.9.9'\n"
        )
    (tmp_path / "zoo.py").write_text(ZOO)
    monkeypatch.delenv("ES_QUEUE_ALLOW", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path / "noise"))
    return tmp_path


def run(folder: Path, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [str(BIN / str(words[0])), *map(str, words[1:])]
    return subprocess.run(
        program,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def imported(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("ran-") for path in folder.glob("ran-*"))


@pytest.mark.parametrize(
    "words",
    [
        ("es-master", *TINY.split(), "--workers", 1),
        ("es-master", *TINY.split(), "--workers", 1, "--seeds", "1-2"),
        ("es-status", "--doctor"),
        ("es-play", "--pretrained", "CartPole-v1", "--episodes", 1),
    ],
    ids=lambda words: " ".join(map(str, words[:2])),
)
def test_no_command_or_child_imports_what_lies_in_the_current_folder(
    words: tuple[Any, ...], folder: Path
) -> None:
    done = run(folder, *words)
    assert imported(folder) == [], done.stdout + done.stderr
    assert words[1] == "--doctor" or done.returncode == 0, done.stdout + done.stderr


def test_a_seat_of_a_plain_rq_worker_imports_only_allowed_modules(
    folder: Path, valkey_url: str
) -> None:
    """``rq worker`` itself adds the current folder to its path."""
    master = subprocess.Popen(
        [str(BIN / "es-master"), "--redis-url", valkey_url, *TINY.split(), "--env", "zoo:Zoo"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    worker = subprocess.Popen(
        [str(BIN / "rq"), "worker", "--url", valkey_url],
        cwd=folder,
        env={**os.environ, "ES_QUEUE_ALLOW": "zoo"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        said = master.communicate(timeout=120)[0]
    finally:
        for process in (master, worker):
            process.terminate()
            process.wait()
    assert master.returncode == 0, said
    assert imported(folder) == ["helpers"]
