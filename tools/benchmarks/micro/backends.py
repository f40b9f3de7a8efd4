"""How fast each back end plays the same individuals on the same seeds.

BipedalWalker with 32 episodes at once on stock, lean and EnvPool, CartPole with 256 on stock and
vectorised. One process plays each back end in turn, several times over; what counts are the ratios
within one run. Stock draws other terrains for the walker than lean and EnvPool do, and counts its
own steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.vector import is_installed
from es_queue.numerics.noise_table import NoiseTable
from tests.memory import NOISE, quick_config
from tools.benchmarks.micro.rates import open_generation, rate
from workers.heartbeat import EpisodeControl
from workers.player import Player, join

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
    layers = policy.layers(published)
    if len(layers) == 1:
        layers[0][0][0] = BALANCE[:, None] * np.array([-10, 10], np.float32)
        return published.reshape(-1)
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
    players = {backend: _player(course, backend, table, repeats) for backend in backends}
    found: dict[str, list[float]] = {backend: [] for backend in players}
    for number in range(-1, repeats):
        for backend, player in players.items():
            start = course.slots * max(number, 0)
            speed = rate(player, start, start + course.slots, course.slots)
            if number >= 0:
                found[backend].append(speed)
    return found


def _player(course: Course, backend: str, table: NoiseTable, repeats: int) -> Player:
    config = quick_config(
        env=course.environment, strategy="ars", population=8192, backend=backend, **course.settings
    )
    player = join(config, EpisodeControl(), table=table)
    published = course.published(player.policy)
    open_generation(player, published, course.slots * repeats, course.sigma, course.limit)
    return player
