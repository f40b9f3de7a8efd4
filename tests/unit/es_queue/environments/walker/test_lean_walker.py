"""The lean BipedalWalker against Gymnasium's own class, both on the same random stream."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium.envs.box2d.bipedal_walker import BipedalWalker, BipedalWalkerHeuristics

from es_queue.environments.factory import open_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.environments.rendered_walker import BipedalWalkerV2
from es_queue.environments.vector import Mt19937
from es_queue.environments.walker import LeanWalker
from tests.cases import each_case


class _AsGenerator:
    """Our stream with the three methods of NumPy's Generator that Gymnasium's walker calls."""

    def __init__(self, seed: int) -> None:
        self._stream = Mt19937(seed)

    def uniform(self, low: float, high: float) -> float:
        return self._stream.uniform(low, high)

    def integers(self, low: int, high: int) -> int:
        return low if high - low == 1 else self._stream.integer(low, high - 1)

    def random(self) -> float:
        return self._stream.uniform(0.0, 1.0)


def gymnasium_walker(
    seed: int, hardcore: bool, v2: bool = False, **options: Any
) -> tuple[Any, Any]:
    """Gymnasium's walker in a fresh world on our stream, and its first observation."""
    walker: Any = (BipedalWalkerV2 if v2 else BipedalWalker)(hardcore=hardcore, **options)
    walker.np_random = _AsGenerator(seed)
    return walker, walker.reset()[0]


def actions(kind: str, seed: int, count: int = 400) -> Any:
    """A function from observations to float32 actions [4]."""
    generator = np.random.default_rng(seed)
    drawn = generator.uniform(-1.2, 1.2, (count, 4)).astype(np.float32)
    if kind == "random":
        steps = iter(drawn)
        return lambda observation: next(steps)
    heuristics = BipedalWalkerHeuristics()
    heuristics.a = np.zeros(4)
    return lambda observation: heuristics.step_heuristic(observation).astype(np.float32)


@each_case("kind", ["random", "heuristic"])
@each_case("v2", [False, True])
@each_case("hardcore", [False, True])
def test_lean_observations_are_gymnasiums_to_the_bit(hardcore: bool, v2: bool, kind: str) -> None:
    """A pit's far wall is up to a float32 step from Gymnasium's, where EnvPool has it."""
    lean, steps, rays = LeanWalker(hardcore, v2), 0, 0
    for seed in range(4):
        stock, first = gymnasium_walker(seed, hardcore, v2)
        seen, act = lean.reset(seed), actions(kind, seed)
        assert np.array_equal(seen, first)
        for _ in range(400):
            action = act(seen)
            observation, reward, terminated, _, _ = stock.step(action)
            seen, gained, over = lean.step(action)
            if hardcore:
                np.testing.assert_allclose(seen[:14], observation[:14], rtol=0, atol=1e-6)
            else:
                assert np.array_equal(seen, observation)
            rays += int(np.isclose(seen[14:], observation[14:], atol=1e-5).sum())
            assert over == terminated
            assert gained == pytest.approx(float(reward), abs=3e-5)
            steps += 1
            if over:
                break
    assert steps > 400 and rays > 0.98 * 10 * steps


def test_an_interrupt_in_the_middle_of_a_step_neither_aborts_nor_spoils_the_next_episode() -> None:
    program = """
import signal, numpy as np
from es_queue.environments.walker import LeanWalker

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
walker, action = LeanWalker(False), np.array([1, -1, -1, 1], np.float32)
first = walker.reset(1)
for attempt in range(50):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002 + attempt * 3e-5)
        while True:
            walker.step(action)
    except KeyboardInterrupt:
        assert np.array_equal(walker.reset(1), first)
print("whole")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "whole\n", done.stderr


@each_case("hardcore", [False, True])
def test_a_drawn_walker_gives_gymnasiums_pictures(hardcore: bool) -> None:
    name = "BipedalWalkerHardcore-v3" if hardcore else "BipedalWalker-v3"
    drawn = open_environment(EnvironmentRequest(name), "rgb_array")
    stock, _ = gymnasium_walker(9, hardcore, render_mode="rgb_array")
    drawn.reset(9)
    act = actions("heuristic", 9)
    seen = np.zeros(24, np.float32)
    for _ in range(40):
        picture, theirs = drawn.render(), stock.render()
        assert picture is not None and picture.shape == (400, 600, 3)
        assert np.array_equal(picture, theirs)
        action = act(seen)
        seen = drawn.step(action)[0]
        stock.step(action)
    drawn.close()


def test_the_stream_is_that_of_the_cxx_standard() -> None:
    stream = Mt19937(5489)
    stream.skip(9999)
    # [rand.predef]: the 10000th value of a default-constructed mt19937, whose seed is 5489.
    assert stream.next_word() == 4123659995
