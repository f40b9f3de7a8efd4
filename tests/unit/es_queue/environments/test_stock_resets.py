"""MuJoCo's environments, of which one object may play many episodes."""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import ActionSpec, Environment, EnvironmentRequest
from es_queue.environments.registry import BODIES, find_environment
from es_queue.environments.stock import StockEnvironment, make_environment
from es_queue.errors import EnvironmentFailure
from tests.cases import each_case

with_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None, reason="MuJoCo is not installed"
)


def chance(action: ActionSpec, size: float, seed: int) -> Callable[[], Any]:
    """Random actions: of a box about ``size``, within its bounds."""
    generator = np.random.default_rng(seed)
    if action.kind == "discrete":
        return lambda: int(generator.integers(action.sizes[0]))
    return lambda: np.clip(generator.normal(0, size, action.shape), action.low, action.high).astype(
        np.float32
    )


def trace(
    world: Environment, seed: int, steps: int, choose: Callable[[], Any]
) -> list[tuple[bytes, float, bool]]:
    seen = [(world.reset(seed).tobytes(), 0.0, False)]
    while len(seen) <= steps and not seen[-1][2]:
        observation, reward, over = world.step(choose())
        seen.append((observation.tobytes(), reward, over))
    return seen


def is_clean(request: EnvironmentRequest, seeds: range, steps: int) -> bool:
    """Whether each episode is the same in a used object and in a fresh one."""
    spec, used = describe(request), open_environment(request)
    assert isinstance(used, StockEnvironment) and used.resets_cleanly
    for seed in seeds:
        trace(used, 1000 + seed, 2 * steps, chance(spec.action, 2.0, seed))
        trace(used, 2000 + seed, steps // 2, chance(spec.action, 0.3, seed))
        fresh = open_environment(request)
        played = [
            trace(world, seed, steps, chance(spec.action, 0.5 + seed % 3, seed))
            for world in (used, fresh)
        ]
        fresh.close()
        if played[0] != played[1]:
            return False
    used.close()
    return True


@with_mujoco
@each_case("environment", BODIES)
def test_an_episode_of_mujoco_does_not_depend_on_those_before_it(environment: str) -> None:
    assert is_clean(EnvironmentRequest(f"{environment}-v5"), range(3), 120)


@with_mujoco
def test_mujoco_writes_no_log_into_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    world = open_environment(EnvironmentRequest("HalfCheetah-v5"))
    world.reset(0)
    with pytest.raises(EnvironmentFailure, match="the reward of a step is nan"):
        world.step(np.full(6, np.nan, np.float32))  # MuJoCo warns of it
    assert list(tmp_path.iterdir()) == [] and capfd.readouterr().err == ""
    assert importlib.import_module("mujoco").get_mju_user_warning() is operator.not_


@with_mujoco
def test_a_film_of_mujoco_follows_the_robot() -> None:
    request = EnvironmentRequest("HalfCheetah-v5", backend="stock")
    environment: Any = make_environment(find_environment(request), request, "rgb_array").unwrapped
    shown = environment.model.camera(environment.mujoco_renderer.camera_id)
    assert shown.name == "track"
    environment.close()
