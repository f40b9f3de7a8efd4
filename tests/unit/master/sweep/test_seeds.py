"""Seeds as people write them, a study's id, a seed's command, and what is stored of it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from es_queue.config.resolution import resolve
from es_queue.config.run_config import RunConfig
from es_queue.errors import RunFolderError, UsageError
from es_queue.util.run_folder import STUDY_FILE
from master.cli.options import parse_command_line, read_settings
from master.run.manifest import repro_command
from master.sweep.record import (
    FINISHED,
    STOPPED,
    SeedRun,
    SweepRecord,
    load_record,
)
from master.sweep.seeds import MOST_SEEDS, parse_seeds
from tests.cases import each_case

#: A busy machine may be slow at any moment.
ANY_TIME = settings(deadline=None)
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


# --- the study's id


# --- the command of a seed


SETTINGS: list[dict[str, Any]] = [
    {},
    {
        "env_arg": [
            "a=null",
            "b=1.5",
            "c=true",
            'd="7"',
            "e=x y",
            'f="\\u00e9\\ud83d\\ude00\\u007f\\n\\""',
            "g=18446744073709551615",
        ]
    },
    {"wrapper": ["a.b:C", "d:E"], "policy": "mlp", "hidden": "3,5", "activation": "relu"},
    {
        "learning_rate": 1e-05,
        "sigma": 0.1 + 0.2,
        "wall_limit": 1e16,
        "obs_norm": False,
        "max_steps": 10**12,
    },
    {"target_reward": "-1.5", "step_limit": "adaptive:30,0.5,1.5,120", "reward_floor": "-1e3"},
    {"env": 'my_module:Ünïcode "quoted" \\ 😀-v0'},
]


@each_case("values", SETTINGS)
def test_the_command_of_a_seed_gives_the_very_values(
    values: dict[str, Any], tmp_path: Path
) -> None:
    values = {"env": "CartPole-v1", "seed": 3, **values}
    (tmp_path / "given.toml").write_text(
        "".join(
            f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items()
        )
    )
    config = resolve(read_settings(tmp_path / "given.toml"))
    read = resolve(parse_command_line(shlex.split(repro_command(config))[1:])[0])
    assert read == config and repr(read) == repr(config)


# --- what is stored


def record(**more: Any) -> SweepRecord:
    entries = [
        SeedRun(1, "base-s1", FINISHED, True, 0, "", {"eval_mean": 10.0, "state": "finished"}),
        SeedRun(2, "base-s2", STOPPED, True, 130, "", {"eval_mean": None, "generation": 4}),
        SeedRun(3, "base-s3"),
    ]
    return replace(SweepRecord("base", CONFIG, entries, target=9.0), **more)


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = record(changes={"max_steps": 7}, warm_start="/elsewhere/best.npz", state="stopped")
    written.save(tmp_path)
    read = load_record(tmp_path)
    assert replace(read, state=written.state) == written
    about = json.loads((tmp_path / STUDY_FILE).read_text())
    assert (about["runs_counted"], about["runs_total"], about["mean"], about["reached_target"]) == (
        1,
        3,
        10.0,
        1,
    )
    assert [one["seed"] for one in about["runs"]] == [1, 2, 3]


def test_only_a_finished_run_has_an_evaluation() -> None:
    entry = SeedRun(1, "base-s1", STOPPED, True, 130, "", {"eval_mean": 10.0})
    assert entry.evaluation is None
    assert replace(entry, state=FINISHED).evaluation == 10.0


def test_a_run_reaches_the_target_by_its_final_evaluation_alone() -> None:
    study = record(target=10.0)
    assert study.count_reached() == 1
    assert replace(study, target=10.01).count_reached() == 0
    study = replace(study, target=None)
    assert study.to_dict()["reached_target"] is None


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
        load_record(tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"seeds\.json cannot be read: No such file"):
        load_record(tmp_path)
