"""Seeds as people write them, a study's id, a seed's command, and what is stored of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.errors import RunFolderError, UsageError
from es_queue.run_folder import STUDY_FILE
from master.cli.options import MOST_SEEDS, parse_seeds
from master.sweep.record import FINISHED, STOPPED, Seed, Study, load_study
from tests.cases import each_case

CONFIG = RunConfig(env="CartPole-v1")


@each_case(
    ("text", "seeds"),
    [
        ("1-5", (1, 2, 3, 4, 5)),
        ("1,3,7-9", (1, 3, 7, 8, 9)),
        ("9,2-3", (9, 2, 3)),
        ("0", (0,)),
        ("4-4", (4,)),
        (" 1, 2 ", (1, 2)),
        (str(2**63 - 1), (2**63 - 1,)),
        ("0-99", tuple(range(100))),
    ],
)
def test_seeds_are_numbers_and_ranges_in_the_order_given(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@each_case(
    ("text", "fix"),
    [
        ("5-1", "write the range from low to high: 1-5"),
        ("", "use whole numbers and ranges, separated by commas, such as 1-5 or 1,3,7-9"),
        ("1,,2", "use whole numbers and ranges"),
        ("-1", "use whole numbers and ranges"),
        ("1.5", "use whole numbers and ranges"),
        ("1-2-3", "use whole numbers and ranges"),
        ("one", "use whole numbers and ranges"),
        ("\u0663", "use whole numbers and ranges"),  # a digit, but not one of ours
        ("1,2,1", "give each seed once; 1 is listed twice"),
        ("0,0", "give each seed once; 0 is listed twice"),
        ("1-3,2", "give each seed once; 2 is listed twice"),
        (str(2**63), f"a seed is at most {2**63 - 1}"),
        ("0-100", f"use at most {MOST_SEEDS} seeds"),
        ("0-99,100", f"use at most {MOST_SEEDS} seeds"),
        ("0-9000000000000000000", f"use at most {MOST_SEEDS} seeds"),
    ],
)
def test_what_names_no_seeds_is_refused_with_the_value_and_the_fix(text: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_seeds(text)
    assert str(caught.value).startswith(f"seeds is {text!r} in the command line: {fix}")


# --- what is stored


def record() -> Study:
    entries = [
        Seed(1, "base-s1", FINISHED, True, 0, "", {"eval_mean": 10.0, "state": "finished"}),
        Seed(2, "base-s2", STOPPED, True, 130, "", {"eval_mean": None, "generation": 4}),
        Seed(3, "base-s3"),
    ]
    return Study("base", CONFIG, entries, target=9.0)


DAMAGE: dict[str, Any] = {
    "no JSON": lambda about: "{",
    "a list": lambda about: "[]",
    "no runs": lambda about: {**about, "runs": []},
    "a run twice": lambda about: {**about, "runs": about["runs"][:1] * 2},
    "a seed that is none": lambda about: {**about, "runs": [{**about["runs"][0], "seed": -1}]},
    "a seed that is true": lambda about: {**about, "runs": [{**about["runs"][0], "seed": True}]},
    "a state that is none": lambda about: {
        **about,
        "runs": [{**about["runs"][0], "state": "dreaming"}],
    },
    "an id that is none": lambda about: {**about, "runs": [{**about["runs"][0], "run": "../up"}]},
    "a summary that is none": lambda about: {
        **about,
        "runs": [{**about["runs"][0], "summary": "fine"}],
    },
    "another format": lambda about: {**about, "format": 0},
    "a missing name": lambda about: {**about, "runs": [{"seed": 1}]},
    "an unknown setting": lambda about: {**about, "settings": {**about["settings"], "sigmoid": 1}},
    "a wrong setting": lambda about: {
        **about,
        "settings": {**about["settings"], "population": 3.5},
    },
    "a start that is none": lambda about: {**about, "warm_start": 5},
    "a deep nest": lambda about: "[" * 100_000,
    "too much": lambda about: json.dumps(about) + " " * 2**24,
}


@each_case("damage", DAMAGE.values())
def test_a_damaged_file_is_refused_in_one_sentence(damage: Any, tmp_path: Path) -> None:
    record().save(tmp_path)
    damaged = damage(json.loads((tmp_path / STUDY_FILE).read_text()))
    (tmp_path / STUDY_FILE).write_text(damaged if isinstance(damaged, str) else json.dumps(damaged))
    with pytest.raises(
        RunFolderError, match=r"seeds\.json (was changed or damaged|cannot be read)"
    ):
        load_study(tmp_path)
