"""What a study shows: a line now and then, JSON, a table, and at the end every seed and the figures
over them.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

from es_queue.config.run_config import RunConfig
from master.display.log_view import SafeStream
from master.sweep.record import FAILED, FINISHED, STOPPED, WAITING, SeedRun, SweepRecord
from master.sweep.view import (
    SeedRow,
    SweepJsonView,
    SweepLogView,
    format_result,
)

CONFIG = RunConfig(env="CartPole-v1", generations=9)
GENERATION = {
    "event": "generation",
    "generation": 3,
    "env_steps": 1200,
    "return_mean": 5.0,
    "steps_per_second": 10.0,
    "workers": 1,
}


def summary(state: str = FINISHED, mean: float | None = 7.0) -> dict[str, Any]:
    return {
        "event": "summary",
        "state": state,
        "generation": 9,
        "env_steps": 5000,
        "eval_mean": mean,
        "eval_std": 1.0,
        "eval_min": 5.0,
    }


def example() -> SweepRecord:
    entries = [
        SeedRun(1, "base-s1", FINISHED, True, 0, "", summary(mean=10.0)),
        SeedRun(2, "base-s2", FINISHED, True, 0, "", summary(mean=4.0)),
        SeedRun(30, "base-s30", FINISHED, True, 0, "", summary(mean=6.0)),
        SeedRun(4, "base-s4", FAILED, True, 5, "it \x1b[31m fell", None),
        SeedRun(5, "base-s5", WAITING),
        SeedRun(6, "base-s6", STOPPED, True, 130, "", summary(STOPPED, None)),
    ]
    return SweepRecord("base", CONFIG, entries, target=6.0, state=FAILED)


def test_the_end_lists_every_seed_and_says_over_how_many_runs_the_figures_are() -> None:
    assert format_result(example()) == [
        "study base failed: 3 of 6 runs finished",
        "  seed 1   10.0 ± 1.0, min 5.00, after 5,000 steps",
        "  seed 2   4.00 ± 1.00, min 5.00, after 5,000 steps",
        "  seed 30  6.00 ± 1.00, min 5.00, after 5,000 steps",
        "  seed 4   failed with exit code 5: it \\x1b[31m fell",
        "  seed 5   not begun",
        "  seed 6   stopped at generation 9, no final evaluation",
        "  final evaluations of 3 of 6 runs: the others are missing, not counted as 0",
        "  IQM     6.33, 95 % interval 4.00 to 10.0",
        "  mean    6.67, 95 % interval 4.00 to 10.0",
        "  median  6.00",
        "  worst   4.00",
        "  target  6.00 reached by 2 of 6 runs",
    ]


def test_with_two_runs_there_is_no_interval_and_that_is_said() -> None:
    record = example()
    record = replace(record, entries=record.entries[:2])
    lines = format_result(record)
    assert "  no interval: fewer than 3 runs show nothing about the variation of others" in lines
    assert not any("interval 4.00" in line for line in lines)


def test_a_log_has_a_seeds_line_now_and_then_and_every_evaluation() -> None:
    now = [0.0]
    out = io.StringIO()
    view = SweepLogView(SafeStream(out), example(), quiet=False, clock=lambda: now[0])
    row = SeedRow(2)
    for second in range(25):
        now[0] = second
        view.event(
            row,
            {
                **GENERATION,
                "generation": second,
                **({"eval_mean": 8.0, "eval_best": 9.0} if second == 5 else {}),
            },
        )
    lines = out.getvalue().splitlines()
    assert [line.split("|")[0].strip() for line in lines] == [
        f"seed 2: generation {second} of 9" for second in (0, 5, 15)
    ]
    assert "eval 8.00, best 9.00" in lines[1]


def test_quiet_says_notes_and_the_end_alone() -> None:
    out = io.StringIO()
    view = SweepLogView(SafeStream(out), example(), quiet=True)
    view.started({"join": "rq worker"})
    view.event(SeedRow(1), GENERATION)
    view.event(SeedRow(1), summary())
    view.note("fell \x1b over", 3)
    view.ended(example())
    assert out.getvalue().splitlines() == ["seed 3: fell \\x1b over", *format_result(example())]


def test_json_tells_each_runs_events_with_its_seed() -> None:
    out = io.StringIO()
    view = SweepJsonView(SafeStream(out), example(), quiet=False)
    view.started({"join": "rq worker"})
    view.event(SeedRow(30), {**GENERATION, "seed": "30"})
    view.ended(example())
    first, second, last = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["seeds"]) == ("study", [1, 2, 30, 4, 5, 6])
    assert (second["event"], second["seed"]) == ("generation", 30)
    assert (last["event"], last["iqm_interval"], last["reached_target"]) == (
        "study",
        [4.0, 10.0],
        2,
    )


WIDE = {
    "env_steps": 12_345_678,
    "steps_per_second": 123456.0,
    "workers": 1234,
    "eval_mean": -1234.5,
    "eval_best": 309.5,
}
CELLS = ("123456789", "running", "3 of 9", "12.35 M", "-1234.5", "309.5", "123,456", "1,234")
