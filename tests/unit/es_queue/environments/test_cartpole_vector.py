"""CartPole's vectorised physics: the episodes of Gymnasium's scalar environment, to the bit, in
batches of any size.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from es_queue.environments.cartpole_vector import CartPoleVectorEnvironment
from es_queue.environments.factory import (
    batch_size_range,
    describe,
    open_environment,
    open_vector_environment,
    portable_request,
)
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.stock import StockEnvironment
from es_queue.errors import UsageError
from es_queue.numerics.fingerprint import BEYOND_AVX2, bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.messages import Task
from tests.cases import each_case
from tests.parts import Played, play_slots, policy_size
from tests.ring import NOISE, quick_config
from workers.episode import EpisodeControl
from workers.join import join
from workers.player import Player

CARTPOLE = EnvironmentRequest("CartPole-v1")
LIMIT = 500
TABLE = NoiseTable.in_memory(NOISE)
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


@each_case("disabled", ["", BEYOND_AVX2[0][1], f"X86_V3 {BEYOND_AVX2[0][1]}"])
def test_the_bits_are_equal_by_whatever_instructions_numpy_computes(disabled: str) -> None:
    program = (
        "from tests.unit.es_queue.environments.test_cartpole_vector import balancing, chance, "
        "episodes_that_differ\n"
        "print(episodes_that_differ([1, 7, 40], balancing)[0], episodes_that_differ([300, 37], "
        "chance(9))[0])"
    )
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "0"]


def test_an_episode_does_not_depend_on_the_batches_before() -> None:
    used = CartPoleVectorEnvironment({})
    played(used, [5, 6, 7], chance(1))
    assert played(used, [9, 3], balancing) == played(
        CartPoleVectorEnvironment({}), [9, 3], balancing
    )


# --- which requests it serves


def test_what_the_vectorised_class_does_not_know_is_played_by_stock() -> None:
    for changes in (
        {"wrappers": ("gymnasium.wrappers:FlattenObservation",)},
        {"arguments": (("colour", "red"),)},
    ):
        request = replace(CARTPOLE, **changes)
        assert (
            batch_size_range(request) is None
            and open_vector_environment(request) is None
            and portable_request(request) == request
        )
        with pytest.raises(
            UsageError,
            match=(
                r"the lean back end does not play CartPole-v1 with these settings: .* and "
                r"CartPole, without wrappers"
            ),
        ):
            describe(replace(request, backend="lean"))


def test_one_by_one_and_in_pictures_cartpole_is_gymnasiums_own() -> None:
    assert (
        portable_request(CARTPOLE)
        == portable_request(replace(CARTPOLE, backend="lean"))
        == replace(CARTPOLE, backend="stock")
    )
    assert portable_request(replace(CARTPOLE, backend="envpool")).backend == "envpool"
    drawn = open_environment(CARTPOLE, "rgb_array")
    assert isinstance(drawn, StockEnvironment)
    drawn.close()


# --- whole blocks


def block(who: Player, kind: str, stop: int) -> Played:
    size = policy_size(who)
    published = np.random.default_rng(3).normal(0, 0.3, size).astype(np.float32)
    mean, std = np.full(4, 0.1, "<f4").tobytes(), np.full(4, 0.7, "<f4").tobytes()
    task = Task(
        "0.1-00000000",
        0.5,
        200,
        size,
        bytes_digest(published.tobytes()),
        mean,
        std,
        TABLE.digest,
        1.0,
    )
    return play_slots(who, task, published, kind, 0, stop)


@each_case(
    "values",
    [
        {"policy": "linear"},
        {"policy": "mlp", "hidden": (8,), "episodes": 2, "obs_sample": 1.0, "patience": "40,60"},
    ],
)
def test_a_block_is_answered_as_stock_answers_it(values: dict[str, Any]) -> None:
    lean, stock = (
        join(quick_config(strategy="ars", backend=backend, **values), EpisodeControl(), table=TABLE)
        for backend in ("lean", "stock")
    )
    assert (lean.backend, stock.backend, lean.numerics) == ("lean", "stock", stock.numerics)
    for kind, stop in (("train", 40), ("train", 3), ("eval", 20)):
        one, other = block(lean, kind, stop), block(stock, kind, stop)
        assert (one.results, one.failures) == (other.results, []) and len(one.results) == stop
