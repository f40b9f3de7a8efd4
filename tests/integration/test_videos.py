"""``--video-every``: films that a real run makes of itself."""

from __future__ import annotations

import pytest

from tests.integration.processes import CARTPOLE, Processes, flags

Image = pytest.importorskip("PIL.Image", reason="the extra 'video' is not installed")


def test_a_run_films_each_generation_however_fast_they_are_and_leaves_no_process(
    processes: Processes,
) -> None:
    one = processes.master(*flags(CARTPOLE), "--run", "filmed", "--workers", 1, "--video-every", 1)
    assert one.wait() == 0, one.said()
    assert "no more films" not in one.said() and processes.living() == {}
    films = sorted((processes.folder / "runs/filmed/videos").iterdir())
    assert [film.name for film in films] == [
        f"{generation:08d}.gif" for generation in range(CARTPOLE["generations"])
    ]
    with Image.open(films[0]) as picture:
        assert picture.n_frames > 1
