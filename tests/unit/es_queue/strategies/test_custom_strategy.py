"""A strategy of the user's own: the documented example, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.config.settings import setting
from es_queue.errors import UsageError
from es_queue.strategies import STRATEGIES, Strategy, make_strategy
from es_queue.strategies.random_search import RandomSearch
from es_queue.strategies.snes import SNES
from es_queue.user_code import ALLOW
from master.run.manifest import repro_command
from master.run.setup import prepare_run
from tests.cases import each_case
from tests.ring import quick_config, run_ring
from tests.tiny import QUAD

TEXT = (Path(__file__).parents[4] / "docs" / "own_strategy.md").read_text()
EXAMPLE, OBJECTIVE, *_ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The documented strategy as an importable module; its name."""
    (tmp_path / "cross_entropy.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ALLOW, "tests,cross_entropy")
    return "cross_entropy:CrossEntropy"


def test_the_documented_strategy_has_at_most_sixty_lines() -> None:
    assert len(EXAMPLE.splitlines()) <= 60
    assert "--strategy cross_entropy:CrossEntropy" in TEXT


def test_the_documented_strategy_learns_and_gives_the_same_bits_for_any_workers_and_across_a_resume(
    example: str,
) -> None:
    config = quick_config(
        env=QUAD,
        strategy=example,
        population=24,
        obs_norm=False,
        eval_every=5,
        generations=20,
        target_reward="none",
        final_episodes=4,
    )
    expected, sink = run_ring(config)
    evaluations = [
        record["eval_mean"] for record in sink.records if record["eval_mean"] is not None
    ]
    assert evaluations[0] == -6.25 and evaluations[-1] > -0.5
    assert run_ring(replace(config, block=1), 3)[0].digest == expected.digest
    half, _ = run_ring(replace(config, generations=7))
    rest, _ = run_ring(config, 2, replace(half.state, stage="training", reason=""))
    assert rest.digest == expected.digest


def test_the_documented_objective_is_the_code_that_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_functions.py").write_text(OBJECTIVE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ALLOW, "my_functions")
    settings = {
        "objective": "my_functions:sphere",
        "parameters": 10,
        "strategy": "snes",
        "target_reward": "-0.05",
        "seed": 3,
        "noise_size": 2**14,
        "generations": 400,
    }
    ended, _ = run_ring(RunConfig.of(settings, "the page"), 1)
    assert ended.state.reason == "target"


# --- what is refused


class Half(Strategy):
    """It does not say how to improve."""


class Triple(SNES):
    """More individuals a slot than an answer holds."""

    per_slot = 3


class Loner(SNES):
    """It has a setting of its own."""

    class Settings(SNES.Settings):
        charm = setting(0.5, "how charming it is", low=0.0, high=1.0)


class Crowded(SNES):
    """Its setting has the name of another."""

    class Settings(SNES.Settings):
        population = setting(3, "what every run has")


class Forgetful(RandomSearch):
    """It forgets the settings of its evaluations."""

    class Settings(Strategy.Settings):
        pass


@each_case(
    ("path", "sentence"),
    [
        (
            "tests.nowhere:Strategy",
            "tests.nowhere:Strategy cannot be imported: ModuleNotFoundError",
        ),
        ("tests.tiny:Nothing", "tests.tiny:Nothing cannot be imported: AttributeError"),
        ("tests.tiny:Scipt", "has no attribute 'Scipt'; did you mean Script?"),
        (
            "tests.tiny:Quad",
            (
                "tests.tiny:Quad is not a class that extends es_queue.strategies.Strategy and "
                "defines tell"
            ),
        ),
        ("tests.tiny:eventually", "is not a class that extends"),
        ("tests.unit.es_queue.strategies.test_custom_strategy:Half", "and defines tell"),
        (
            "tests.unit.es_queue.strategies.test_custom_strategy:Triple",
            "has 3 individuals per slot: use one, or two for pairs",
        ),
    ],
)
def test_what_is_no_strategy_is_refused_in_one_sentence(path: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        make_strategy(RunConfig(strategy=path), 5)
    assert "\n" not in str(caught.value)


@each_case("text", ["cma", "module", "a b:C", "module:", ":Class", "module:Class:more", "../x:C"])
def test_what_does_not_name_a_class_is_refused(text: str) -> None:
    with pytest.raises(
        UsageError,
        match=f"use auto, {', '.join(STRATEGIES)} or module:Class",
    ):
        RunConfig.of({"env": "X-v0", "strategy": text}, "the test")


LONER = "tests.unit.es_queue.strategies.test_custom_strategy:Loner"


def test_its_own_setting_is_stored_checked_and_used_and_it_decides_about_pairs() -> None:
    own: dict[str, Any] = {"env": "X-v0", "strategy": LONER}
    config = RunConfig.of({**own, "population": 7, "charm": 1, "linear_share": 0.5}, "the test")
    assert RunConfig.from_json(config.to_json()) == config
    strategy = make_strategy(config, 5)
    assert type(strategy).__name__ == "Loner" and strategy.config.charm == 1.0
    assert make_strategy(RunConfig.of(own, "the test"), 5).config.charm == 0.5
    with pytest.raises(UsageError, match=r"env_seeds is pair, but .* samples no pairs"):
        make_strategy(RunConfig.of({**own, "env_seeds": "pair"}, "the test"), 5)


@each_case(
    ("values", "sentence"),
    [
        ({"charm": 2}, "charm is 2 in the settings: use a finite number from 0 to 1"),
        ({"charn": 1}, f"the strategy {LONER} has no setting charn; did you mean charm?"),
        ({"max_speed": 3.0}, f"the strategy {LONER} has no setting max_speed: leave it out"),
        (
            {"strategy": LONER.replace("Loner", "Crowded")},
            "calls a setting population, which every run has: give it another name",
        ),
        (
            {"strategy": LONER.replace("Loner", "Forgetful")},
            "let its class Settings extend es_queue.strategies.base.ReevaluationSettings",
        ),
    ],
)
def test_settings_that_its_class_does_not_declare_are_refused(
    values: dict[str, Any], sentence: str
) -> None:
    config = RunConfig.of({"env": "X-v0", "strategy": LONER, **values}, "the test")
    with pytest.raises(UsageError, match=re.escape(sentence)):
        make_strategy(config, 5)


def test_a_runs_command_names_its_own_settings() -> None:
    values = {"env": QUAD, "strategy": LONER, "charm": 0.7, "seed": 1, "noise_size": 2**14}
    config = prepare_run(RunConfig.of(values, "the test")).config
    assert config.charm == 0.7 and config.linear_share == 0.0
    command = repro_command(config)
    assert "--charm 0.7" in command and "linear-share" not in command
