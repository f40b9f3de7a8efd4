"""``--video-every``: films that a real run makes of itself."""

from __future__ import annotations

import pytest

from tests.integration.household import ROOT
from tests.integration.processes import CARTPOLE, Processes, flags

Image = pytest.importorskip("PIL.Image", reason="the extra 'video' is not installed")
SPHERE = {"objective": "tests.objectives:sphere", "parameters": 4, "noise_size": 2**14}


@pytest.mark.parametrize(("every", "filmed"), [(1, [0, 1, 2]), (2, [0, 2])])
def test_a_run_films_its_generations_however_fast_they_are_and_leaves_no_process(
    every: int, filmed: list[int], processes: Processes
) -> None:
    words = (*flags(CARTPOLE), "--run", "filmed", "--workers", 1, "--video-every", every)
    one = processes.master(*words)
    assert one.wait() == 0, one.said()
    assert "no more films" not in one.said() and processes.living() == {}
    films = sorted((processes.folder / "runs/filmed/videos").iterdir())
    assert [film.name for film in films] == [f"{number:08d}.gif" for number in filmed]
    with Image.open(films[0]) as picture:
        assert picture.n_frames > 1


def test_a_film_that_fails_is_said_once_and_ends_the_filming(processes: Processes) -> None:
    words = (*flags({**SPHERE, "generations": 4}), "--workers", 1, "--video-every", 1)
    one = processes.master(*words, PYTHONPATH=str(ROOT))
    assert one.wait() == 0, one.said()
    assert one.said().count("no more films are made (tests.objectives:sphere is an objective") == 1
