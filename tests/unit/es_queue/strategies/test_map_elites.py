"""MAP-Elites: the archive and its cells, the emitters and the strategy, against naive loops."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue import testing
from es_queue.config.run_config import RunConfig
from es_queue.errors import RunFolderError, UsageError
from es_queue.strategies import Batch, State, make_strategy
from es_queue.strategies.map_elites import Archive, MapElites, Parents, load_archive
from es_queue.strategies.map_elites_archive import (
    make_cells,
)
from tests.cases import each_case
from tests.memory import quick_config, run_ring

NOISE, SIZE = testing.NOISE, testing.SIZE
BOUNDS = "-1:1,0:4"


def made(size: int = SIZE, **settings: Any) -> MapElites:
    values = {"population": 32, "seed": 1, "noise_size": len(NOISE.noise), "sigma": 0.3}
    strategy = make_strategy(RunConfig(strategy="map_elites", **{**values, **settings}), size)
    assert isinstance(strategy, MapElites)
    return strategy


def points(count: int, numbers: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, numbers))


# --- cells


def test_a_behaviour_is_in_the_box_of_the_grid_that_a_naive_loop_finds() -> None:
    cells = make_cells(RunConfig(strategy="map_elites", cells=(5, 3), behaviour_bounds=BOUNDS), 2)
    behaviours = (points(400, 2) * [3, 6] - [1.5, 1]).astype(np.float32)
    found = cells.locate(behaviours)
    for (x, y), cell in zip(behaviours.tolist(), found.tolist(), strict=True):
        column = min(4, max(0, int((x + 1) / 2 * 5)))
        row = min(2, max(0, int(y / 4 * 3)))
        assert cell == 3 * column + row
    assert cells.shape == (5, 3) and cells.count == 15
    assert np.array_equal(cells.locate(cells.centroids.astype(np.float32)), np.arange(15))
    outside = [not (-1 <= x <= 1 and 0 <= y <= 4) for x, y in behaviours.tolist()]
    assert cells.outside_share(behaviours) == sum(outside) / 400


# --- the archive


@each_case("kind", ["grid", "cvt"])
def test_the_archive_is_that_of_a_naive_loop_over_all_individuals(kind: str) -> None:
    config = RunConfig(strategy="map_elites", archive=kind, cells=(4, 4))
    random = np.random.default_rng(3)
    archive = replace(
        Archive.empty(3), cells=make_cells(config, 2), behaviour=np.empty((0, 2), np.float32)
    )
    cells, naive = make_cells(config, 2), dict[int, tuple[float, list[float]]]()
    for _ in range(6):
        behaviour = random.random((20, 2), dtype=np.float32)
        fitness = np.round(random.normal(size=20), 1)  # some are equal
        parameters = random.random((20, 3), dtype=np.float32)
        fitness[3], fitness[4], behaviour[5, 1] = np.nan, np.inf, np.nan
        chosen = archive.accepted(behaviour, fitness)
        archive = archive.with_elites(behaviour[chosen], fitness[chosen], parameters[chosen])
        for row in range(20):
            if np.isfinite(fitness[row]) and np.isfinite(behaviour[row]).all():
                cell = int(cells.locate(behaviour[row : row + 1])[0])
                if cell not in naive or fitness[row] > naive[cell][0]:
                    naive[cell] = float(fitness[row]), parameters[row].tolist()
    assert len(archive) == len(naive)
    for cell, (value, vector) in naive.items():
        row = archive.row(cell)
        assert row is not None and archive.fitness[row] == value
        assert archive.parameters[row].tolist() == vector
    assert archive.row(99) is None
    assert archive.coverage == len(naive) / 16
    assert archive.qd_score(-2.0) == pytest.approx(sum(value + 2 for value, _ in naive.values()))
    assert archive.fitness[archive.best] == max(value for value, _ in naive.values())


# --- emitters


@each_case("line", [0.0, 0.5])
def test_children_are_those_of_a_naive_loop_over_the_papers_formula(line: float) -> None:
    random = np.random.default_rng(1)
    parents = Parents(random.random((4, SIZE), dtype=np.float32), np.array([3, 1, 0, 0, 2, 1]))
    slots, noise = np.array([0, 1, 5]), NOISE.rows(np.array([7, 70, 700]), 0, SIZE)
    normals = np.array([1.5, -0.5, 0.25], np.float32)
    children = parents.children(slots, noise, normals, (0.1, line))
    for child, (first, second), row, normal in zip(
        children, [(3, 1), (0, 0), (2, 1)], noise, normals, strict=True
    ):
        x1, x2 = parents.elites[first], parents.elites[second]
        for place in range(SIZE):
            expected = x1[place] + 0.1 * row[place] + line * normal * (x2[place] - x1[place])
            assert child[place] == pytest.approx(expected, abs=1e-6)


# --- the strategy


def generation(strategy: MapElites, state: State, number: int) -> tuple[Batch, np.ndarray]:
    """A batch on the sphere, and its individuals as the workers build them."""
    indices = np.random.default_rng(number).choice(50_000, 32, replace=False)
    published, build = strategy.published(state), strategy.builder(NOISE)
    individuals = np.stack(
        [
            build(
                published,
                strategy.sigma(state),
                number,
                slot,
                index,
            )
            for slot, index in enumerate(indices.tolist())
        ]
    )
    fitness, behaviour = testing.sphere(individuals), 0.5 + individuals[:, :, :2]
    return Batch(NOISE, indices, fitness, behaviour=behaviour, generation=number), individuals


@each_case("emitter", ["iso_line", "gaussian"])
def test_an_elite_is_the_very_vector_that_a_worker_played(emitter: str) -> None:
    strategy = made(emitter=emitter)
    state, seen = strategy.start(np.zeros(SIZE, np.float32)), []
    for number in range(5):
        batch, individuals = generation(strategy, state, number)
        seen.append(individuals[:, 0])
        state, figures = strategy.learn(state, batch)
    archive = Archive.of(strategy.config, state)
    played = {row.tobytes() for row in np.concatenate(seen)}
    assert len(archive) > 20 and all(row.tobytes() in played for row in archive.parameters)
    assert np.array_equal(archive.fitness, testing.sphere(archive.parameters))
    assert np.array_equal(state["parameters"], archive.parameters[archive.best])
    assert figures["best_fitness"] == archive.fitness.max()
    assert figures["coverage"] == len(archive) / 1024
    assert figures["qd_score"] == pytest.approx(archive.fitness.sum())


def test_a_batch_of_several_publications_is_learnt_from_the_parents_of_each() -> None:
    strategy = made(schedule="async")
    first = testing.begin(strategy)
    old, old_individuals = generation(strategy, first, 3)
    second, _ = strategy.learn(first, old)
    new, new_individuals = generation(strategy, second, 4)
    plans = [(number, slot) for number in (3, 4) for slot in range(32)]
    both = Batch(
        NOISE,
        np.concatenate([old.noise_indices, new.noise_indices]),
        np.concatenate([old.fitness, new.fitness]) + 100,
        behaviour=np.concatenate([old.behaviour, new.behaviour]),
        generation=4,
        slot_plans=np.array(plans),
        spreads=[
            (slice(0, 32), strategy.spread(first)),
            (slice(32, 64), strategy.spread(second)),
        ],
    )
    after, _ = strategy.learn(second, both)
    archive = Archive.of(strategy.config, after)
    played = {row.tobytes() for row in np.concatenate([old_individuals, new_individuals])[:, 0]}
    fresh = archive.parameters[archive.fitness > 50]
    assert len(fresh) > 20 and all(row.tobytes() in played for row in fresh)


def saved_archive(file: Path, state: State, config: RunConfig) -> Path:
    """A checkpoint with a strategy's ``state``."""
    vectors = dict.fromkeys(("parameters", "obs_mean", "obs_std"), np.zeros(SIZE, np.float32))
    meta = np.array(json.dumps({"format": 1, "config": config.to_dict()}))
    np.savez(file, meta=meta, **vectors, **{f"strategy.{name}": state[name] for name in state})
    return file


