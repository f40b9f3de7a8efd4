"""es-plot: what it reads from run folders, how seeds become a band, and that pictures show those
numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from es_queue.util.run_folder import STUDY_FILE
from master.plot import command
from master.plot.bands import POINTS, compute_band, rolling_mean
from master.plot.curves import MIXED_TIME, group_runs, learning_curves
from master.plot.panels import draw_panels
from master.plot.runs import RunCurves, read_run, read_runs
from master.storage.metrics_files import LONGEST_LINE
from tests.cases import each_case

CONFIG = {"env": "CartPole-v1", "strategy": "pgpe", "policy": "linear", "target_reward": "475"}


def record(generation: int, **values: Any) -> dict[str, Any]:
    usual = {
        "env_steps": 100 * (generation + 1),
        "seconds": 0.5 * (generation + 1),
        "return_mean": 10.0 * generation,
        "return_max": 20.0 * generation,
    }
    return {
        "generation": generation,
        **usual,
        "seconds_wait": 0.4,
        "seconds_update": 0.0,
        "seconds_publish": 0.01,
        "centre_rank": 0.75,
        **values,
    }


def run(folder: Path, records: list[dict[str, Any]], **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "seed": 0, **config}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


def evaluated(*returns: float) -> list[dict[str, Any]]:
    """A record a generation, every second one evaluated."""
    return [
        record(place, eval_mean=value, eval_std=1.0)
        if place % 2 == 0
        else record(place, eval_mean=None)
        for place, value in enumerate(returns)
    ]


def texts(svg: Path) -> str:
    return ElementTree.tostring(ElementTree.parse(svg).getroot(), encoding="unicode")


# --- reading


def test_a_target_that_is_auto_is_the_environments_threshold(tmp_path: Path) -> None:
    def target(**values: Any) -> object:
        return RunCurves(tmp_path, {**CONFIG, "target_reward": "auto", **values}, []).target

    assert target() == 475.0 and target(env="X-v0") is None and target(objective="a:b") == "auto"
    assert target(target_reward="3") == "3"


def test_a_curve_has_the_generations_that_were_evaluated(tmp_path: Path) -> None:
    x, y = read_run(run(tmp_path / "a", evaluated(1, 2, 3, 4, 5))).curve("eval_mean", "steps")
    assert x.tolist() == [100, 300, 500] and y.tolist() == [1, 3, 5]


def test_a_generation_that_was_played_again_after_a_resume_counts_as_it_came_last(
    tmp_path: Path,
) -> None:
    again = [*evaluated(1, 2, 3), record(1, eval_mean=7.0), record(2, eval_mean=8.0)]
    assert read_run(run(tmp_path / "a", again)).curve("eval_mean", "generations")[1].tolist() == [
        1,
        7,
        8,
    ]


@each_case(
    "line",
    [
        "not json",
        "[1]",
        '{"generation": "x"}',
        '{"eval_mean": 1e999}',
        "[" * 5000,
        "9" * (2 * LONGEST_LINE),
    ],
)
def test_lines_that_are_no_record_are_passed_over(tmp_path: Path, line: str) -> None:
    folder = run(tmp_path / "a", evaluated(1, 2, 3))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n{json.dumps(record(3, eval_mean=9.0))}\n")
    assert read_run(folder).curve("eval_mean", "steps")[1].tolist() == [1, 3, 9]


def test_figures_that_are_no_finite_numbers_are_no_points(tmp_path: Path) -> None:
    folder = run(
        tmp_path / "a",
        [
            record(0, eval_mean=float("nan")),
            record(1, eval_mean=True),
            record(2, eval_mean="5.5"),
            record(3, eval_mean=[1]),
        ],
    )
    assert read_run(folder).curve("eval_mean", "steps")[1].tolist() == [5.5]


def test_a_folder_of_studies_gives_all_their_runs_and_one_twice_counts_once(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path / "study" / f"seed-{seed}", evaluated(1, 2, 3), seed=seed)
    (tmp_path / "study" / "seeds.json").write_text("{}")
    run(tmp_path / "single", evaluated(1))
    assert len(read_runs([tmp_path])) == 4
    assert len(read_runs([tmp_path / "study", tmp_path / "study" / "seed-0"])) == 3


# --- bands


def test_one_run_is_its_own_curve() -> None:
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    alone = compute_band([(x, y), (np.empty(0), np.empty(0))])
    assert alone.middle is y and alone.shade == ""


def test_the_mean_of_runs_is_taken_between_their_points_and_an_ended_run_keeps_its_last_value() -> (
    None
):
    long, short = (
        (np.array([0.0, 10.0]), np.array([0.0, 10.0])),
        (np.array([0.0, 5.0]), np.array([0.0, 10.0])),
    )
    both = compute_band([long, short])
    assert len(both.x) == POINTS and both.x[[0, -1]].tolist() == [0, 10]
    np.testing.assert_allclose(both.middle, (both.x + np.minimum(2 * both.x, 10)) / 2)
    np.testing.assert_allclose(both.high, np.minimum(2 * both.x, 10))
    assert both.shade == "both runs"


@each_case(("statistic", "expected"), [("mean", 20.0), ("iqm", 7.5)])
def test_three_runs_and_more_have_an_interval_about_their_statistic(
    statistic: str, expected: float
) -> None:
    curves = [(np.array([0.0, 1.0]), np.full(2, value)) for value in (0.0, 5.0, 10.0, 65.0)]
    found = compute_band(curves, statistic)
    np.testing.assert_allclose(found.middle, expected)
    assert (
        (found.low <= found.middle).all()
        and (found.middle <= found.high).all()
        and found.shade == "95 % interval, 4 runs"
    )


def test_of_three_runs_the_band_is_their_range() -> None:
    curves = [(np.array([0.0, 1.0]), np.full(2, value)) for value in (0.0, 5.0, 40.0)]
    band = compute_band(curves)
    assert (band.low[0], band.middle[0], band.high[0]) == (0.0, 15.0, 40.0)
    assert band.shade == "range of 3 runs"


def test_the_rolling_mean_is_of_the_newest_values() -> None:
    assert rolling_mean(np.array([2.0, 4.0, 6.0, 8.0]), 2).tolist() == [2, 3, 5, 7]


# --- pictures


def test_runs_that_differ_by_their_seeds_alone_are_one_group_and_others_are_named_by_what_differs(
    tmp_path: Path,
) -> None:
    for seed in range(2):
        run(tmp_path / f"sync-{seed}", evaluated(1, 2, 3), seed=seed, schedule="sync", workers=seed)
        run(tmp_path / f"async-{seed}", evaluated(1, 2, 3), seed=seed, schedule="async")
    groups = group_runs(read_runs([tmp_path]))
    assert {name: len(own) for name, own in groups.items()} == {"async": 2, "sync": 2}
    alone = group_runs(read_runs([tmp_path / "sync-0"]))
    assert list(alone) == ["pgpe, linear"]


def test_settings_that_nobody_chose_name_a_curve_only_if_nothing_else_does(tmp_path: Path) -> None:
    run(tmp_path / "a", evaluated(1), strategy="ga", env_seeds="generation", final_episodes=20)
    run(tmp_path / "b", evaluated(1), strategy="pgpe", env_seeds="pair", final_episodes=100)
    assert list(group_runs(read_runs([tmp_path]))) == ["ga", "pgpe"]
    run(tmp_path / "c" / "d", evaluated(1), strategy="ga", env_seeds="pair", final_episodes=20)
    alike = [tmp_path / "a", tmp_path / "c"]
    assert list(group_runs(read_runs(alike))) == ["env seeds generation", "env seeds pair"]


def test_a_setting_that_an_earlier_revision_did_not_have_names_no_curve(tmp_path: Path) -> None:
    run(tmp_path / "a", evaluated(1), strategy="ga", former_setting=1)
    run(tmp_path / "b", evaluated(1), strategy="ga", member_init="near", hidden=[64, 64], seed=1)
    assert [len(members) for members in group_runs(read_runs([tmp_path])).values()] == [2]


def test_groups_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name, strategy, policy, population, rate in (
        ("a", "ga", "linear", 8, 0.1),
        ("b", "ga", "linear", 8, 0.2),
        ("c", "pgpe", "mlp", 16, 0.2),
    ):
        values = {"strategy": strategy, "policy": policy, "population": population}
        run(tmp_path / name, evaluated(1), **values, learning_rate=rate)
    assert list(group_runs(read_runs([tmp_path / name for name in "abc"]))) == [
        "ga, linear, population 8, a",
        "ga, linear, population 8, b",
        "pgpe, mlp, population 16",
    ]


def test_the_drawn_line_is_the_runs_evaluations(tmp_path: Path) -> None:
    picture = learning_curves(
        read_runs([run(tmp_path / "a", evaluated(1, 2, 3, 4, 5))]),
        "eval_mean",
        ["steps", "time"],
        "mean",
    )
    steps, seconds = picture.axes
    assert steps.lines[0].get_xdata().tolist() == [100, 300, 500] and steps.lines[
        0
    ].get_ydata().tolist() == [1, 3, 5]
    assert seconds.lines[0].get_xdata().tolist() == [0.5, 1.5, 2.5]
    assert any(list(line.get_ydata()) == [475, 475] for line in steps.lines), "the target"


def test_a_single_evaluation_is_drawn_as_a_dot(tmp_path: Path) -> None:
    for returns, marker in (((1,), "o"), ((1, 2, 3), "")):
        runs = read_runs([run(tmp_path / str(len(returns)), evaluated(*returns))])
        (panel,) = learning_curves(runs, "eval_mean", ["steps"], "mean").axes
        assert panel.lines[0].get_marker() == marker


def test_the_panels_show_returns_evaluations_seconds_and_the_centre(tmp_path: Path) -> None:
    closing = record(30, population=0, return_mean=None, centre_rank=None, seconds_wait=9.0)
    own = read_run(run(tmp_path / "a", [*evaluated(*range(30)), closing]))
    returns, evaluations, seconds, centre = draw_panels(own, "steps").axes
    assert returns.lines[0].get_ydata().tolist() == [10.0 * place for place in range(30)]
    assert evaluations.lines[0].get_ydata().tolist() == list(range(0, 30, 2))
    assert seconds.lines[0].get_ydata().tolist() == [0.4] * 30
    assert centre.lines[0].get_ydata().tolist() == [0.25] * 30
    legends = [panel.get_legend() for panel in (returns, evaluations, seconds, centre)]
    assert all(legend is not None and legend.get_texts() for legend in legends)


def test_the_panel_of_returns_shows_the_elite_if_there_is_one(tmp_path: Path) -> None:
    for name, figures, labels in (
        ("es", {}, []),
        ("ga", {"elite_fitness": 7.0}, ["elite, evaluated again"]),
    ):
        own = read_run(run(tmp_path / name, [record(each, **figures) for each in range(4)]))
        returns = draw_panels(own, "steps").axes[0]
        assert [line.get_label() for line in returns.lines[2:]] == labels


@each_case(
    ("words", "expected"),
    [
        (["--label", "mine"], {"wall-clock minutes": 1, "20": 1, "mine": 2}),
        (["--panels", "--by", "time"], {"wall-clock minutes": 4, "0.01": 1}),
        (["--panels"], {"environment steps": 4, "0.01": 1, "target 3": 1}),
    ],
)
def test_axes_have_plain_units_and_each_panel_has_its_legend(
    tmp_path: Path, words: list[str], expected: dict[str, int]
) -> None:
    figures = {"seconds_wait": 0.01, "seconds_update": 0.1}
    records = [record(each, eval_mean=each, seconds=300.0 * each, **figures) for each in range(5)]
    folder = run(tmp_path / "a", records, target_reward="3", generations=5)
    assert command.main([str(folder), *words, "--out", str(tmp_path / "a.svg")]) == 0
    shown = texts(tmp_path / "a.svg")
    assert {text: shown.count(f">{text}<") for text in expected} == expected
    assert "mathdefault" not in shown


@each_case(("others", "is_noted"), [("alone", True), ("study/s3", False)])
def test_a_time_axis_tells_if_only_some_of_its_runs_shared_their_workers(
    tmp_path: Path, others: str, is_noted: bool
) -> None:
    for name in ("study/s1", "study/s2", others):
        run(tmp_path / name, evaluated(1, 2, 3), run=name)
    (tmp_path / "study" / STUDY_FILE).write_text("{}")
    folders = [str(tmp_path / name) for name in ("study", others)]
    assert command.main([*folders, "--out", str(tmp_path / "a.svg")]) == 0
    assert texts(tmp_path / "a.svg").count(MIXED_TIME) == is_noted


@each_case("name", ["out.png", "out.svg", "out.pdf"])
def test_a_picture_is_written_whole_and_the_same_runs_give_the_same_bytes(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", evaluated(1, 2, 3))
    written = []
    for _ in range(2):
        assert command.main([str(tmp_path / "a"), "--out", str(tmp_path / name)]) == 0
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1] and len(written[0]) > 5000
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path / name}: 1 run, CartPole-v1"
    assert {path.name for path in tmp_path.iterdir()} == {"a", name}


def test_a_pdf_has_no_type_3_font_which_journals_refuse(tmp_path: Path) -> None:
    run(tmp_path / "a", evaluated(1, 2, 3))
    out = tmp_path / "a.pdf"
    assert command.main([str(tmp_path / "a"), "--out", str(out)]) == 0
    assert b"/FontFile2" in out.read_bytes()
    assert b"/Type3" not in out.read_bytes()


def test_names_from_files_can_do_nothing_to_a_picture_or_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "a", evaluated(1, 2), env="x\x1b[31m$\\frac{</svg>")
    assert command.main([str(tmp_path / "a"), "--out", str(tmp_path / "a.svg")]) == 0
    assert "\x1b" not in capsys.readouterr().out and "\x1b" not in (tmp_path / "a.svg").read_text()
    assert "$\\frac{&lt;/svg&gt;" in texts(tmp_path / "a.svg")


@each_case(
    ("words", "told"),
    [
        (
            ["a", "--metric", "nothing"],
            "--metric nothing is in no record of these runs; they have centre_rank, env_steps",
        ),
        (["a", "--out", "a.gif"], "must end in .png, .svg or .pdf"),
        (["a", "--out", "no/such/folder.png"], "cannot be written: No such file or directory"),
        (["a", "b", "--panels"], "--panels draws one run, and 2 were given"),
        (["empty", "--panels"], "has no closed generation yet"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("a"), evaluated(1, 2))
    run(Path("b"), evaluated(1, 2))
    run(Path("empty"), [])
    assert command.main(words) == 2
    said = capsys.readouterr().err
    assert told in said and said.startswith("es-plot: ") and said.count("\n") == 1
    assert not list(tmp_path.glob("*.png"))


def test_without_matplotlib_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command.main([str(run(tmp_path / "a", evaluated(1, 2)))]) == 2
    assert "pip install 'es-queue[plot]'" in capsys.readouterr().err
