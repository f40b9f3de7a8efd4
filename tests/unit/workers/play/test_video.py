"""Films of episodes without a screen: as long as the episode, at the environment's own speed, whole
or not there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.errors import EnvironmentFailure, RunFolderError
from tests.cases import each_case
from tests.unit.workers.play.test_play_cli import CARTPOLE, WALKER, checkpoint, played
from workers.es_play import main
from workers.playback import VideoRecorder

Image = pytest.importorskip("PIL.Image", reason="the extra 'video' is not installed")
pytest.importorskip("imageio_ffmpeg", reason="the extra 'video' is not installed")


class Stripes:
    """A world that shows a bar which moves."""

    fps = 50.0

    def __init__(self) -> None:
        self.at = 0

    def render(self) -> Any:
        picture = np.zeros((101, 601, 3), np.uint8)
        self.at += 1
        picture[:, 10 * self.at % 600 : 10 * self.at % 600 + 10] = 255
        return picture


def filmed(path: Path, steps: int, world: Any = None, has_caption: bool = False) -> VideoRecorder:
    one = VideoRecorder(world or Stripes(), path, 50.0, has_caption)
    for step in range(1, steps + 1):
        one.capture(step, 1.5 * step)
    assert one.save() == path.stat().st_size > 0
    return one


def test_a_gif_runs_at_the_environments_speed_with_half_of_its_pictures(tmp_path: Path) -> None:
    filmed(tmp_path / "a.gif", 60)
    with Image.open(tmp_path / "a.gif") as picture:
        assert (picture.n_frames, picture.size, picture.info["duration"]) == (30, (600, 101), 40)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


def test_an_mp4_has_every_picture(tmp_path: Path) -> None:
    import imageio_ffmpeg

    filmed(tmp_path / "a.mp4", 60)
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "a.mp4"))
    assert frames == 60 and seconds == pytest.approx(1.2, abs=0.1)


def test_a_caption_is_in_every_picture_and_changes_with_the_step(tmp_path: Path) -> None:
    class Dark(Stripes):
        def render(self) -> Any:
            return np.zeros((100, 300, 3), np.uint8)

    filmed(tmp_path / "a.gif", 8, Dark(), has_caption=True)
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames == 4  # equal pictures would be one
    filmed(tmp_path / "b.gif", 8, Dark())
    with Image.open(tmp_path / "b.gif") as film:
        assert film.n_frames == 1 and film.convert("L").getextrema() == (0, 0)


def test_a_policy_of_envpool_is_filmed_in_gymnasiums_own_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(CARTPOLE, backend="envpool").to_dict()
    checkpoint(tmp_path / "best.npz", CARTPOLE, config=config)
    assert main([str(tmp_path), "--record", str(tmp_path / "a.gif"), "--caption"]) == 0
    assert "its episodes differ from those in training" in capsys.readouterr().err


def test_an_environment_that_draws_nothing_and_a_folder_that_is_none_are_said(
    tmp_path: Path,
) -> None:
    class Blind(Stripes):
        def render(self) -> Any:
            return None

    with pytest.raises(EnvironmentFailure, match="renders no images"):
        filmed(tmp_path / "a.gif", 2, Blind())
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        filmed(tmp_path / "file" / "a.gif", 4)


@each_case("config", [CARTPOLE, WALKER])
def test_a_policy_is_filmed_without_a_display_and_plays_as_it_does_unseen(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    checkpoint(tmp_path / "best.npz", config)
    unseen = played(capsys, tmp_path, "--episodes", 1)
    seen = played(capsys, tmp_path, "--record", tmp_path / "films" / "a.gif")
    assert {**seen, "seed": None} == unseen
    with Image.open(tmp_path / "films" / "a.gif") as picture:
        assert abs(picture.n_frames - unseen["length_mean"] * 25 / 50) <= 1
        first = np.asarray(picture.convert("RGB")).astype(int)
        picture.seek(picture.n_frames - 1)
        last = np.asarray(picture.convert("RGB")).astype(int)
    assert first.std() > 5 and (first != last).any(), "it shows something, and that moves"


# --- what is said of many episodes


def test_the_mean_has_an_interval_that_holds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path / "best.npz", CARTPOLE)
    found = played(capsys, tmp_path, "--episodes", 30, "--seed", 5)
    low, high = found["interval"]
    assert found["eval_min"] <= low < found["eval_mean"] < high <= found["eval_max"]
    assert played(capsys, tmp_path, "--episodes", 2, "--seed", 5)["interval"] is None
