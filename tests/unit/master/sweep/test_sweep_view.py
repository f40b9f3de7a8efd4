"""What a study shows: a line now and then, JSON, a table, and at the end every seed and the figures
over them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from es_queue.config.run_config import RunConfig
from master.sweep.record import FAILED, FINISHED, STOPPED, WAITING, Seed, Study
from master.sweep.view import (
    format_result,
)

CONFIG = RunConfig(env="CartPole-v1", generations=9)


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


def example() -> Study:
    entries = [
        Seed(1, "base-s1", FINISHED, True, 0, "", summary(mean=10.0)),
        Seed(2, "base-s2", FINISHED, True, 0, "", summary(mean=4.0)),
        Seed(30, "base-s30", FINISHED, True, 0, "", summary(mean=6.0)),
        Seed(4, "base-s4", FAILED, True, 5, "it \x1b[31m fell", None),
        Seed(5, "base-s5", WAITING),
        Seed(6, "base-s6", STOPPED, True, 130, "", summary(STOPPED, None)),
    ]
    return Study("base", CONFIG, entries, target=6.0, state=FAILED)


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
    record = replace(record, seeds=record.seeds[:2])
    lines = format_result(record)
    assert "  no interval: fewer than 3 runs show nothing about the variation of others" in lines
    assert not any("interval 4.00" in line for line in lines)