def test_an_archive_is_read_from_a_checkpoint(tmp_path: Path) -> None:
    strategy = made(archive="cvt", cells=(30,), env="CartPole-v1")
    state, file = testing.begin(strategy), tmp_path / "generation-00000003.npz"
    archive, config = load_archive(saved_archive(file, state, strategy.config))
    assert config == strategy.config
    assert np.array_equal(archive.parameters, state["elite_parameters"])
    with pytest.raises(RunFolderError, match="name a run of the strategy map_elites"):
        load_archive(saved_archive(file, {}, strategy.config))


#: From (elites' cell, fitness, behaviour, parameters) to arrays that no run writes.
PLANTED: dict[str, Any] = {
    "elite_cell": [
        lambda cell: cell[:1],
        lambda cell: cell + 2**62,
        lambda cell: np.zeros_like(cell),
    ],
    "elite_fitness": [
        lambda fitness: np.full_like(fitness, np.nan),
        lambda fitness: np.tile(fitness[:, np.newaxis], (1, 3)),
    ],
    "elite_behaviour": [
        lambda behaviour: behaviour[:, 0],
        lambda behaviour: np.zeros((len(behaviour), 600), np.float32),
    ],
    "elite_parameters": [
        lambda parameters: parameters[:, :2],
        lambda parameters: np.full_like(parameters, np.inf),
    ],
    "archive_centroids": [
        lambda centroids: np.zeros((5, 7)),
        lambda centroids: np.full((30, 2), 0.5),
    ],
}


