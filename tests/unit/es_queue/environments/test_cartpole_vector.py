"""CartPole's vectorised physics: the episodes of Gymnasium's scalar environment, to the bit, in
batches of any size.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from es_queue.environments.vector import CartPoleVectorEnvironment
from es_queue.numerics.fingerprint import BEYOND_AVX2
from tests.cases import each_case

LIMIT = 500
Chooser = Callable[[np.ndarray], np.ndarray]


def balancing(observations: np.ndarray) -> np.ndarray:
    """Keeps the pole up for 500 steps from any start."""
    return (observations @ np.array([0.05, 0.2, 1, 1], np.float32) > 0).astype(np.int64)


def chance(seed: int) -> Chooser:
    generator = np.random.default_rng(seed)
    return lambda observations: generator.integers(0, 2, len(observations))


def played(worlds: CartPoleVectorEnvironment, seeds: list[int], choose: Chooser) -> list[list[Any]]:
    """For each seed its first observation, then (action, observation, reward, over) of each step,
    as bytes and numbers.
    """
    observations, rows = worlds.reset(seeds), np.arange(len(seeds), dtype=np.int32)
    traces: list[list[Any]] = [[one.tobytes()] for one in observations]
    for _ in range(LIMIT):
        actions = choose(observations)
        observations, rewards, over = worlds.step(rows, actions)
        for place, row in enumerate(rows.tolist()):
            traces[row].append(
                (
                    int(actions[place]),
                    observations[place].tobytes(),
                    rewards[place].tobytes(),
                    bool(over[place]),
                )
            )
        rows, observations = rows[~over], observations[~over]
        if not len(rows):
            break
    return traces


def alone(environment: CartPoleEnv, seed: int, actions: list[int]) -> list[Any]:
    """The same of the scalar environment under the given actions."""
    trace: list[Any] = [environment.reset(seed=seed)[0].tobytes()]
    for action in actions:
        observation, reward, over, _, _ = environment.step(action)
        trace.append((action, observation.tobytes(), np.float64(reward).tobytes(), over))
    return trace


def episodes_that_differ(sizes: list[int], choose: Chooser, **arguments: Any) -> tuple[int, int]:
    """How many episodes of batches of these sizes the scalar environment plays otherwise, and steps
    in all.
    """
    worlds, scalar, differ, steps, first = (
        CartPoleVectorEnvironment(arguments),
        CartPoleEnv(**arguments),
        0,
        0,
        0,
    )
    for size in sizes:
        seeds = [(first + 7919 * number) % 2**31 for number in range(size)]
        first += 104_729 * size
        for seed, trace in zip(seeds, played(worlds, seeds, choose), strict=True):
            differ += trace != alone(scalar, seed, [one[0] for one in trace[1:]])
            steps += len(trace) - 1
    return differ, steps


def test_long_episodes_are_the_scalar_environments_in_any_batch() -> None:
    sizes = [1, 2, 3, 5, 8, 17, 64]
    assert episodes_that_differ(sizes, balancing) == (0, LIMIT * sum(sizes))


@each_case("arguments", [{}, {"sutton_barto_reward": True}])
def test_over_a_thousand_episodes_that_end_at_their_own_steps_are_the_scalar_environments(
    arguments: dict[str, Any],
) -> None:
    differ, steps = episodes_that_differ([300, 256, 255, 129, 33, 31, 9, 1], chance(4), **arguments)
    assert differ == 0 and steps > 15_000


def test_the_bits_are_equal_by_whatever_instructions_numpy_computes() -> None:
    program = (
        "from tests.unit.es_queue.environments.test_cartpole_vector import balancing, chance, "
        "episodes_that_differ\n"
        "print(episodes_that_differ([1, 7, 40], balancing)[0], episodes_that_differ([300, 37], "
        "chance(9))[0])"
    )
    environment = {
        **os.environ,
        "NPY_DISABLE_CPU_FEATURES": f"X86_V3 {BEYOND_AVX2[0][1]}",
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "0"]
