"""What a game gives to whoever holds one action: a baseline of ``docs/atari.md``.

``python -m tests.benchmarks.constant_actions FrostbiteDeterministic-v4 --episodes 30``: for each action so many episodes
of the seeds that final evaluations begin with, under the rules of evaluations.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from es_queue.config import RunConfig
from es_queue.environments import EnvironmentRequest, World, describe, open_world
from es_queue.episode_rules import evaluation_limit, evaluation_rules
from es_queue.plan import FINAL, evaluation_seeds
from workers.rollout import Watch, play


class Always:
    """One action, in place of the map from a policy's outputs to actions."""

    def __init__(self, action: int) -> None:
        self.action = action

    def act_one(self, output: Any, noise: Any) -> int:
        return self.action


def returns(world: World, action: int, seeds: list[int], limit: int) -> list[float]:
    rules = evaluation_rules(limit)
    return [play(world, lambda: lambda seen: seen, Always(action), rules, seed, Watch()).total for seed in seeds]  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--actions", type=int, nargs="*", help="which, by number; all of them")
    given = parser.parse_args()
    # The memory is the cheapest thing to see, and nobody looks.
    config = RunConfig(env=given.env, preprocessing="ram", seed=1)
    request = EnvironmentRequest.of(config)
    spec, world = describe(request), open_world(request)
    seeds = [int(seed) for seed in np.ravel(evaluation_seeds(config, FINAL, 0, given.episodes))]
    names = [action.name for action in world._environment.unwrapped._actions]  # type: ignore[attr-defined]
    print("| action | mean | std | least | most |\n|---|---|---|---|---|")
    for action, name in enumerate(names):
        if given.actions and action not in given.actions:
            continue
        found = returns(world, action, seeds, evaluation_limit(config, spec))
        print(f"| {name} | {statistics.mean(found):.1f} | {statistics.pstdev(found):.1f} | {min(found):g} | {max(found):g} |", flush=True)
    world.close()


if __name__ == "__main__":
    main()
