"""es-plot: what it reads from run folders, how seeds become a band, and that pictures show those
numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from master.plot import command
from master.plot.curves import (
    POINTS,
    compute_band,
    draw_panels,
    group_runs,
    read_run,
    read_runs,
)
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


# --- reading


def test_a_curve_has_the_generations_that_were_evaluated(tmp_path: Path) -> None:
    x, y = read_run(run(tmp_path / "a", evaluated(1, 2, 3, 4, 5))).curve("eval_mean", "steps")
    assert x.tolist() == [100, 300, 500] and y.tolist() == [1, 3, 5]


def test_the_closing_evaluation_is_no_vertical_stroke(tmp_path: Path) -> None:
    closing = record(5, env_steps=500, population=0, eval_mean=9.0)
    records = [*evaluated(1, 2, 3, 4, 5), closing]
    x, y = read_run(run(tmp_path / "a", records)).curve("eval_mean", "steps")
    assert x.tolist() == [100, 300, 500] and y.tolist() == [1, 3, 9]


def test_a_folder_of_studies_gives_all_their_runs_and_one_twice_counts_once(tmp_path: Path) -> None:
    for seed in range(3):
        run(tmp_path / "study" / f"seed-{seed}", evaluated(1, 2, 3), seed=seed)
    (tmp_path / "study" / "seeds.json").write_text("{}")
    run(tmp_path / "single", evaluated(1))
    assert len(read_runs([tmp_path])) == 4
    assert len(read_runs([tmp_path / "study", tmp_path / "study" / "seed-0"])) == 3


# --- bands


def test_the_mean_of_runs_is_taken_between_their_points_and_an_ended_run_keeps_its_last_value() -> (
    None
):
    long, short = (
        (np.array([0.0, 10.0]), np.array([0.0, 10.0])),
        (np.array([0.0, 5.0]), np.array([0.0, 10.0])),
    )
    x, middle, _, high, shade = compute_band([long, short])
    assert len(x) == POINTS and x[[0, -1]].tolist() == [0, 10]
    np.testing.assert_allclose(middle, (x + np.minimum(2 * x, 10)) / 2)
    np.testing.assert_allclose(high, np.minimum(2 * x, 10))
    assert shade == "both runs"


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


def test_a_target_that_the_master_has_resolved_is_drawn(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", [record(0, eval_mean=1.0, target=9.0)], target_reward="auto")
    out = tmp_path / "a.svg"
    assert command.main([str(folder), "--out", str(out)]) == 0
    assert "target 9" in out.read_text()


def test_the_panels_show_returns_evaluations_seconds_and_the_centre(tmp_path: Path) -> None:
    closing = record(30, population=0, return_mean=None, centre_rank=None, seconds_wait=9.0)
    own = read_run(run(tmp_path / "a", [*evaluated(*range(30)), closing]))
    with command.empty_figure() as figure:
        draw_panels(figure, own, "steps")
    returns, evaluations, seconds, centre = figure.axes
    assert returns.lines[0].get_ydata().tolist() == [10.0 * place for place in range(30)]
    assert evaluations.lines[0].get_ydata().tolist() == list(range(0, 30, 2))
    assert seconds.lines[0].get_ydata().tolist() == [0.4] * 30
    assert centre.lines[0].get_ydata().tolist() == [0.25] * 30
    legends = [panel.get_legend() for panel in (returns, evaluations, seconds, centre)]
    assert all(legend is not None and legend.get_texts() for legend in legends)


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


@each_case(
    ("words", "told"),
    [
        (
            ["a", "--metric", "nothing"],
            "--metric nothing is in no record of these runs; they have centre_rank, env_steps",
        ),
        (["a", "--out", "a.gif"], "must end in .png, .svg or .pdf"),
        (["a", "b", "--panels"], "--panels draws one run, and 2 were given"),
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
