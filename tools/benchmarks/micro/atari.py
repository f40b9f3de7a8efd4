"""What an Atari step costs, by preprocessing, and how long ten Pong episodes of a policy on
pictures take.

``python -m tools.benchmarks.micro.atari steps`` times the emulator alone, each preset, and
Gymnasium's own wrappers where OpenCV is there, in turns. ``python -m tools.benchmarks.micro.atari
pong --policy cshenton --preprocessing raw --env Pong-v0`` plays ten whole episodes of fresh
parameters one after the other in one process, BLAS on one thread. Times are seconds of CPU.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from es_queue.config.episode_rules import evaluation_limit, evaluation_rules
from es_queue.config.run_config import RunConfig
from es_queue.environments.atari.game import AtariGame
from es_queue.environments.atari.settings import PRESETS
from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import EnvironmentRequest
from es_queue.numerics.fingerprint import limit_blas_threads
from es_queue.numerics.slot_plan import FINAL, evaluation_seeds
from es_queue.policies import make_policy
from es_queue.policies.actions import ActionMap
from workers.episode import EpisodeControl, make_actor, play_episode

STEPS, REPEATS, SKIP = 300, 7, 4


class Unseen(AtariGame):
    """The emulator, and nobody looks."""

    def __init__(self, rom: str) -> None:
        super().__init__(rom, obs_type="ram", frameskip=SKIP)
        self._preprocessor.capture = lambda *_: None  # type: ignore[method-assign]


def wrapped(rom: str) -> Any:
    """Gymnasium's own preprocessing, None without OpenCV."""
    try:
        own = gymnasium.wrappers.AtariPreprocessing(gymnasium.make(f"{rom.title()}NoFrameskip-v4"))
    except gymnasium.error.DependencyNotInstalled:
        return None
    return gymnasium.wrappers.FrameStackObservation(own, 4)


def seconds(env: Any, seed: int) -> float:
    """CPU seconds of a step of random actions."""
    actions = np.random.default_rng(seed).integers(env.action_space.n, size=STEPS)
    env.reset(seed=seed)
    began = time.process_time()
    for action in actions:
        if any(env.step(int(action))[2:4]):
            env.reset(seed=seed)
    return (time.process_time() - began) / STEPS


def steps(rom: str) -> None:
    worlds: dict[str, Any] = {
        "emulator": Unseen(rom),
        **{name: AtariGame(rom, **preset, frameskip=SKIP) for name, preset in PRESETS.items()},
    }
    if (theirs := wrapped(rom)) is not None:
        worlds["Gymnasium's wrappers"] = theirs
    taken: dict[str, list[float]] = {name: [] for name in worlds}
    for turn in range(REPEATS):
        for name, world in worlds.items():
            taken[name].append(seconds(world, turn))
    print(
        f"| {rom}, {SKIP} frames a step | frames a second | times the emulator alone "
        "|\n|---|---|---|"
    )
    for name, own in taken.items():
        ratio = median(one / alone for one, alone in zip(own, taken["emulator"], strict=True))
        print(f"| {name} | {SKIP / median(own):,.0f} | {ratio:.2f} |")


def pong(env: str, preprocessing: str, policy_name: str, episodes: int) -> None:
    config = RunConfig(env=env, preprocessing=preprocessing, policy=policy_name, seed=1)
    request = EnvironmentRequest.of(config)
    spec, world = describe(request), open_environment(request)
    policy = make_policy(config, spec.observation_size, spec.action, spec.observation_shape)
    rules, actions = (
        evaluation_rules(evaluation_limit(config, spec)),
        ActionMap(spec.action, config.action_bound),
    )
    print(f"{policy_name} on {env}, {preprocessing}: {policy.size:,} parameters")
    began, wall, count = time.process_time(), time.perf_counter(), 0
    begin = make_actor(policy, policy.initial(1, config.init), None)
    for seed in np.ravel(evaluation_seeds(config, FINAL, 0, episodes)):
        count += play_episode(world, begin, actions, rules, int(seed), EpisodeControl()).steps
    took = time.process_time() - began
    print(
        f"{episodes} episodes, {count:,} steps: {took:.1f} s of CPU, "
        f"{time.perf_counter() - wall:.1f} s by the clock, {count / took:,.0f} steps a "
        "second of CPU"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("steps", "pong"))
    parser.add_argument("--env", default="Pong-v0")
    parser.add_argument("--game", default="pong")
    parser.add_argument("--preprocessing", default="raw")
    parser.add_argument("--policy", default="cshenton")
    parser.add_argument("--episodes", type=int, default=10)
    given = parser.parse_args()
    limit_blas_threads()
    if given.what == "steps":
        steps(given.game)
    else:
        pong(given.env, given.preprocessing, given.policy, given.episodes)


if __name__ == "__main__":
    main()
