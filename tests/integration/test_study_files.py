"""What --resume shows of a study that has ended, and what it says of a damaged seeds.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from es_queue.run_folder import STUDY_FILE
from master.cli.main import main
from master.cli.options import MOST_SEEDS, parse_command_line
from tests.cases import each_case


def finished(seed: int, mean: float | None) -> dict[str, Any]:
    summary = {"state": "finished", "env_steps": 5000, "eval_std": 1.0, "eval_min": 5.0}
    ended = {"state": "finished", "begun": True, "code": 0, "why": ""}
    return {"seed": seed, **ended, "summary": {**summary, "eval_mean": mean}}


def study(*means: float | None) -> dict[str, Any]:
    config = RunConfig(env="CartPole-v1", strategy="snes", policy="linear")
    settings = {name: value for name, value in config.to_dict().items() if name != "seed"}
    return {
        "format": 1,
        "run": "base",
        "settings": settings,
        "changes": {},
        "warm_start": None,
        "runs": [finished(10**k, mean) for k, mean in enumerate(means)],
    }


@pytest.fixture
def resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Writes a study, and returns the exit code and the output of its --resume."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path / "noise"))
    folder = tmp_path / "runs/base"
    folder.mkdir(parents=True)
    folder.chmod(0o700)

    def run(about: Any, *words: str) -> tuple[int, str, str]:
        text = about if isinstance(about, str) else json.dumps(about)
        (folder / STUDY_FILE).write_text(text)
        code = main(["--resume", "base", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_end_lists_every_seed_and_the_figures_over_all_with_intervals(resume: Any) -> None:
    code, out, err = resume(study(10.0, 4.0, None, 6.0))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "study base finished: 4 of 4 runs finished",
        "  seed 1     10.0 ± 1.0, min 5.00, after 5,000 steps",
        "  seed 10    4.00 ± 1.00, min 5.00, after 5,000 steps",
        "  seed 100   finished after 5,000 steps without a final evaluation",
        "  seed 1000  6.00 ± 1.00, min 5.00, after 5,000 steps",
        "  final evaluations of 3 of 4 runs: the others are missing, not counted as 0",
        "  IQM     6.33, 95 % interval 4.00 to 10.0",
        "  mean    6.67, 95 % interval 4.00 to 10.0",
        "  median  6.00",
        "  worst   4.00",
        "  target  475.0 reached by 0 of 4 runs",
    ]


def test_the_end_names_each_digest_and_the_command_that_plays_the_best(resume: Any) -> None:
    about = study(10.0, 40.0)
    for number, run in enumerate(about["runs"]):
        run["summary"] |= {"digest": 4 * f"{number}abcdef0", "best_checkpoint": f"s{number}.npz"}
    _, out, _ = resume(about)
    assert "digest 0abcdef00abcdef00abcdef00abcdef0" in out and "digest 1abcdef0" in out
    assert out.rstrip().endswith("es-play s1.npz")


def test_json_has_the_figures_as_one_event(resume: Any) -> None:
    code, out, _ = resume(study(10.0, 4.0, 6.0), "--json")
    (event,) = map(json.loads, out.splitlines())
    assert code == 0 and event["event"] == "study" and event["runs_counted"] == 3
    assert event["mean_interval"] == [4.0, 10.0] and event["interval_level"] == 0.95
    assert [one["eval_mean"] for one in event["runs"]] == [10.0, 4.0, 6.0]


def changed(name: str, value: Any) -> Any:
    """The study with a field of its first run changed."""

    def damage(about: dict[str, Any]) -> dict[str, Any]:
        return {**about, "runs": [{**about["runs"][0], name: value}]}

    return damage


DAMAGE: dict[str, Any] = {
    "no JSON": lambda about: "{",
    "a run twice": lambda about: {**about, "runs": about["runs"][:1] * 2},
    "a state that is none": changed("state", "dreaming"),
    "an id that is none": lambda about: {**about, "run": "../up"},
    "another format": lambda about: {**about, "format": 0},
    "an unknown setting": lambda about: {**about, "settings": {**about["settings"], "sigmoid": 1}},
    "too much": lambda about: json.dumps(about) + " " * 2**24,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_study_is_refused_in_one_sentence(damage: Any, resume: Any) -> None:
    code, out, err = resume(damage(study(10.0, 4.0)))
    assert (code, out) == (6, "") and err.count("\n") == 1, (out, err)
    assert "seeds.json was changed or damaged" in err or "seeds.json cannot be read" in err


# --- the flag


@each_case(
    ("text", "seeds"),
    [
        ("1-5", (1, 2, 3, 4, 5)),
        ("1,3,7-9", (1, 3, 7, 8, 9)),
        ("9,2-3", (9, 2, 3)),
        (" 1, 2 ", (1, 2)),
        (str(2**63 - 1), (2**63 - 1,)),
        ("0-99", tuple(range(100))),
    ],
)
def test_seeds_are_numbers_and_ranges_in_the_order_given(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_command_line(["--env", "CartPole-v1", "--seeds", text])[1].seeds == seeds


@each_case(
    ("text", "fix"),
    [
        ("5-1", "write the range from low to high: 1-5"),
        ("1,,2", "use whole numbers and ranges, separated by commas, such as 1-5 or 1,3,7-9"),
        ("1-3,2", "give each seed once; 2 is listed twice"),
        (str(2**63), f"a seed is at most {2**63 - 1}"),
        ("0-9000000000000000000", f"use at most {MOST_SEEDS} seeds"),
    ],
)
def test_other_seeds_are_refused_with_the_value_and_the_fix(text: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_command_line(["--env", "CartPole-v1", "--seeds", text])
    assert str(caught.value).startswith(f"--seeds is {text!r}: {fix}")
