"""What ``observe`` leaves out is not computed, not normalised and in no statistics; rays that are
cast have the bits of rays in the walker's own world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import Box2D
import numpy as np

from es_queue.environments.factory import open_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.walker import LIDAR, RAYS
from tests.cases import each_case
from tests.memory import play

NORMAL, HARDCORE = "BipedalWalker-v3", "BipedalWalkerHardcore-v3"
WALKERS = [NORMAL, HARDCORE, "BipedalWalkerHardcore-v2", "Marvin-v0"]
Act = Callable[[Any], Any]


class OwnWorldRay(Box2D.b2RayCastCallback):  # type: ignore[misc]
    """A ray as Gymnasium casts it, among the parts of the walker."""

    fraction = 1.0

    def ReportFixture(self, fixture: Any, point: Any, normal: Any, fraction: float) -> float:  # noqa: N802
        if fixture.filterData.categoryBits & 1 == 0:
            return -1.0
        self.fraction = fraction
        return fraction


def own_world_fractions(walker: Any) -> list[float]:
    found, (x, y) = [], walker.body.hull.position
    for right, down in RAYS:
        ray = OwnWorldRay()
        walker.body.world.RayCast(ray, (x, y), (x + right, y - down))
        found.append(ray.fraction)
    return found


def random_acts(seed: int) -> Act:
    generator = np.random.default_rng(seed)
    return lambda observation: generator.uniform(-1.2, 1.2, 4).astype(np.float32)


def compare_rays(name: str, seeds: range, make_act: Callable[[int], Act], limit: int) -> None:
    walker: Any = open_environment(EnvironmentRequest(name, backend="lean"))
    nearby = 0
    for seed in seeds:
        observation, act = walker.reset(seed), make_act(seed)
        for _ in range(limit):
            rays = np.array(own_world_fractions(walker), np.float32)
            assert observation[LIDAR].tobytes() == rays.tobytes()
            nearby += int((rays < 1).sum())
            observation, _, over = walker.step(act(observation))
            if over:
                break
    assert nearby > 100


@each_case("name", [NORMAL, HARDCORE, "Marvin-v0"])
def test_rays_have_the_bits_of_rays_in_the_walkers_own_world(name: str) -> None:
    compare_rays(name, range(3), random_acts, 60)


@each_case("name", WALKERS)
@each_case("left", [(), (14, 17), (0, 3, 23)])
def test_only_rays_that_are_read_are_cast_and_all_else_keeps_its_bits(
    name: str, left: tuple[int, ...]
) -> None:
    whole, part = (
        open_environment(EnvironmentRequest(name, backend="lean", seen=seen))
        for seen in (None, left)
    )
    kept = [number for number in range(24) if number not in LIDAR or number in left]
    for seed in range(2):
        (a, b), act = (whole.reset(seed), part.reset(seed)), random_acts(seed)
        for _ in range(40):
            assert a[kept].tobytes() == b[kept].tobytes()
            assert not np.delete(b, kept).any() and np.delete(a, kept).all()
            action = act(a)
            (a, reward, over), (b, gained, ended) = whole.step(action), part.step(action)
            assert (reward, over) == (gained, ended)
            if over:
                break


def test_a_behaviour_of_all_numbers_and_a_rule_of_one_keep_their_rays() -> None:
    behaviour = EnvironmentRequest(NORMAL, behaviour="last-observation", backend="lean", seen=(0,))
    assert open_environment(behaviour).reset(1)[LIDAR].all()
    run = {"env": NORMAL, "policy": "linear", "generations": 1, "backend": "lean", "seed": 5}
    # A ray that is not cast is 0, and would end each episode after two steps.
    free = play(**run, observe="0-13")
    assert play(**run, observe="0-13", stall="20:0.0001:2").digest == free.digest


@each_case("env, observe", [("CartPole-v1", "2-3"), (NORMAL, "0-13"), (NORMAL, "2,13,20")])
def test_back_ends_have_equal_statistics_of_what_is_observed_and_none_of_the_rest(
    env: str, observe: str
) -> None:
    run = {"env": env, "observe": observe, "obs_sample": 1.0, "policy": "linear"}
    kept = {"2-3": [2, 3], "0-13": [*range(14)], "2,13,20": [2, 13, 20]}[observe]
    lean = play(**run, backend="lean")
    mean = lean.checkpoints[-1]["moments_mean"]
    assert not np.delete(mean, kept).any() and mean[kept].all()
    if env == "CartPole-v1":
        stock = play(**run, backend="stock")
        assert stock.outcome == lean.outcome
        for name, array in lean.checkpoints[-1].items():
            if name.startswith("moments"):
                assert array.tobytes() == stock.checkpoints[-1][name].tobytes()
