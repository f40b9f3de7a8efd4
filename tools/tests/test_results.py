"""Rows of docs/results.md: they can be read, measured and compared, and give the page's tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest

from es_queue.config.run_config import RunConfig
from master.cli.flags import make_parser
from tests.cases import each_case
from tools.results import __main__ as results
from tools.results.__main__ import CLOSE, DIFFERENT, compare, main
from tools.results.measure import measure, threshold_steps
from tools.results.page import is_current, rival_cell, table_line, threshold_line
from tools.results.stored import (
    Rival,
    StoredRow,
    StoredRun,
    load_rows,
    write_rows,
)
from tools.results.survival import median_time

RUNS = (
    StoredRun(1, 1500.0, 20.0, 1400.0, 2_000_000, 1_000_000, 20.0, "a" * 32),
    StoredRun(2, 1400.0, 20.0, 1300.0, 4_000_000, 3_000_000, 80.0, "b" * 32),
    StoredRun(3, 900.0, 20.0, 100.0, 2_000_000, None, 20.0, "c" * 32),
)
ROW = StoredRow(
    "Some-v0",
    "es-master --env Some-v0",
    Rival("a paper", 1450, "1450 ± 3", "7"),
    RUNS,
    threshold=1000,
)


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, environment="Other-v0", runs=RUNS[:1], threshold=None)]
    write_rows(rows, tmp_path / "results.json")
    assert load_rows(tmp_path / "results.json") == rows


def test_the_pages_are_those_that_the_stored_rows_give() -> None:
    rows = load_rows()
    assert len(rows) >= 22
    assert is_current(rows), "python -m tools.results write"


def test_every_row_names_a_command_that_es_master_understands_and_each_seed_once() -> None:
    for row in load_rows():
        assert row.command.startswith("es-master --env ") and "--seed" not in row.command
        assert make_parser().parse_args(row.words)
        if row.environment == "BipedalWalkerHardcore-v3":  # its runs take hours
            assert len(row.seeds) == 1
        else:
            assert row.seeds == list(range(1, 11))


def test_a_threshold_is_the_registered_one_if_there_is_one() -> None:
    for row in load_rows():
        registered = gymnasium.registry.get(row.environment)
        if registered is not None and registered.reward_threshold is not None:
            assert row.threshold == registered.reward_threshold, row.environment


def test_a_run_has_steps_to_the_threshold_exactly_if_it_reached_it() -> None:
    for row in load_rows():
        for run in row.runs:
            reached = row.threshold is not None and run.mean >= row.threshold
            assert (run.threshold_steps is not None) == reached, (row.environment, run.seed)


def test_a_line_tells_how_far_the_median_is_below_the_published_figure() -> None:
    name, *cells = table_line(ROW).strip("| \n").split(" | ")
    assert name == "Some-v0"
    assert cells[:3] == ["3", "1,400.0", "1,333.3 [900.0 to 1,500.0]"]
    assert cells[3:5] == ["2.00 (2.00 to 4.00)", "20 (20 to 80)"]
    assert cells[5] == "1450 ± 3 at 7 (a paper): **50.0 below it**"
    better = replace(ROW, rival=Rival("a paper", 1400, "1400", "7", "1000 at 1 (another)"))
    assert rival_cell(better) == "1400 at 7 (a paper): not below it; 1000 at 1 (another)"
    plot = replace(ROW, rival=Rival("a plot", 1450.4, "about 1,450", "7"))
    assert rival_cell(plot) == "about 1,450 at 7 (a plot): **50 below it**"
    assert rival_cell(replace(ROW, rival=Rival("none known"))) == "none known"


def test_a_run_that_missed_the_threshold_counts_as_not_yet_there() -> None:
    # 1.2 + 0.75 * (80 - 1.2) seconds of the second run
    assert threshold_line(ROW) == "| Some-v0 | 1,000 | 2 of 3 | 3.00 | 60 |\n"
    at_once = replace(ROW, runs=(replace(RUNS[0], threshold_steps=0),))
    assert threshold_line(at_once) == "| Some-v0 | 1,000 | 1 of 1 | 0.00 | 1 |\n"
    failed = tuple(replace(run, threshold_steps=None) for run in RUNS)
    assert threshold_line(replace(ROW, runs=failed)) == "| Some-v0 | 1,000 | 0 of 3 | - | - |\n"


@each_case(
    ("times", "reached", "median"),
    [
        ([3, 1, 2], [True, True, True], 2),
        ([1, 2, 3, 4], [True, True, True, True], 2),
        ([1, 2, 9, 9], [True, True, False, False], 2),
        ([1, 9, 9], [True, False, False], None),
        # the second run ends before the others' events: 3/4, then 3/4 · 1/2
        ([1, 2, 3, 4], [True, False, True, True], 3),
        ([1, 1, 2], [False, False, True], 2),
    ],
)
def test_the_median_is_that_of_the_product_limit_estimator(
    times: list[float], reached: list[bool], median: float | None
) -> None:
    assert median_time(times, reached) == median


def test_a_threshold_takes_the_steps_before_the_evaluation_that_has_it(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    means = [(10, 5.0), (20, None), (30, 7.0), (40, 9.0)]
    metrics.write_text(
        "".join(json.dumps({"env_steps": steps, "eval_mean": mean}) + "\n" for steps, mean in means)
    )
    assert [threshold_steps(value, metrics) for value in (5.0, 7.0, 9.5)] == [0, 20, 40]


def ended_run(folder: Path, seed: int, environment: str = "Some-v0", mean: float = 5.0) -> None:
    """A run's folder with what ``measure`` reads of a row that is not played in stock Gymnasium."""
    run = folder / f"s{seed}"
    run.mkdir()
    names = ("seed", "eval_mean", "eval_std", "eval_min", "env_steps", "digest")
    values = (seed, mean, 2.0, 3.0, 10, "d" * 32)
    (run / "summary.json").write_text(json.dumps(dict(zip(names, values, strict=True))))
    (run / "config.json").write_text(RunConfig(env=environment).to_json())
    (run / "metrics.jsonl").write_text(json.dumps({"env_steps": 10, "eval_mean": mean}) + "\n")


