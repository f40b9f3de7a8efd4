"""Rows of docs/results.md: they can be read, and their commands still give their figures."""

from __future__ import annotations

import pytest

from tests.cases import each_case
from tools.results import CLOSE, DIFFERENT, Played, compare, main
from tools.results_table import PAGE, Figure, split_cells, stored_row

TABLE = """
| environment | command | mean ± std | IQM | steps | seconds | rival |
|---|---|---|---|---|---|---|
| Some-v0 | `es-master --env Some-v0 --seeds 1,3 --workers 9` | 1,500.0 ± 2.5, -3 ± 0.0 | | | | |
| Short-v0 | `es-master --env Short-v0 --seeds 1-3` | 1.0 ± 1.0, 2.0 ± 1.0 | | | | |
| Single-v0 | `es-master --env Single-v0 --seed 1` | 1.0 ± 1.0 | | | | |
"""


def run_of(mean: float, std: float) -> Played:
    return Played(1, 1000, 1.0, mean, std, mean)


def test_a_row_is_its_command_and_a_figure_for_each_seed() -> None:
    row = stored_row("Some-v0", TABLE)
    assert row.command == ("es-master", "--env", "Some-v0", "--workers", "9")
    assert row.figures == {1: Figure(1500.0, 2.5, 1), 3: Figure(-3.0, 0.0, 0)}


@each_case(
    ("environment", "sentence"),
    [
        ("Other-v0", "docs/results.md has no row 'Other-v0'"),
        ("Short-v0", "the row Short-v0 has 2 figures, but 3 seeds"),
        ("Single-v0", "the row Single-v0 names no command with --seeds"),
    ],
)
def test_a_row_that_cannot_be_trained_again_is_named(environment: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        stored_row(environment, TABLE)
    assert str(caught.value) == sentence


def test_every_row_of_the_page_can_be_trained_again() -> None:
    page = PAGE.read_text()
    lines = [cells for cells in map(split_cells, page.splitlines()) if len(cells) == 7]
    names = [cells[0] for cells in lines[2:]]
    assert len(names) >= 18 and all(stored_row(name, page).figures for name in names)


def test_figures_are_compared_as_printed_and_then_by_their_standard_errors() -> None:
    page = Figure(300.0, 10.0)
    assert compare(page, run_of(300.04, 9.96)) == "the same"
    assert compare(page, run_of(304.0, 10.0)) == CLOSE
    assert compare(page, run_of(304.5, 10.0)) == DIFFERENT
    assert compare(Figure(16945, 5808, 0), run_of(16945.4, 5807.6)) == "the same"


def test_a_row_or_seed_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--reproduce", "Other-v0"]) == 2
    assert main(["--reproduce", "CartPole-v1", "--seeds", "4"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "tools.results: docs/results.md has no row 'Other-v0'",
        "tools.results: cannot use seed 4: the row CartPole-v1 has the seeds 1, 2, 3",
    ]


@each_case("arguments", [["--seeds", "1", "study"], ["--reproduce", "CartPole-v1", "study"], []])
def test_options_that_do_not_belong_together_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_failed_es_master_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDIS_URL", "nonsense")
    assert main(["--reproduce", "CartPole-v1", "--seeds", "1"]) == 2
    assert "tools.results: es-master ended with " in capsys.readouterr().err


@pytest.mark.slow
@each_case("environment", ["CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0"])
def test_three_cheap_rows_still_have_the_figures_of_the_page(environment: str) -> None:
    assert main(["--reproduce", environment]) == 0
