"""Old ids of MuJoCo's environments: the current one is played, and who asks for the old one hears
of it.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.registry import BODIES, current_id
from es_queue.errors import EnvironmentFailure
from tests.cases import each_case

with_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None, reason="MuJoCo is not installed"
)


@each_case("body", BODIES)
@each_case("version", [1, 2, 3, 4])
def test_an_old_version_is_answered_with_the_current_one_and_a_sentence(
    body: str, version: int
) -> None:
    name, sentence = current_id(f"{body}-v{version}")
    assert name == f"{body}-v5"
    assert (
        sentence.startswith(
            f"{body}-v{version} is an old version: this run uses the current one, {body}-v5"
        )
        and "\n" not in sentence
    )
    assert (f"--env gymnasium:{body}-v4 plays the old version" in sentence) == (version == 4)


@each_case("name", ["Thrower-v2", "Striker-v2", "Thrower", "Striker-v0"])
def test_what_is_gone_is_refused_with_the_nearest_task(name: str) -> None:
    with pytest.raises(
        EnvironmentFailure, match=f"^{name} cannot be played: .*; the nearest task is Pusher-v5$"
    ):
        describe(EnvironmentRequest(name))


@with_mujoco
def test_each_body_is_played_under_each_of_its_versions() -> None:
    for body in BODIES:
        for version in range(1, 6):
            request = EnvironmentRequest(f"{body}-v{version}")
            spec, world = describe(request), open_environment(request)
            assert spec.id == f"{body}-v5"
            first = world.reset(version)
            after, reward, _ = world.step(np.full(spec.action.shape, 0.1, np.float32))
            assert first.shape == after.shape == (spec.observation_size,), body
            assert np.isfinite([*after, reward]).all() and not np.array_equal(first, after), body
            world.close()
