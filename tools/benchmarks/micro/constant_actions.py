"""What a game gives to whoever holds one action: a baseline of ``docs/atari.md``.

``python -m tools.benchmarks.micro.constant_actions FrostbiteDeterministic-v4 --episodes 30``: for
each action so many episodes of the seeds that final evaluations begin with, under the rules of
evaluations.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any, cast

import numpy as np

from es_queue.config.episode_rules import evaluation_limit, evaluation_rules
from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import Environment, EnvironmentRequest
from es_queue.numerics.slot_plan import FINAL, evaluation_seeds
from es_queue.policies.actions import ActionMap
from workers.episode import EpisodeControl, play_episode


class Always:
    """One action, in place of the map from a policy's outputs to actions."""

    def __init__(self, action: int) -> None:
        self.action = action

    def act_one(self, output: Any, noise: Any) -> int:
        return self.action


def returns(world: Environment, action: int, seeds: list[int], limit: int) -> list[float]:
    """The returns of the seeds. Without sticky actions and with a fixed skip all chance is in how
    many frames pass first: equal ones are played once.
    """
    rules, game = evaluation_rules(limit), world._environment.unwrapped  # type: ignore[attr-defined]
    chancy = (
        game.settings.repeat_action_probability
        or game.settings.skip_range()[0] != game.settings.skip_range()[1]
    )
    known: dict[int, float] = {}
    found = []
    for seed in seeds:
        world.reset(seed)
        waited = seed if chancy else game.ale.getEpisodeFrameNumber()
        if waited not in known:
            known[waited] = play_episode(
                world,
                lambda: lambda seen: seen,
                cast(ActionMap, Always(action)),
                rules,
                seed,
                EpisodeControl(),
            ).total
        found.append(known[waited])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--actions", type=int, nargs="*", help="which, by number; all of them")
    parser.add_argument(
        "--frames",
        type=int,
        default=20_000,
        help="after which an episode is over, where the console does not end it",
    )
    given = parser.parse_args()
    # The memory is the cheapest thing to see, and nobody looks.
    config = RunConfig(
        env=given.env,
        preprocessing="ram",
        env_arg=(("max_num_frames_per_episode", given.frames),),
        seed=1,
    )
    request = EnvironmentRequest.of(config)
    spec, world = describe(request), open_environment(request)
    seeds = [int(seed) for seed in np.ravel(evaluation_seeds(config, FINAL, 0, given.episodes))]
    names = [action.name for action in world._environment.unwrapped._actions]  # type: ignore[attr-defined]
    print("| action | mean | std | least | most |\n|---|---|---|---|---|")
    for action, name in enumerate(names):
        if given.actions and action not in given.actions:
            continue
        found = returns(world, action, seeds, evaluation_limit(config, spec))
        print(
            (
                f"| {name} | {statistics.mean(found):.1f} | {statistics.pstdev(found):.1f} | "
                f"{min(found):g} | {max(found):g} |"
            ),
            flush=True,
        )
    world.close()


if __name__ == "__main__":
    main()
