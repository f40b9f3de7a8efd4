"""Run folders from a stranger: pipes and endless files in them stop nobody, and swell nobody's
memory.

An archive brings pipes and links to /dev/zero as well as files, and a folder in ./runs is looked at
unasked.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.processes import BIN

SECONDS = 20.0
#: Of address space: a reader that takes a few bytes of an endless file stays far below.
LIMIT = 2 * 2**30


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def tell(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """What a command says; one that hangs fails the test."""
    return subprocess.run(
        [str(BIN / str(words[0])), *map(str, words[1:])],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
    )


def run_in(folder: Path, name: str) -> Path:
    """A run's folder whose server has ended."""
    found = folder / "runs" / name
    (found / "redis").mkdir(parents=True)
    (found / "checkpoints").mkdir()
    (found / "config.json").write_text(
        json.dumps({"env": "CartPole-v1", "strategy": "pgpe", "seed": 1})
    )
    lines = [
        json.dumps({"generation": one, "env_steps": one, "seconds": one, "eval_mean": one})
        for one in range(3)
    ]
    (found / "metrics.jsonl").write_text("\n".join(lines))
    return found


@pytest.mark.parametrize("kind", [pipe, endless])
@pytest.mark.parametrize("name", ["redis.sock.path", "password"])
def test_one_bad_folder_hides_no_other_run_and_stops_nobody(
    name: str, kind: Callable[[Path], None], tmp_path: Path
) -> None:
    run_in(tmp_path, "good")
    kind(run_in(tmp_path, "gift") / "redis" / name)
    for words in ((), ("--run-dir", "runs/gift")):
        done = tell(tmp_path, "es-status", *words)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-500:]
    assert "good" in tell(tmp_path, "es-status").stdout


@pytest.mark.parametrize("kind", [pipe, endless])
def test_settings_are_read_from_files_alone(kind: Callable[[Path], None], tmp_path: Path) -> None:
    kind(tmp_path / "given.toml")
    done = tell(tmp_path, "es-master", "--config", "given.toml")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr[-500:]


@pytest.mark.parametrize(
    "words",
    [
        ("es-plot", "runs", "--out", "curves.svg"),
        ("es-play", "--pretrained", "CartPole-v1", "--export", "out.npz"),
    ],
    ids=lambda one: one[0],
)
def test_a_link_where_a_command_writes_is_not_followed(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """In the folder where an archive was unpacked, or in one that others write to."""
    run_in(tmp_path, "good")
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (".curves.new.svg", "out.npz"):
        (tmp_path / name).symlink_to(victim)
    tell(tmp_path, *words)
    assert victim.read_text(errors="replace") == "mine"