@each_case("kind", ["grid", "cvt"])
@each_case("name", PLANTED)
def test_a_planted_archive_is_refused_in_a_sentence(kind: str, name: str, tmp_path: Path) -> None:
    """By the commands that read it, and before a run continues from it."""
    strategy = made(archive=kind, cells=(30,), env="CartPole-v1", behaviour_bounds="-1:1")
    state = testing.begin(strategy)
    strategy.validate_state(state, 2)
    for plant in PLANTED[name]:
        planted = {**state, name: plant(state[name])}
        with pytest.raises(RunFolderError, match=r"cannot be used: |not of plain numbers"):
            load_archive(saved_archive(tmp_path / "a.npz", planted, strategy.config))
        with pytest.raises((RunFolderError, UsageError)):
            strategy.validate_state(planted, 2)


@each_case(
    ("columns", "settings", "sentence"),
    [
        (200_000_000, {}, "a behaviour has 200,000,000 numbers"),
        (2, {"archive": "cvt", "cells": (2**20, 2**20)}, "archive cvt has 2 to 100,000 cells"),
        (2, {"archive": "cvt", "cells": (99_999,)}, "not float64 \\[99,999, 2\\]"),
        (20, {"cells": (32,)}, "20 numbers per behaviour make more than 1,048,576"),
    ],
)
def test_an_archive_that_declares_too_much_is_refused_before_it_takes_memory(
    columns: int, settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    config = RunConfig(env="CartPole-v1", strategy="map_elites", **settings)
    empty = {
        **Archive.empty(SIZE).to_arrays(),
        "elite_behaviour": np.empty((0, columns), np.float32),
    }
    file = saved_archive(tmp_path / "a.npz", empty, config)
    tracemalloc.start()
    with pytest.raises(RunFolderError, match=sentence):
        load_archive(file)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_a_run_notes_once_that_its_bounds_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    config = quick_config(
        strategy="map_elites", cells=(3,), behaviour_bounds="50:51", population=8, generations=3
    )
    with caplog.at_level("WARNING", "es_queue.loop"):
        run_ring(config)
    (note,) = [text for text in caplog.messages if "behaviour_bounds" in text]
    assert note.startswith(
        "generation 0: 100% of the behaviours are outside behaviour_bounds 50:51"
    )


@each_case(
    ("settings", "sentence"),
    [
        ({"cells": (4, 4, 4)}, "cells has 3 entries, but a behaviour has 2 numbers"),
        ({"behaviour_bounds": "0:1,0:1,0:1"}, "behaviour_bounds has 3 entries"),
        ({"cells": (2000,)}, "make more than 1,048,576 cells"),
    ],
)
def test_an_archive_that_does_not_fit_the_behaviour_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    strategy = made(**settings)
    state = strategy.start(np.zeros(SIZE, np.float32))
    with pytest.raises(UsageError, match=sentence):
        strategy.learn(state, testing.run_generation(strategy, state, 0))
