"""Strategies of the user's own: the documented example, what is refused, what fails in a run, and
what the shared suite finds.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.config.settings import setting
from es_queue.errors import StrategyFailure, UsageError
from es_queue.strategies import Strategy, make_strategy
from es_queue.strategies.ars import ARS
from es_queue.strategies.random_search import RandomSearch
from es_queue.strategies.snes import SNES
from es_queue.testing import check_strategy
from es_queue.user_code import ALLOW
from tests.cases import each_case
from tests.memory import quick_config, run_ring
from tests.tiny import QUAD

# --- a strategy of the user's own: the documented example, and what is refused


HERE = "tests.unit.es_queue.strategies.test_custom_strategy"
TEXT = (Path(__file__).parents[4] / "docs" / "own_strategy.md").read_text()
EXAMPLE, OBJECTIVE, *_ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The documented strategy as an importable module; its name."""
    (tmp_path / "cross_entropy.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ALLOW, "tests,cross_entropy")
    return "cross_entropy:CrossEntropy"


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
        ("tests.tiny:Scipt", "has no attribute 'Scipt'; did you mean Script?"),
        (
            "tests.tiny:Quad",
            (
                "tests.tiny:Quad is not a class that extends es_queue.strategies.Strategy and "
                "defines tell"
            ),
        ),
        (
            f"{HERE}:Triple",
            "has 3 individuals per slot: use one, or two for pairs",
        ),
    ],
)
def test_what_is_no_strategy_is_refused_in_one_sentence(path: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        make_strategy(RunConfig(strategy=path), 5)
    assert "\n" not in str(caught.value)


LONER = f"{HERE}:Loner"


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


# --- a strategy of the user's own that fails is named at once, in one sentence


class WrongShape(SNES):
    """One parameter too many."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        return np.zeros((len(noise), 1, self.size + 1), np.float32)


class RaisesLater(SNES):
    """Right when it is tried, and raises in the run."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        if noise.any():
            raise KeyError("lost")
        return super().ask(published, sigma, noise)


class RaisesInCentre(SNES):
    """It has no centre after the first update."""

    def centre_of(self, published: Any, slot: int, draw: Any) -> Any:
        if published.any():
            raise KeyError("centre")
        return super().centre_of(published, slot, draw)


class NoImprovement(SNES):
    """It raises on the master."""

    def tell(self, state: Any, batch: Any) -> Any:
        return {}["sigma"]


class NotANumber(SNES):
    """Its parameters are no numbers."""

    def tell(self, state: Any, batch: Any) -> Any:
        after, info = super().tell(state, batch)
        return {**after, "parameters": after["parameters"] * np.nan}, info


def config(kind: type, **values: Any) -> Any:
    return quick_config(
        env=QUAD,
        strategy=f"{HERE}:{kind.__name__}",
        population=8,
        obs_norm=False,
        generations=3,
        target_reward="none",
        eval_every=0,
        final_episodes=0,
        **values,
    )


@each_case(
    ("kind", "sentence"),
    [
        (WrongShape, r"made individuals of shape \(1, 1, \d+\) and type float32: its individuals"),
        (RaisesLater, r"failed in ask: KeyError: 'lost' \(test_custom_strategy.py"),
        (RaisesInCentre, r"failed in centre_of: KeyError: 'centre' \(test_custom_strategy.py"),
        (NoImprovement, r"failed in tell: KeyError: 'sigma' \(test_custom_strategy.py, line"),
    ],
)
def test_a_strategy_that_fails_ends_the_run_with_one_sentence_that_names_it(
    kind: type, sentence: str
) -> None:
    with pytest.raises(StrategyFailure) as caught:
        run_ring(config(kind))
    text = str(caught.value)
    assert text.startswith(f"the strategy {HERE}:{kind.__name__} ") and "\n" not in text
    assert re.search(sentence, text)
    assert "seed" not in text


def test_a_new_state_that_is_not_finite_is_said_and_counted_in_each_generation() -> None:
    ended, sink = run_ring(config(NotANumber))
    assert [record["no_step"] for record in sink.records if "no_step" in record] == [1, 1, 1]
    said = [text for text in sink.notes if "no step" in text]
    assert len(said) == 3
    assert said[0] == (
        f"generation 0: no step, because the new state of the strategy {HERE}:NotANumber was not "
        "finite (no_step is 1)"
    )
    assert all("not_finite" not in record for record in sink.records)
    assert ended.state.generation == 3


# --- the shared suite finds what a strategy does wrong, and names it


class Shares(ARS):
    """Its state is the caller's array."""

    def start(self, parameters: Any) -> Any:
        return {"parameters": parameters}


class ByBlock(ARS):
    """An individual depends on its neighbours."""

    def ask(self, published: Any, sigma: float, noise: Any) -> Any:
        return super().ask(published, sigma, noise) + np.float32(len(noise))


class Changes(ARS):
    """It learns in place."""

    def tell(self, state: Any, batch: Any) -> Any:
        after, info = super().tell(state, batch)
        state["parameters"] = after["parameters"]
        return after, info


class Counts(ARS):
    """It remembers what it has done."""

    calls: ClassVar[list[int]] = []

    def tell(self, state: Any, batch: Any) -> Any:
        self.calls.append(1)
        after, info = super().tell(state, batch)
        return {"parameters": after["parameters"] + np.float32(len(self.calls))}, info


class FailureIsBest(ARS):
    """A failed individual counts as it is."""

    def tell(self, state: Any, batch: Any) -> Any:
        sign = 1.0 if np.isposinf(batch.fitness).any() else -1.0
        after, info = super().tell(state, batch)
        return {"parameters": after["parameters"] * np.float32(sign)}, info


@each_case(
    ("kind", "sentence"),
    [
        (Shares, "start must copy the first parameters"),
        (ByBlock, "a slot must have the same bits in any block"),
        (Changes, "tell must not change the state"),
        (Counts, "tell must depend on its arguments only"),
        (FailureIsBest, "all failures must count the same"),
    ],
)
def test_a_broken_strategy_is_found_and_its_mistake_named(kind: type[ARS], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_strategy(kind)
