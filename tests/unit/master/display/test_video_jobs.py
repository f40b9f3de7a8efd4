"""Films that a run makes of itself: one at a time, beside it; trouble is said once and never ends
the run.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from es_queue.errors import UsageError
from master.cli.options import parse_command_line
from master.display import video_jobs
from master.display.video_jobs import VideoJobs, validate_video_support
from tests.notes import collect_notes, fail_on_notes


@pytest.fixture
def player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in es-play's place: it writes down its words and does what the file
    ``how`` says.
    """
    program = tmp_path / "player"
    how = tmp_path / "how"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nopen({str(tmp_path / 'asked')!r}, "
        f"'a').write(json.dumps(sys.argv[1:]) + '\\n')\nexec(open({str(how)!r}).read())\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    how.write_text("")
    monkeypatch.setattr(video_jobs, "PLAYER", [str(program), "-P", "-m", "player"])
    return how


def asked(player: Path) -> list[list[str]]:
    path = player.with_name("asked")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The players that were started, the last one last."""
    start, started = subprocess.Popen, list[subprocess.Popen[bytes]]()

    def remember(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*words, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)
    return started


def settled(players: list[subprocess.Popen[bytes]]) -> None:
    """Nothing is under way."""
    for process in players:
        process.wait(60)


def test_a_film_is_made_when_so_many_generations_have_passed(
    tmp_path: Path, player: Path, players: list[subprocess.Popen[bytes]]
) -> None:
    fail_on_notes()
    one = VideoJobs(tmp_path / "run", 10, None)
    for generation in (0, 3, 9, 12, 15, 19, 31):
        one.add(generation)
        settled(players)
    one.close()
    assert [words[words.index("--generation") + 1] for words in asked(player)] == ["0", "12", "31"]
    assert all(
        words[-1]
        == str(
            tmp_path / "run" / "videos" / f"{int(words[words.index('--generation') + 1]):08d}.gif"
        )
        for words in asked(player)
    )


def test_a_film_that_fails_is_said_once_and_ends_the_filming(
    tmp_path: Path, player: Path, players: list[subprocess.Popen[bytes]]
) -> None:
    player.write_text("sys.exit('es-play: Objective draws nothing')")
    said = collect_notes()
    one = VideoJobs(tmp_path / "run", 1, None)
    for generation in range(4):
        one.add(generation)
        settled(players)
    one.close()
    assert (
        said == ["no more films are made (Objective draws nothing); training continues"]
        and len(asked(player)) == 1
    )


def test_the_flag_takes_a_number_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_command_line(["--env", "CartPole-v1", "--video-every", "50"])[1].video_every == 50
    with pytest.raises(UsageError, match="--video-every is 'x': use a whole number"):
        parse_command_line(["--env", "CartPole-v1", "--video-every", "x"])
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    validate_video_support(0)
    with pytest.raises(UsageError, match=r"pip install 'es-queue\[video\]'"):
        parse_command_line(["--env", "CartPole-v1", "--video-every", "50"])
    assert video_jobs.VIDEO_FOLDER == "videos"
