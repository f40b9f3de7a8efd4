"""Links and pipes in a run's folder from a stranger: every command that reads the folder refuses
them in one sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from es_queue import load_policy
from es_queue.errors import RunFolderError
from master.cli.main import main as es_master
from master.plot.command import main as es_plot
from master.status.command import main as es_status
from tests.integration.processes import BIN
from workers.es_play import main as es_play

RECORD, BEST, LOG = "slots/00000003.npz", "checkpoints/best.npz", "replay/00000000.log"
NEWEST = "checkpoints/generation-00000004.npz"
Command = tuple[Callable[[list[str]], int], Sequence[str]]
#: Commands that read a run's folder, which comes last, and a file there that they need, if any.
COMMANDS_AND_FILES: dict[str, tuple[Command, str]] = {
    "play": ((es_play, ()), BEST),
    "play the last": ((es_play, ("--which", "last")), NEWEST),
    "play an individual": ((es_play, ("--generation", "3", "--slot", "0+")), RECORD),
    "play an elite": ((es_play, ("--cell", "0,0,0,0")), NEWEST),
    "export": ((es_play, ("--export", "out.npz")), BEST),
    "card": ((es_play, ("--card", "card")), BEST),
    "plot": ((es_plot, ("--out", "out.svg")), "metrics.jsonl"),
    "plot a cloud": ((es_plot, ("--cloud", "--out", "out.svg")), RECORD),
    "plot an archive": ((es_plot, ("--archive", "--out", "out.svg")), NEWEST),
    "status": ((es_status, ()), ""),
    "status of a folder": ((es_status, ("--run-dir",)), ""),
    "errors": ((es_status, ("--errors",)), ""),
    "replay": ((es_master, ("--replay",)), LOG),
    "resume": ((es_master, ("--workers", "0", "--resume")), ""),
    "warm start": ((es_master, ("--env", "CartPole-v1", "--warm-start")), BEST),
}
COMMANDS = {name: command for name, (command, _) in COMMANDS_AND_FILES.items()}
FILES = {name: file for name, (_, file) in COMMANDS_AND_FILES.items() if "/" in file}
TRAIN = (
    "--env CartPole-v1 --backend stock --strategy map_elites --behaviour last-observation "
    "--cells 3 --population 8 --generations 4 --eval-every 1 --eval-episodes 1 --final-episodes 1 "
    "--target-reward none --noise-size 16384 --seed 1 --workers 1 --quiet --run gift --run-dir"
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("template") / "gift"
    command = [str(BIN / "es-master"), *TRAIN.split(), str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (folder / "").touch()
    return folder


@pytest.fixture
def gift(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its copy in the current folder, with its server's."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(template, tmp_path / "gift"))


def linked(path: Path) -> None:
    """Move a file or folder out of the run's folder, and leave a link to it."""
    elsewhere = path.parents[1] / "elsewhere"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def said_by(
    command: Command, folder: Path, capsys: pytest.CaptureFixture[str], codes: Sequence[int] = (6,)
) -> str:
    """The sentence with which a command refuses the folder."""
    main, words = command
    code = main([*words, str(folder)])
    said = capsys.readouterr()
    assert code in codes and said.out == "" and said.err.count("\n") == 1, said
    return said.err


@pytest.mark.parametrize("part", ["checkpoints", "metrics.jsonl"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_linked_part_of_a_runs_folder_is_refused_by_every_command_that_reads_it(
    name: str, part: str, gift: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linked(gift / part)
    assert f"gift/{part} is a link" in said_by(COMMANDS[name], gift, capsys)


@pytest.mark.parametrize("name", FILES)
def test_a_linked_file_in_a_runs_folder_is_refused(
    name: str, gift: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    linked(gift / FILES[name])
    assert "it is a link" in said_by(COMMANDS[name], gift, capsys)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_a_runs_folder_holds_no_command(
    name: str, gift: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (gift / FILES[name]).unlink()
    os.mkfifo(gift / FILES[name])
    # a warm start takes the newest checkpoint instead, which does not fit this run
    said_by(COMMANDS[name], gift, capsys, [2 if name == "warm start" else 6])


@pytest.mark.parametrize("part", ["checkpoints", "metrics.jsonl"])
def test_load_policy_refuses_a_runs_folder_with_links_and_reads_a_link_that_is_named(
    part: str, gift: Path
) -> None:
    Path("named.npz").symlink_to(gift / "checkpoints/best.npz")
    assert load_policy("named.npz").config.env == "CartPole-v1"
    linked(gift / part)
    with pytest.raises(RunFolderError, match=f"gift/{part} is a link"):
        load_policy(gift)


def test_a_linked_run_of_a_study_is_refused(gift: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = gift.parent / "study"
    study.mkdir()
    (study / "seeds.json").write_text(json.dumps({"run": "study"}))
    (study / "s1").symlink_to(gift)
    for name in ("plot", "status", "resume"):
        assert "study/s1 is a link" in said_by(COMMANDS[name], study, capsys)


def test_a_pipe_in_the_place_of_the_next_replay_log_does_not_hold_a_resumed_run(gift: Path) -> None:
    os.mkfifo(gift / "replay/00000004.log")
    command = [str(BIN / "es-master"), "--resume", str(gift), "--generations", "5"]
    done = subprocess.run(
        [*command, "--workers", "1"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "training continues without it" in done.stdout + done.stderr
