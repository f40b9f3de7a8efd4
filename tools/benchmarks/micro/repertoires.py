"""MAP-Elites of es-queue and of pyribs on the same cells and the same budget: the table of
``docs/strategies.md``.

``pip install ribs==0.12.0 && python -m tools.benchmarks.micro.repertoires`` fills archives for two
tasks of pyribs' tutorials, where the hand of a planar arm ends (fitness: minus the variance of its
angles) and the linear projection of a sphere, and for the feet of BipedalWalker. es-queue's
strategy learns from the individuals that its workers would build; pyribs gets the same bounds,
cells, deviations and batches.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from es_queue.config.episode_rules import evaluation_rules
from es_queue.config.run_config import RunConfig
from es_queue.environments.behaviour_descriptor import FEET
from es_queue.environments.factory import describe, open_environment
from es_queue.environments.interface import BehaviourEnvironment, EnvironmentRequest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.slot_plan import make_generation_plan
from es_queue.policies import make_policy
from es_queue.policies.actions import ActionMap
from es_queue.strategies.base import Batch
from es_queue.strategies.map_elites import Archive, MapElites
from es_queue.strategies.map_elites.cells import CVT, Cells, make_cells
from es_queue.strategies.map_elites.emitters import Parents
from workers.episode import EpisodeControl, EpisodeOptions, make_actor, play_episode

Arrays = NDArray[Any]
NOISE = 2**20
#: Of pyribs' linear projection: coordinates beyond it count less, and where the sphere's top is.
EDGE, SHIFT = 5.12, 5.12 * 0.4


def arm(vectors: Arrays) -> tuple[Arrays, Arrays]:
    """Minus the variance of the angles [k, n], and the ends of arms of length 1, [k, 2]."""
    total = np.cumsum(vectors, axis=1)
    ends = np.stack([np.cos(total).mean(axis=1), np.sin(total).mean(axis=1)], axis=1)
    return -np.var(vectors, axis=1), ends


def sphere(vectors: Arrays) -> tuple[Arrays, Arrays]:
    """From 100 at the top to 0 at the farthest corner of the box, and the sums of both halves of
    the bounded vector.
    """
    worst = vectors.shape[1] * (EDGE + SHIFT) ** 2
    value = 100 * (1 - np.square(vectors - SHIFT).sum(axis=1) / worst)
    with np.errstate(divide="ignore"):
        bounded = np.where(np.abs(vectors) < EDGE, vectors, EDGE / vectors)
    halves = np.split(bounded, 2, axis=1)
    return value, np.stack([half.sum(axis=1) for half in halves], axis=1)


def walker(vectors: Arrays) -> tuple[Arrays, Arrays]:
    """Returns of linear policies in 120 steps of one BipedalWalker, and their ``feet-contact``."""
    config = RunConfig(env="BipedalWalker-v3", obs_norm=False, policy="linear")
    request = replace(EnvironmentRequest.of(config), behaviour=FEET)
    spec, env = describe(request), open_environment(request)
    policy = make_policy(config, spec.observation_size, spec.action, spec.observation_shape)
    actions, control = ActionMap(spec.action, config.action_bound), EpisodeControl()
    options = EpisodeOptions(behave=lambda _: cast(BehaviourEnvironment, env).behaviour())
    episodes = [
        play_episode(
            env,
            make_actor(policy, vector, None),
            actions,
            evaluation_rules(120),
            1,
            control,
            options,
        )
        for vector in vectors.astype(np.float32)
    ]
    returns = np.array([episode.total for episode in episodes])
    return returns, np.array([episode.behaviour for episode in episodes], np.float64)


@dataclass(frozen=True)
class Task:
    """A function, its size, the settings of both libraries, and the generations and individuals of
    each.
    """

    title: str
    function: Callable[[Arrays], tuple[Arrays, Arrays]]
    size: int
    settings: dict[str, Any]
    budget: tuple[int, int] = 200, 200

    def config(self, seed: int, population: int) -> RunConfig:
        return RunConfig(
            objective="tasks:task",
            parameters=self.size,
            noise_size=NOISE,
            strategy="map_elites",
            seed=seed,
            population=population,
            **self.settings,
        )


TASKS = (
    Task(
        "arm, 12 joints; 1,000 centroids",
        arm,
        12,
        {
            "archive": CVT,
            "cells": (1000,),
            "behaviour_bounds": "-1:1",
            "sigma": 0.1,
            "line_sigma": 0.2,
            "qd_offset": -1.0,
        },
    ),
    Task(
        "arm, 12 joints; grid 50×50, gaussian",
        arm,
        12,
        {
            "cells": (50, 50),
            "behaviour_bounds": "-1:1",
            "sigma": 0.1,
            "emitter": "gaussian",
            "qd_offset": -1.0,
        },
    ),
    Task(
        "sphere, 20 numbers; grid 100×100",
        sphere,
        20,
        {
            "cells": (100, 100),
            "behaviour_bounds": f"{-10 * EDGE}:{10 * EDGE}",
            "sigma": 0.5,
            "line_sigma": 0.2,
        },
    ),
    Task(
        "BipedalWalker's feet, 96 parameters; grid 16×16",
        walker,
        96,
        {"cells": (16, 16), "sigma": 0.1, "line_sigma": 0.2, "qd_offset": -200.0},
        (12, 60),
    ),
)


def filled_here(task: Task, config: RunConfig, generations: int) -> tuple[float, float]:
    """QD score and coverage of es-queue's archive."""
    strategy, table = MapElites(config, task.size), NoiseTable.in_memory(NOISE)
    state = strategy.start(np.zeros(task.size, np.float32))
    slots = np.arange(config.population)
    for generation in range(generations):
        plan = make_generation_plan(config, generation, task.size, 1)
        indices = plan.slots(0, config.population).noise_indices
        parents = Parents.decode(strategy.published(state)[task.size :], task.size)
        plans = np.stack([np.full_like(slots, generation), slots], axis=1)
        noise = table.rows(indices, 0, task.size)
        vectors = strategy.children(parents, strategy.sigma(state), plans, noise)
        fitness, behaviour = task.function(vectors.astype(np.float64))
        batch = Batch(
            table,
            indices,
            fitness[:, np.newaxis],
            behaviour=behaviour.astype(np.float32)[:, np.newaxis],
            generation=generation,
        )
        state, _ = strategy.learn(state, batch)
    archive = Archive.of(config, state)
    return archive.qd_score(config.qd_offset), archive.coverage


