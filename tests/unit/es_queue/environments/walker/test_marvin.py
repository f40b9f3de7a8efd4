"""Marvin-v0: the body of the 42 schools' robot in BipedalWalker's world, the same through every
door.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pygame
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.walker.lean_walker import LeanWalker
from es_queue.environments.walker.marvin import LeanMarvin
from es_queue.errors import UsageError

MARVIN = EnvironmentRequest("Marvin-v0")
IDLE = np.zeros(4, np.float32)


def drawn_actions(seed: int, count: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (count, 4)).astype(np.float32)


def body_of(world: LeanWalker) -> Any:
    world.reset(0)
    return world.body


def corners(body: Any) -> NDArray[np.float64]:
    """All corners of a Box2D body, in pixels from its origin."""
    return 30 * np.array([corner for fixture in body.fixtures for corner in fixture.shape.vertices])


def test_his_masses_are_those_of_the_original() -> None:
    body = body_of(LeanMarvin())
    trunk = body.hull.massData
    assert trunk.mass == pytest.approx(2.456, abs=0.01)
    assert (trunk.center.x, trunk.center.y) == (
        pytest.approx(0.10, abs=0.01),
        pytest.approx(0.89, abs=0.01),
    )
    assert trunk.I - trunk.mass * trunk.center.lengthSquared == pytest.approx(2.73, abs=0.02)
    assert [part.mass for part in body.legs] == [
        pytest.approx(mass, abs=0.002) for mass in (0.270, 0.320) * 2
    ]
    assert trunk.mass + sum(part.mass for part in body.legs) == pytest.approx(3.64, abs=0.01)


def test_his_parts_reach_as_far_as_those_of_the_original() -> None:
    body = body_of(LeanMarvin())
    reach = {"trunk": body.hull, "thigh": body.legs[0], "shank": body.legs[1]}
    extents = {name: [*corners(part).min(0), *corners(part).max(0)] for name, part in reach.items()}
    assert extents == {
        "trunk": pytest.approx([-27.5, -23.8, 35.7, 76.8], abs=0.05),
        "thigh": pytest.approx([-9.0, -22.7, 9.5, 10.7], abs=0.05),
        "shank": pytest.approx([-7.1, -25.2, 16.3, 10.2], abs=0.05),
    }


def test_his_joints_sit_where_those_of_the_original_do() -> None:
    body = body_of(LeanMarvin())
    for index, joint in enumerate(body.joints):
        above, below = (
            30 * joint.bodyA.GetLocalPoint(joint.anchorA),
            30 * joint.bodyB.GetLocalPoint(joint.anchorB),
        )
        expected = (-34 / 3, 34 / 3) if index % 2 else (-8, 17)
        assert (above.y, below.y) == tuple(pytest.approx(y, abs=1e-3) for y in expected)
        assert joint.limits == pytest.approx((-1.6, -0.1) if index % 2 else (-0.8, 1.1))
    world = LeanMarvin()
    world.step = lambda action: (IDLE, 0.0, False)  # type: ignore[method-assign]
    world.reset(0)
    assert world.body.hull.position.y * 30 == pytest.approx(100 + 3 * 34, abs=1e-3)
    assert [round(joint.motorSpeed) for joint in world.body.joints] == [-2, 1, 2, 1]


def test_who_does_nothing_falls_as_the_original_does() -> None:
    world, lengths, returns = LeanMarvin(), [], []
    for seed in range(60):
        world.reset(seed)
        rewards = [world.step(IDLE)[1]]
        while rewards[-1] != -100.0:
            rewards.append(world.step(IDLE)[1])
        lengths.append(len(rewards))
        returns.append(sum(rewards))
    assert min(lengths) >= 118 and max(lengths) <= 136, "the original: 118 to 136 in ten episodes"
    assert 122 <= np.mean(lengths) <= 132
    assert min(returns) >= -112.0 and max(returns) <= -111.0, (
        "the original: -111.5, give or take 0.5"
    )


def test_lean_stock_and_gymnasium_play_one_episode_to_the_bit() -> None:
    lean, stock = (
        open_environment(MARVIN),
        open_environment(EnvironmentRequest("Marvin-v0", backend="stock")),
    )
    registered = gymnasium.make("Marvin-v0")
    for seed in (3, 2**31 - 1, 3):
        seen = [lean.reset(seed), stock.reset(seed), registered.reset(seed=seed)[0]]
        assert all(np.array_equal(a, b) for a, b in pairwise(seen))
        for action in drawn_actions(seed, 400):
            (a, gained, over), (b, reward, ended) = lean.step(action), stock.step(action)
            c, paid, terminated, truncated, _ = registered.step(action)
            assert np.array_equal(a, b) and np.array_equal(a, c) and not truncated
            assert (gained, over) == (reward, ended) == (paid, terminated)
            if over:
                break
        assert over, "who waves at random falls"


def test_he_walks_the_ground_of_bipedal_walker() -> None:
    marvin, walker = body_of(LeanMarvin()), body_of(LeanWalker(False))
    assert marvin.terrain == walker.terrain


def test_lean_and_stock_are_described_alike() -> None:
    lean, stock = (
        describe(EnvironmentRequest("Marvin-v0", backend=name)) for name in ("auto", "stock")
    )
    assert (lean.backend, stock.backend) == ("lean", "stock")
    assert (lean.observation_size, lean.action, lean.step_limit, lean.reward_threshold) == (
        24,
        stock.action,
        None,
        None,
    )
    assert (stock.observation_size, stock.step_limit, stock.clean_reset) == (24, None, True)


def test_his_behaviour_is_where_he_got() -> None:
    asked = EnvironmentRequest("Marvin-v0", behaviour="auto")
    ends = []
    for backend in ("lean", "stock"):
        world: Any = open_environment(
            EnvironmentRequest("Marvin-v0", behaviour="final-position", backend=backend)
        )
        world.reset(5)
        for action in drawn_actions(5, 50):
            world.step(action)
        ends.append(world.behaviour())
    assert describe(asked).behaviour == "final-position" and np.array_equal(*ends)


def test_arguments_that_he_does_not_take_are_refused() -> None:
    with pytest.raises(
        UsageError, match="the lean back end does not play Marvin-v0 with these settings"
    ):
        describe(EnvironmentRequest("Marvin-v0", arguments=(("hardcore", True),), backend="lean"))
    with pytest.raises(UsageError, match="backend is any"):
        describe(EnvironmentRequest("Marvin-v0", backend="any"))


@pytest.mark.filterwarnings("ignore")
def test_gymnasiums_checker_finds_no_fault() -> None:
    check_env(gymnasium.make("Marvin-v0").unwrapped, skip_render_check=True)


def test_without_a_seed_each_episode_is_another_one_and_the_first_seed_fixes_them_all() -> None:
    def firsts() -> list[bytes]:
        environment = gymnasium.make("Marvin-v0")
        first = environment.reset(seed=8)[0]
        for action in drawn_actions(0, 20):
            environment.step(action)
        episodes = [first.tobytes()]
        for _ in range(2):
            environment.reset()
            episodes.append(
                np.concatenate(
                    [environment.step(action)[0] for action in drawn_actions(0, 60)]
                ).tobytes()
            )
        return episodes

    once, again = firsts(), firsts()
    assert once == again and len(set(once)) == 3


def test_gymnasium_makes_him_without_a_warning_and_without_an_import_of_pygame() -> None:
    program = (
        "import es_queue.environments.registry, gymnasium, sys\n"
        "env = gymnasium.make('Marvin-v0')\n"
        "env.reset(seed=1); env.step(env.action_space.sample())\n"
        "assert env.spec.max_episode_steps is None and 'pygame' not in sys.modules\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "always",
            "-W",
            "ignore:builtin type:DeprecationWarning",
            "-c",
            program,
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_drawn_marvin_plays_the_same_episode() -> None:
    plain, drawn = open_environment(MARVIN), open_environment(MARVIN, "rgb_array")
    registered: Any = gymnasium.make("Marvin-v0", render_mode="rgb_array")
    assert np.array_equal(plain.reset(9), drawn.reset(9))
    registered.reset(seed=9)
    pictures = []
    for action in drawn_actions(9, 40):
        (a, reward, ended), (b, gained, over) = plain.step(action), drawn.step(action)
        assert np.array_equal(a, b) and (reward, ended) == (gained, over)
        registered.step(action)
        pictures.append(drawn.render())
        assert np.array_equal(pictures[-1], registered.render())
    assert pictures[0].shape == (400, 600, 3)
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)
    drawn.close()
    registered.close()


def test_a_window_follows_him(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    world = open_environment(MARVIN, "human")
    world.reset(1)
    before = pygame.display.get_surface().get_buffer().raw
    for action in drawn_actions(1, 4):
        world.step(action)
    assert world.render() is None
    assert pygame.display.get_surface().get_buffer().raw != before
    world.close()
