"""Which back end plays what, and the sentence for one that cannot."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from es_queue.environments.factory import ResolvedEnvironment, resolve
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import UsageError
from tests.cases import each_case
from tests.memory import quick_config
from tests.parts import TABLE
from workers.heartbeat import EpisodeControl
from workers.player import Refusal, join

HAS_ENVPOOL = find_spec("envpool") is not None
WALKER = EnvironmentRequest("BipedalWalker-v3")
WRAPPED: dict[str, Any] = {"wrappers": ("gymnasium.wrappers:FlattenObservation",)}


def chosen(environment: str, backend: str = "auto", **more: Any) -> str:
    return ResolvedEnvironment(EnvironmentRequest(environment, backend=backend, **more)).backend


def test_auto_is_envpool_where_it_is_installed_and_proven_equal() -> None:
    best = "envpool" if HAS_ENVPOOL else "lean"
    assert [chosen(one) for one in ("BipedalWalker-v3", "BipedalWalkerHardcore-v3")] == [best] * 2
    assert [chosen(one) for one in ("BipedalWalker-v2", "CartPole-v1")] == ["lean", "lean"]
    assert chosen("LunarLander-v3") == chosen("BipedalWalker-v3", **WRAPPED) == "stock"
    assert chosen("BipedalWalker-v3", "any") == "any", "each host decides"


@each_case(
    ("environment", "backend", "more", "sentence"),
    [
        ("BipedalWalker-v2", "any", {}, "backend is any, but only BipedalWalker-v3 .* use auto"),
        ("CartPole-v1", "lean", WRAPPED, "the lean back end does not play CartPole-v1 with these"),
        ("Acrobot-v1", "lean", {}, "the lean back end does not play"),
        ("CartPole-v1", "fast", {}, "there is no back end 'fast'"),
    ],
)
def test_a_back_end_is_refused_for_what_it_does_not_play(
    environment: str, backend: str, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        chosen(environment, backend, **more)


@pytest.mark.skipif(HAS_ENVPOOL, reason="EnvPool is installed here")
def test_a_worker_without_envpool_refuses_a_run_on_it() -> None:
    config = quick_config(env="BipedalWalker-v3", backend="envpool", noise_size=TABLE.size)
    with pytest.raises(Refusal, match=r"runs on EnvPool, which is not installed here: pip install"):
        join(config, EpisodeControl(), table=TABLE)
    assert join(replace(config, backend="any"), EpisodeControl(), table=TABLE).backend == "lean"


def test_what_was_trained_on_envpool_is_shown_everywhere() -> None:
    for backend in ("envpool", "any"):
        shown = resolve(replace(WALKER, backend=backend)).portable
        assert shown == replace(WALKER, backend="lean")
