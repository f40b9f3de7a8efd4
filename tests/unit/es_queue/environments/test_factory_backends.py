"""Which back end plays what: decided once, refused in one clear sentence. Nothing here needs
EnvPool.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from es_queue.environments import envpool, factory
from es_queue.environments.factory import (
    ResolvedEnvironment,
    portable_request,
    resolve_backend,
)
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import UsageError
from es_queue.numerics.noise_table import NoiseTable
from tests.cases import each_case
from tests.ring import quick_config
from workers.episode import EpisodeControl
from workers.join import Refusal, join

PROVEN = ("BipedalWalker-v3", "BipedalWalkerHardcore-v3")
V2 = ("BipedalWalker-v2", "BipedalWalkerHardcore-v2")
OWN_IDS = ("BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CartPole-v1")


class Library:
    """What EnvPool tells of itself."""

    @staticmethod
    def list_all_envs() -> list[str]:
        return list(OWN_IDS)


@pytest.fixture(params=[True, False])
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether EnvPool seems to be installed."""
    has = bool(request.param)
    monkeypatch.setattr(factory, "is_installed", lambda: has)
    if has:
        monkeypatch.setattr(envpool, "load_envpool", lambda environment: Library)
    else:
        monkeypatch.setattr(envpool.importlib.util, "find_spec", lambda name: None)
    return has


def chosen(environment: str, backend: str, **more: Any) -> str:
    request = EnvironmentRequest(environment, backend=backend, **more)
    return ResolvedEnvironment(request).backend


def test_auto_is_envpool_where_it_is_installed_and_proven_equal(here: bool) -> None:
    assert [chosen(one, "auto") for one in PROVEN] == ["envpool" if here else "lean"] * 2
    assert [chosen(one, "auto") for one in V2] == ["lean", "lean"]
    assert [chosen(one, "auto") for one in ("CartPole-v1", "LunarLander-v3")] == ["lean", "stock"]
    assert chosen("BipedalWalker-v3", "auto", arguments=(("hardcore", True),)) == (
        "envpool" if here else "lean"
    )
    assert (
        chosen("BipedalWalker-v3", "auto", wrappers=("gymnasium.wrappers:FlattenObservation",))
        == "stock"
    )


def test_any_is_kept_in_the_config_and_decided_by_each_host(here: bool) -> None:
    assert [chosen(one, "any") for one in PROVEN] == ["any", "any"]
    assert resolve_backend("any") == ("envpool" if here else "lean")
    assert resolve_backend("lean") == "lean"


@each_case("environment", [*V2, "CartPole-v1"])
def test_any_is_refused_where_equality_is_not_proven(environment: str) -> None:
    with pytest.raises(
        UsageError,
        match=(
            rf"backend is any, but only BipedalWalker-v3 .* not {environment} with these "
            rf"settings: use auto, or name one"
        ),
    ):
        chosen(environment, "any")


def test_envpool_is_refused_for_what_it_does_not_play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool, "load_envpool", lambda environment: Library)
    assert [chosen(one, "envpool") for one in (*OWN_IDS, "BipedalWalker-v2")] == ["envpool"] * 4
    with pytest.raises(UsageError, match="EnvPool has only the lidar of version 3"):
        chosen("BipedalWalkerHardcore-v2", "envpool")
    wrapped: dict[str, Any] = {"wrappers": ("gymnasium.wrappers:FlattenObservation",)}
    for environment, more in (
        ("Pendulum-v1", {}),
        ("CartPole-v1", wrapped),
        ("BipedalWalker-v3", wrapped),
        ("CartPole-v1", {"arguments": (("sutton_barto_reward", True),)}),
    ):
        with pytest.raises(
            UsageError,
            match=rf"the envpool back end does not play {environment} with these settings",
        ):
            chosen(environment, "envpool", **more)


def test_a_worker_without_envpool_refuses_a_run_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool.importlib.util, "find_spec", lambda name: None)
    table = NoiseTable.in_memory(2**14)
    with pytest.raises(Refusal) as caught:
        join(quick_config(env="BipedalWalker-v3", backend="envpool"), EpisodeControl(), table=table)
    assert str(caught.value) == (
        "BipedalWalker-v3 runs on EnvPool, which is not installed here: pip install "
        "'es-queue[envpool]'"
    )
    assert (
        join(
            quick_config(env="BipedalWalker-v3", backend="any"), EpisodeControl(), table=table
        ).backend
        == "lean"
    )


def test_what_was_trained_on_envpool_is_shown_everywhere(here: bool) -> None:
    trained = EnvironmentRequest("BipedalWalker-v3", backend="envpool")
    assert (
        portable_request(trained)
        == portable_request(replace(trained, backend="any"))
        == replace(trained, backend="lean")
    )
    for other in (
        replace(trained, backend="stock"),
        replace(trained, id="BipedalWalker-v2"),
        replace(trained, id="CartPole-v1"),
    ):
        assert portable_request(other) == other