OWN_FIGURES = replace(ROW, stock=False, threshold=4.0)


def test_runs_of_a_folder_are_measured_by_seed(tmp_path: Path) -> None:
    ended_run(tmp_path, 10)
    ended_run(tmp_path, 9, mean=3.0)
    (tmp_path / "s10" / "cpu_seconds").write_text("1.5\n")
    (tmp_path / "study").mkdir()
    assert measure(OWN_FIGURES, tmp_path) == [
        StoredRun(9, 3.0, 2.0, 3.0, 10, None, None, "d" * 32),
        StoredRun(10, 5.0, 2.0, 3.0, 10, 0, 1.5, "d" * 32),
    ]


def test_a_folder_without_runs_or_of_another_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no run that has ended"):
        measure(OWN_FIGURES, tmp_path)
    ended_run(tmp_path, 1, environment="Other-v0")
    with pytest.raises(ValueError, match="s1 is a run of Other-v0, which the command of the row"):
        measure(OWN_FIGURES, tmp_path)


def test_each_reproduced_run_is_compared_with_that_of_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[int] = []
    monkeypatch.setattr(results, "train", lambda _row, seeds, _folder: trained.extend(seeds))
    monkeypatch.setattr(results, "measure", lambda _row, _folder: [RUNS[0], RUNS[2]])
    assert results.reproduce(ROW, "3,1") == 0
    assert sorted(trained) == [1, 3] and capsys.readouterr().out.count("the same") == 2


def test_new_runs_replace_those_of_the_same_seeds() -> None:
    again = replace(RUNS[1], mean=1.0)
    assert ROW.with_runs([again]).runs == (RUNS[0], again, RUNS[2])
    assert ROW.with_runs([replace(again, seed=4)]).seeds == [1, 2, 3, 4]


def test_figures_are_compared_as_printed_and_then_by_their_standard_errors() -> None:
    stored = StoredRun(1, 300.0, 10.0, 250.0, 1000, None, None, "a" * 32)
    assert compare(stored, replace(stored, mean=300.04), 1) == "the same"
    assert compare(stored, replace(stored, digest="b" * 32), 1) == CLOSE
    assert compare(stored, replace(stored, mean=304.0), 1) == CLOSE
    assert compare(stored, replace(stored, mean=304.5), 1) == DIFFERENT


def test_a_row_or_seed_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "Other-v0"]) == 2
    assert main(["reproduce", "Marvin-v0", "--seeds", "99"]) == 2
    other, seed = capsys.readouterr().err.splitlines()
    assert other.startswith(
        "tools.results: docs/results.json has no row 'Other-v0'; its rows: Cart"
    )
    assert seed.startswith(
        "tools.results: cannot use seed 99: the row Marvin-v0 has the seeds 1, 2"
    )


@each_case("arguments", [["--seeds", "1", "study"], ["record", "CartPole-v1"], []])
def test_incomplete_commands_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_failed_es_master_is_no_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDIS_URL", "nonsense")
    assert main(["reproduce", "CartPole-v1", "--seeds", "1"]) == 2
    assert "tools.results: es-master ended with " in capsys.readouterr().err


@pytest.mark.slow
@each_case("environment", ["CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0"])
def test_three_cheap_rows_still_have_their_stored_figures(environment: str) -> None:
    assert main(["reproduce", environment, "--seeds", "1"]) == 0
