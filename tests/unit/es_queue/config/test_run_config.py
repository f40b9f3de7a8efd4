"""RunConfig and its checks: what is stored comes back the same, what cannot be is refused in one
sentence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from es_queue.config.run_config import STRATEGIES, RunConfig, every_setting, users_of
from es_queue.errors import UsageError
from tests.cases import each_case

NAMES = st.text(st.characters(categories=("L",)), min_size=1, max_size=8).filter(str.isidentifier)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


def users(setting: str) -> str:
    """The strategies that use a setting, as a sentence names them."""
    names = users_of(setting)
    return f"{', '.join(names[:-1])} or {names[-1]}"


def configured(**values: Any) -> RunConfig:
    return RunConfig.of({"env": "X-v0", **values}, "the test")


def finite(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


@st.composite
def fitting_values(draw: st.DrawFn) -> dict[str, Any]:
    """Values that fit together, of every type that a field has."""
    strategy = draw(st.sampled_from(["openai_es", "pgpe", "ars"]))
    population = 2 * draw(st.integers(1, 500_000))
    policy = draw(st.sampled_from(["linear", "mlp"]))
    hidden = st.lists(st.integers(1, 65536), min_size=1, max_size=4)
    return {
        "env": draw(st.text(min_size=1).filter(str.isprintable)),
        "seed": draw(st.integers(-1, 2**63 - 1)),
        "env_arg": draw(st.dictionaries(NAMES, SCALARS, max_size=3)),
        "wrapper": draw(st.lists(st.just("my.module:Wrapper"), max_size=2)),
        "policy": policy,
        **({"hidden": draw(hidden)} if policy == "mlp" else {}),
        "obs_norm": draw(st.booleans()),
        "strategy": strategy,
        "population": population,
        **({"top": draw(st.integers(0, population // 2))} if strategy == "ars" else {}),
        **(
            {"optimizer": draw(st.sampled_from(["auto", *STRATEGIES[strategy].optimizers]))}
            if STRATEGIES[strategy].optimizers
            else {}
        ),
        "sigma": draw(finite(0, 1e300)),
        "weight_decay": draw(finite(0, 1)),
        "step_limit": draw(st.sampled_from(["env", "1600", "adaptive:100,0.5,1.5", "mean:2"])),
        "reward_shift": draw(st.floats(allow_nan=False, allow_infinity=False)),
        "reward_floor": draw(st.sampled_from(["none", "-1", -1, 0.5])),
        "patience": draw(st.sampled_from(["none", "200,0.5"])),
        "target_reward": draw(st.sampled_from(["none", "auto", "300", 300])),
        "max_steps": draw(st.integers(0, 10**30)),
    }


@given(fitting_values())
def test_a_stored_configuration_comes_back_equal(values: dict[str, Any]) -> None:
    config = RunConfig.of(values, "the test")
    again = RunConfig.from_json(config.to_json())
    assert again == config
    # Equality alone would let 1 stand for 1.0 or True; the text would not.
    assert again.to_json() == config.to_json()
    assert hash(again) == hash(config)


@given(st.text() | st.binary())
def test_text_that_is_no_configuration_is_refused_and_nothing_else_raised(
    text: str | bytes,
) -> None:
    with pytest.raises(UsageError):
        RunConfig.from_json(text)


@each_case(
    "text",
    [
        "[" * 100_000,
        "[]",
        "3",
        "null",
        b"\xff\xfe",
        '{"env": "X", "sigma": NaN}',
        '{"seed": ' + "9" * 5000 + "}",
    ],
)
def test_a_broken_or_hostile_configuration_is_refused(text: str | bytes) -> None:
    with pytest.raises(UsageError):
        RunConfig.from_json(text)


PLAIN = st.recursive(
    SCALARS | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@each_case("name", every_setting())
# The only fixture is that of the cases.
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=PLAIN)
def test_any_plain_value_gives_a_configuration_or_one_sentence(name: str, value: Any) -> None:
    try:
        config = RunConfig.of({"env": "X-v0", name: value}, "the test")
    except UsageError as error:
        assert "\n" not in str(error) and len(str(error)) < 500
    else:
        assert RunConfig.from_json(config.to_json()) == config


BAD_VALUES: list[Any] = [
    ("env", "X\x1b[31m"),
    ("seed", -2),
    ("seed", True),
    ("backend", "fast"),
    ("hidden", "64,x"),
    ("hidden", [64, 0]),
    ("hidden", 64),
    ("wrapper", ["no_colon"]),
    ("obs_norm", "true"),
    ("obs_sample", 1.01),
    ("population", 64.5),
    ("population", 1_000_002),
    ("population", 10**5000),
    ("sigma", float("nan")),
    ("sigma", "0.1"),
    ("shaping", "rank"),
    ("step_limit", 0),
    ("reward_floor", "nan"),
    ("patience", "200"),
    ("target_reward", "high"),
    ("max_seconds", -1),
    ("env_arg", 3),
    ("env_arg", ["=3"]),
    ("env_arg", {"size": [3]}),
    ("env_arg", {"size": 2**64}),
    ("env_arg", ["size=1", "size=2"]),
]


#: The strategy or policy that has a setting.
OWNERS = {"hidden": {"policy": "mlp"}, "cells": {"strategy": "map_elites"}}


@each_case(("name", "value"), BAD_VALUES)
def test_a_value_that_cannot_be_is_refused_in_one_sentence_that_begins_with_its_field(
    name: str, value: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        configured(**{**OWNERS.get(name, {}), name: value})
    sentence = str(caught.value)
    assert sentence.startswith((f"{name} is ", f"{name} has ", f"{name} size is "))
    assert ": use " in sentence or ": give " in sentence
    assert "\n" not in sentence and len(sentence) < 250


BAD_PAIRS: list[tuple[dict[str, Any], str]] = [
    (
        {"population": 7, "strategy": "pgpe"},
        "population is 7, but pgpe samples mirrored pairs: use an even number",
    ),
    (
        {"population_max": 62, "min_steps": 9},
        "population_max is 62, but that is below the population of 64: use 64 or more, or auto",
    ),
    (
        {"population_max": 128},
        "population_max is 128, but only min_steps lets the population grow: set min_steps as well",
    ),
    (
        {"strategy": "ars", "top": 33},
        "top is 33, but a population of 64 has 32 pairs: use at most 32",
    ),
    (
        {"strategy": "ars", "shaping": "sign"},
        (
            "shaping is sign, but the strategy ars does not use it: leave it out, or use the "
            "strategy openai_es or pgpe"
        ),
    ),
    (
        {"sigma_learning_rate": -0.5},
        "sigma_learning_rate is -0.5 in the test: use a finite number of 0 or more, or auto",
    ),
    (
        {"hidden": [32]},
        (
            "hidden is 32, but the policy linear does not use it: leave it out, or use the "
            "policy gru, lstm, mlp or rnn"
        ),
    ),
    (
        {"max_speed": 0.1, "optimizer": "adam"},
        (
            "max_speed is 0.1, but the optimizer adam does not use it: leave it out, or use "
            "the optimizer clipup"
        ),
    ),
    (
        {"optimizer": "clipup", "strategy": "openai_es"},
        "optimizer is clipup, but openai_es does not take it: use auto, adam or sgd",
    ),
    (
        {"eval_every": 0, "target_reward": "300"},
        (
            "target_reward is 300, but eval_every is 0 and only evaluations are compared with it: "
            "set eval_every to 1 or more, or target_reward to none"
        ),
    ),
    (
        {"eval_every": 10, "target_every": 7},
        (
            "target_every is 7, but only every 10th generation has an evaluation to compare: "
            "use a multiple of eval_every"
        ),
    ),
    (
        {"env": ""},
        ("env is not given: name the environment to train, such as BipedalWalker-v3"),
    ),
    (
        {"audit": 0.1, "allow_nondeterministic": True},
        (
            "audit is 0.1, but allow_nondeterministic lets two correct results of a slot differ: "
            "leave one of the two settings out"
        ),
    ),
]


@each_case(("values", "sentence"), BAD_PAIRS)
def test_settings_that_do_not_fit_together_are_refused_with_the_fix(
    values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        configured(**values)
    assert str(caught.value) == sentence


@each_case(
    ("name", "value", "plain"),
    [
        ("seed", np.int64(3), 3),
        ("sigma", np.float32(0.5), 0.5),
        ("obs_norm", np.bool_(False), False),
        ("obs_norm", 0, False),
        ("population", 16.0, 16),
        ("hidden", np.array([3, 4]), (3, 4)),
        ("env_arg", {"size": np.int32(3)}, (("size", 3),)),
    ],
)
def test_a_value_that_equals_a_valid_one_is_taken(name: str, value: Any, plain: Any) -> None:
    taken = getattr(RunConfig(env="X-v0", policy="mlp", **{name: value}), name)
    assert taken == plain and type(taken) is type(plain)
    assert type(taken[-1]) is type(plain[-1]) if isinstance(plain, tuple) else True


def mine() -> None:
    """A user's own."""


def test_a_function_is_refused_with_the_text_that_names_it() -> None:
    with pytest.raises(UsageError, match=r": name it as text, '.*test_run_config:mine'$"):
        RunConfig(objective=mine)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        UsageError,
        match=r"^the test has the unknown option 'learning_rat'; did you mean learning_rate",
    ):
        configured(**{"learning-rat": 1})