def filled_by_pyribs(task: Task, config: RunConfig, generations: int) -> tuple[float, float]:
    """QD score and coverage of pyribs' archive with the same cells."""
    emitters = import_module("ribs.emitters")
    archive = pyribs_archive(config, task.size, make_cells(config, 2))
    line = config.line_sigma if config.emitter == "iso_line" else 0.0
    emitter = emitters.IsoLineEmitter(
        archive,
        iso_sigma=config.sigma,
        line_sigma=line,
        x0=np.zeros(task.size),
        batch_size=config.population,
        seed=config.seed,
    )
    for _ in range(generations):
        vectors = emitter.ask()
        archive.add(vectors, *task.function(vectors))
    return float(archive.stats.qd_score), float(archive.stats.coverage)


def pyribs_archive(config: RunConfig, size: int, cells: Cells) -> Any:
    archives = import_module("ribs.archives")
    common = {
        "solution_dim": size,
        "ranges": list(zip(cells.low.tolist(), cells.high.tolist(), strict=True)),
        "qd_score_offset": config.qd_offset,
        "seed": config.seed,
    }
    if config.archive == CVT:
        return archives.CVTArchive(centroids=cells.centroids, **common)
    return archives.GridArchive(dims=cells.shape, **common)


def format_row(task: Task, ours: list[tuple[float, float]], theirs: list[Any]) -> str:
    columns = [task.title]
    for measure, digits in ((0, 0), (1, 3)):
        means = []
        for results in (ours, theirs):
            values = [result[measure] for result in results]
            means.append(statistics.fmean(values))
            columns.append(
                f"{means[-1]:,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
            )
        columns.append(f"{means[0] / means[1]:.3f}")
    return f"| {' | '.join(columns)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--task", default="", help="only tasks whose title contains this")
    given = parser.parse_args()
    print("| task | QD score | pyribs | ratio | coverage | pyribs | ratio |")
    print("|---|---|---|---|---|---|---|")
    for task in (task for task in TASKS if given.task in task.title):
        generations, population = task.budget
        results: tuple[list[Any], list[Any]] = [], []
        for seed in range(given.seeds):
            config = task.config(seed, population)
            for fill, column in zip((filled_here, filled_by_pyribs), results, strict=True):
                column.append(fill(task, config, generations))
        print(format_row(task, *results), flush=True)


if __name__ == "__main__":
    main()
