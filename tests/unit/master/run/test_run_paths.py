"""A run by one word: the same answer from every command."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from es_queue.errors import UsageError
from es_queue.run_folder import NamedRun, find_run
from master.cli.main import main as es_master
from master.plot.command import main as es_plot
from master.run.launch import Launch, new_run
from master.status.command import main as es_status
from tests.cases import each_case
from workers.es_play import main as es_play


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and no Redis that the environment names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(folder: str, run: str) -> Path:
    path = Path(folder)
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    (path / "checkpoints" / "best.npz").touch()
    (path / "run.json").write_text(json.dumps({"run": run}))
    (path / "config.json").write_text(json.dumps({"env": "CartPole-v1"}))
    return path


@pytest.mark.usefixtures("here")
@each_case(
    ("word", "run", "folder"),
    [
        ("walker", "walker", "runs/walker"),
        ("runs/walker/", "walker", "runs/walker"),
        ("runs/walker/checkpoints/best.npz", "walker", "runs/walker"),
        ("elsewhere/My.Run_2", "copied", "elsewhere/My.Run_2"),
        ("study", "study", "runs/study"),
        ("study-s2", "study-s2", "runs/study/s2"),
        ("runs/study/s2", "study-s2", "runs/study/s2"),
        ("unknown", "unknown", "runs/unknown"),
    ],
)
def test_a_run_is_found_by_its_name_its_folder_a_file_in_it_or_its_study(
    word: str, run: str, folder: str
) -> None:
    make_run("runs/walker", "walker")
    make_run("elsewhere/My.Run_2", "copied")
    make_run("runs/study/s2", "study-s2")
    Path("runs/study/seeds.json").write_text(json.dumps({"run": "study"}))
    found = find_run(word)
    assert found == NamedRun(run, Path(folder))
    assert find_run(found.word).folder == found.folder
    assert find_run("study").members == [NamedRun("study-s2", Path("runs/study/s2"))]


@pytest.mark.usefixtures("here")
def test_a_new_run_is_made_in_the_folder_of_the_flag_unless_a_run_is_there() -> None:
    launch = Launch(run="walker", runs_dir=Path("there"))
    assert new_run("CartPole-v1", launch).folder == Path("there/walker")
    make_run("there/walker", "walker")
    with pytest.raises(UsageError, match="continue it with --resume there/walker, or "):
        new_run("CartPole-v1", launch)


@pytest.mark.usefixtures("here")
def test_runs_that_begin_in_the_same_second_have_different_names() -> None:
    assert len({new_run("CartPole-v1", Launch()).run for _ in range(32)}) == 32


@pytest.mark.usefixtures("here")
@each_case(
    ("command", "words", "answer"),
    [
        (
            es_master,
            ["--stop", "walker"],
            "for walker in there/walker: its master has ended, or is still starting",
        ),
        (es_status, ["walker"], "es-master --resume there/walker\n"),
        (es_play, ["walker"], "there/walker/checkpoints/best.npz: it is not a readable"),
        (es_plot, ["walker"], "there/walker holds no run"),
        (es_plot, ["lander"], "there is no run lander in there; existing runs: walker\n"),
    ],
)
def test_every_command_finds_a_run_in_the_folder_of_its_flag_before_that_of_the_variable(
    command: Callable[[list[str]], int],
    words: list[str],
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ES_QUEUE_RUNS", "here")
    make_run("here/lander", "lander")
    make_run("there/walker", "walker")
    command([*words, "--runs-dir", "there"])
    assert answer in "".join(capsys.readouterr())


@each_case(
    ("command", "flag", "nearest"),
    [
        (es_master, "--populatio", "did you mean --population or --population-max?"),
        (es_status, "--wach", "did you mean --watch?"),
        (es_play, "--episods", "did you mean --episodes?"),
        (es_plot, "--panls", "did you mean --panels?"),
        (es_plot, "--xyzzy", "es-plot --help lists all options"),
    ],
)
def test_an_unknown_flag_of_any_command_is_refused_with_the_nearest_and_without_its_value(
    command: Callable[[list[str]], int],
    flag: str,
    nearest: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = [] if command is es_master else ["walker"]
    assert command([*run, f"{flag}=secret"]) == 2
    assert capsys.readouterr().err.partition(": ")[2] == (
        f"the command line has the unknown flag '{flag}'; {nearest}\n"
    )


@pytest.mark.usefixtures("here")
@each_case(
    ("command", "words"),
    [
        (es_master, ["--resume"]),
        (es_master, ["--stop"]),
        (es_master, ["--purge", "--yes"]),
        (es_status, []),
        (es_play, []),
        (es_plot, []),
    ],
)
def test_an_unknown_run_is_the_same_sentence_and_exit_code_from_every_command(
    command: Callable[[list[str]], int], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("walker", "walk-2", "lander"):
        make_run(f"runs/{name}", name)
    for word in ("walkr", "runs/walkr"):
        assert (
            command([*words[:1], word, *words[1:]] if command is es_master else [word, *words]) == 6
        )
        assert capsys.readouterr().err.partition(": ")[2] == (
            "there is no run walkr in runs; did you mean walker? "
            "existing runs: lander, walk-2, walker\n"
        )
    assert not Path("runs/walkr").exists()


def test_the_socket_of_a_killed_private_server_is_an_ended_run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = make_run("runs/walker", "walker").absolute() / "redis"
    server.mkdir()
    monkeypatch.chdir(server)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind("redis.sock")
    monkeypatch.chdir(here)
    assert es_master(["--stop", "walker"]) == 0
    assert capsys.readouterr().out == "run walker is orphaned: there is nothing to stop\n"
    assert es_status(["walker"]) == 12
    assert "its server has ended" in capsys.readouterr().out
