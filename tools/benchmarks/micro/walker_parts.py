"""What a step and a reset of the lean BipedalWalker cost, by part: ``python -m
tools.benchmarks.micro.walker_parts [REPEATS]``.

Microseconds of CPU, the median of the repeats with the least and the greatest. The bundled policy
walks; ``without lidar`` is the walker of a run with ``--observe 0-13``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from es_queue import load_policy
from es_queue.environments.walker import (
    FPS,
    LIDAR,
    LeanWalker,
    build_lidar_world,
    build_walker,
    generate_terrain,
)
from es_queue.pretrained import path_of

STEPS, RESETS = 600, 100
KINDS = {"with lidar": LIDAR, "without lidar": ()}
Found = dict[str, list[float]]


def main() -> None:
    found: Found = defaultdict(list)
    walkers = {
        "with lidar": LeanWalker(False, seen=LIDAR),
        "without lidar": LeanWalker(False, seen=()),
    }
    actions = walk(walkers["with lidar"])
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 7):
        for name, walker in walkers.items():
            measure(found, name, walker, actions)
    for name, values in found.items():
        shown = f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
        print(f"{name:45} {shown}")


def walk(walker: LeanWalker) -> list[Any]:
    """The actions of the bundled policy on the ground of seed 0."""
    policy, observation, actions = load_policy(path_of("BipedalWalker-v2")), walker.reset(0), []
    for _ in range(STEPS):
        actions.append(np.asarray(policy.act(observation), np.float32))
        observation = walker.step(actions[-1])[0]
    return actions


def measure(found: Found, name: str, walker: Any, actions: list[Any]) -> None:
    def each(part: str, count: int, act: Callable[[int], Any]) -> None:
        began = time.process_time()
        for number in range(count):
            act(number)
        found[f"{part}, {name}"].append((time.process_time() - began) / count * 1e6)

    walker.reset(0)
    each("step", STEPS, lambda number: walker.step(actions[number]))
    each("step: observation", STEPS, lambda _: walker._observe(10.0, 6.0, 0.1))
    each("reset", RESETS, walker.reset)
    if not walker._lidar.rays:
        return
    name, stream = "always", walker._stream
    walker.reset(0)
    each("step: motors", STEPS, lambda number: walker._set_motors(actions[number]))

    def physics(number: int) -> None:
        walker._set_motors(actions[number])
        walker.body.world.Step(1.0 / FPS, 180, 60)

    walker.reset(0)
    each("step: motors and physics", STEPS, physics)

    def ground_of(seed: int) -> Any:
        stream.seed(seed)
        return generate_terrain(stream, False)

    each("reset: ground", RESETS, ground_of)
    ground = ground_of(0)
    each("reset: world of the walker", RESETS, lambda _: build_walker(ground, stream, walker.shape))
    each("reset: world of the lidar", RESETS, lambda _: build_lidar_world(ground))


if __name__ == "__main__":
    main()
