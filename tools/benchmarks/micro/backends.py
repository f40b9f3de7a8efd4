"""How fast each back end plays the same individuals on the same seeds; run it by hand: ``python -m
tools.benchmarks.micro.backends``.

BipedalWalker with 32 episodes at once on stock, lean and EnvPool, CartPole with 256 on stock and
vectorised. One process plays each back end in turn, several times over; what counts are the ratios
within one run. Stock draws other terrains for the walker than lean and EnvPool do, and counts its
own steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.envpool import is_installed
from es_queue.numerics.fingerprint import bytes_digest, limit_blas_threads
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies import make_policy
from es_queue.policies.mlp import MlpPolicy
from es_queue.protocol.messages import Block, Task
from tests.ring import NOISE, quick_config
from workers.episode import EpisodeControl
from workers.join import join
from workers.slots import Evaluator

Floats = NDArray[np.float32]
#: Weighs cart, its speed, pole and its speed so that the pole stays up.
BALANCE = np.array([0.05, 0.2, 1.0, 1.0], np.float32)


@dataclass(frozen=True)
class Course:
    """Blocks of ``slots`` pairs around the parameters that ``published`` makes for a policy, at
    most ``limit`` steps each.
    """

    environment: str
    slots: int
    sigma: float
    limit: int
    published: Callable[[Any], Floats]
    settings: dict[str, Any] = field(default_factory=lambda: {"policy": "mlp"})


def wandering(policy: Any) -> Floats:
    """Small random weights."""
    weights: Floats = np.random.default_rng(3).normal(0, 0.05, policy.size).astype(np.float32)
    return weights


def balancing(policy: Any) -> Floats:
    """Weights of a linear policy, or of one unit in each layer, that hold CartPole's pole up."""
    published: Floats = np.zeros((1, policy.size), np.float32)
    if not isinstance(policy, MlpPolicy):
        published.reshape(4, 2)[:] = BALANCE[:, None] * np.array([-10, 10], np.float32)
        return published.reshape(-1)
    layers = policy.layers(published)
    layers[0][0][0, :, 0] = BALANCE
    for weights, _ in layers[1:-1]:
        weights[0, 0, 0] = 2
    layers[-1][0][0, 0] = (-10, 10)
    return published.reshape(-1)


WALKER = Course("BipedalWalker-v3", 16, 0.2, 1600, wandering)
#: By the name that is put behind the back end's.
CARTPOLES = {
    "": Course("CartPole-v1", 128, 0.05, 500, balancing),
    ", linear": Course("CartPole-v1", 128, 0.05, 500, balancing, {"policy": "linear"}),
    ", untrained": Course("CartPole-v1", 128, 0.05, 500, wandering),
}


def walker_backends(repeats: int) -> dict[str, Any]:
    """Stock, lean and, where it is installed, EnvPool."""
    rates = _in_turn(WALKER, ["stock", "lean", *(["envpool"] if is_installed() else [])], repeats)
    return _figures({"": rates}, repeats)


def cartpole_backends(repeats: int) -> dict[str, Any]:
    """Stock and vectorised, for an MLP and a linear policy that hold the pole up, and for an MLP
    that knows nothing yet.
    """
    return _figures(
        {name: _in_turn(course, ["stock", "lean"], repeats) for name, course in CARTPOLES.items()},
        repeats,
    )


def _figures(found: dict[str, dict[str, list[float]]], repeats: int) -> dict[str, Any]:
    speeds: dict[str, float] = {}
    ratios: dict[str, dict[str, float]] = {}
    for name, rates in found.items():
        for backend, each in rates.items():
            speeds[backend + name] = statistics.median(each)
            if backend != "stock":
                ratio = [one / other for one, other in zip(each, rates["stock"], strict=True)]
                ratios[f"{backend} / stock{name}"] = {
                    "median": statistics.median(ratio),
                    "least": min(ratio),
                    "greatest": max(ratio),
                }
    return {"steps_per_cpu_second": speeds, "ratios": ratios, "repeats": repeats}


def _in_turn(course: Course, backends: list[str], repeats: int) -> dict[str, list[float]]:
    """Back end after back end within each repeat, so that a busy minute slows all of them; a block
    before to warm up.
    """
    table = NoiseTable.in_memory(NOISE)
    players = {backend: _evaluator(course, backend, table) for backend in backends}
    rates: dict[str, list[float]] = {backend: [] for backend in players}
    for number in range(-1, repeats):
        for backend, who in players.items():
            found = rate(who, course, course.slots * max(number, 0))
            if number >= 0:
                rates[backend].append(found)
    return rates


def _evaluator(course: Course, backend: str, table: NoiseTable) -> Evaluator:
    config = quick_config(
        env=course.environment, strategy="ars", population=8192, backend=backend, **course.settings
    )
    return join(config, EpisodeControl(), table=table).evaluator


def rate(who: Evaluator, course: Course, start: int) -> float:
    """Environment steps per CPU-second of the block that begins at slot ``start``."""
    spec = who.spec
    published = course.published(make_policy(who.config, spec.observation_size, spec.action))
    zeros, ones = (np.full(spec.observation_size, value, "<f4").tobytes() for value in (0, 1))
    digest = bytes_digest(published.tobytes())
    task = Task(
        "0.1-00000000",
        course.sigma,
        course.limit,
        len(published),
        digest,
        zeros,
        ones,
        who.table.digest,
        1.0,
    )
    before, began = who.control.steps, time.process_time()
    who.evaluate(
        task,
        published,
        Block(task.publication, "train", start, start + course.slots),
        "bench-1-abcdef",
        lambda _: None,
    )
    return (who.control.steps - before) / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare the back ends of BipedalWalker and of CartPole."
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    limit_blas_threads()
    found = {
        "BipedalWalker-v3": walker_backends(given.repeats),
        "CartPole-v1": cartpole_backends(given.repeats),
    }
    if given.json:
        print(json.dumps(found))
        return
    for environment, figures in found.items():
        print(environment)
        for backend, speed in figures["steps_per_cpu_second"].items():
            print(f"  {backend:24} {speed:12,.0f} steps per CPU-second")
        for name, ratio in figures["ratios"].items():
            print(
                f"  {name:24} {ratio['median']:12.2f} ({ratio['least']:.2f} to "
                f"{ratio['greatest']:.2f}, {given.repeats} repeats)"
            )


if __name__ == "__main__":
    main()
