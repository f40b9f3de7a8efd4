"""MAP-Elites: the archive and its cells, the emitters and the strategy, against naive loops."""

from __future__ import annotations

import hashlib
import itertools
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
from es_queue.numerics.normalization import RunningMoments
from es_queue.strategies import Batch, State, make_strategy
from es_queue.strategies.map_elites import Archive, MapElites, Parents, line_normals, load_archive
from es_queue.strategies.map_elites_archive import (
    centroids_of,
    make_cells,
    nearest,
)
from master.loop import listeners
from master.run.setup import prepare_run
from tests.cases import each_case
from tests.parts import TABLE
from tests.ring import quick_config, run_ring

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
    cells = make_cells(RunConfig(cells=(5, 3), behaviour_bounds=BOUNDS), 2)
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


@each_case(("numbers", "count"), [(1, 40), (2, 300), (2, 3), (3, 200), (5, 60), (40, 30)])
def test_the_nearest_centroid_is_that_of_a_naive_loop_and_ties_go_to_the_lower_number(
    numbers: int, count: int
) -> None:
    centroids = np.round(points(count, numbers) * 16) / 16  # many are equal
    some = np.concatenate([points(500, numbers, 1), np.clip(centroids + 1 / 32, 0, 1)])
    for point, cell in zip(some, nearest(some, centroids).tolist(), strict=True):
        squares = [sum((a - b) ** 2 for a, b in zip(point, one, strict=True)) for one in centroids]
        assert cell == squares.index(min(squares))


@each_case(("numbers", "digest"), [(2, "cd6847812cf8c48b"), (24, "88dfe283cb2c43b9")])
def test_centroids_have_the_same_bits_on_every_machine(numbers: int, digest: str) -> None:
    units = centroids_of(50, numbers)
    assert hashlib.blake2b(units.tobytes(), digest_size=8).hexdigest() == digest


def test_the_cells_are_made_before_the_first_generation(caplog: pytest.LogCaptureFixture) -> None:
    """They can take long, and the settings may fit no behaviour of the environment."""
    strategy = made(archive="cvt", cells=(30,))
    with caplog.at_level("INFO", "es_queue"):
        state = strategy.begin(
            strategy.start(np.zeros(SIZE, np.float32)), RunningMoments.empty(2), np.zeros, 2
        )
    assert caplog.messages == ["computing 30 centroids of 2 numbers for the archive"]
    assert np.array_equal(state["archive_centroids"], centroids_of(30, 2))
    strategy.validate_state(state, 2)
    config = quick_config(strategy="map_elites", cells=(2, 2))
    with pytest.raises(UsageError, match="cells has 2 entries, but a behaviour has 4 numbers"):
        prepare_run(config, table=TABLE).initial_state()


def test_centroids_that_take_too_long_are_refused() -> None:
    config = RunConfig(archive="cvt", cells=(100_000,))
    with pytest.raises(UsageError, match="use at most 5590"):
        make_cells(config, 128)


def test_bounds_that_most_behaviours_are_outside_of_are_noted_with_their_range() -> None:
    strategy = made(behaviour_bounds="0:1")
    behaviour = np.array([[-3.0, 0.5], [2.25, 7.0], [0.5, 0.5], [np.nan, 9.0]], np.float32)
    assert strategy.behaviour_note(behaviour) == (
        "67% of the behaviours are outside behaviour_bounds 0:1, and so in few cells: begin a new "
        "run with --behaviour-bounds LOW:HIGH for each number; these behaviours have -3:2.25,0.5:7"
    )
    assert strategy.behaviour_note(np.tile(behaviour, 3)).endswith("have -3:7")
    assert strategy.behaviour_note(behaviour[2:]) == strategy.behaviour_note(behaviour[3:]) == ""


def test_centroids_are_spread_more_evenly_than_random_points() -> None:
    samples = points(5000, 2, 7)

    def shares(centroids: np.ndarray) -> np.ndarray:
        return np.bincount(nearest(samples, centroids), minlength=50) / 5000

    assert shares(centroids_of(50, 2)).std() < 0.5 * shares(points(50, 2)).std()


def test_cells_of_centroids_are_measured_in_the_box_not_in_the_units_of_the_behaviour() -> None:
    config = RunConfig(archive="cvt", cells=(40,), behaviour_bounds="0:1,0:1000")
    cells, small = make_cells(config, 2), make_cells(replace(config, behaviour_bounds="0:1"), 2)
    behaviours = points(200, 2).astype(np.float32)
    assert cells.count == 40 and cells.shape == (40,)
    assert np.allclose(cells.centroids, small.centroids * [1, 1000])
    wide = behaviours * np.float32([1, 1000])
    assert (cells.locate(wide) == small.locate(behaviours)).mean() > 0.99


# --- the archive


@each_case("kind", ["grid", "cvt"])
def test_the_archive_is_that_of_a_naive_loop_over_all_individuals(kind: str) -> None:
    config = RunConfig(archive=kind, cells=(4, 4))
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


def test_parents_are_drawn_evenly_and_normals_are_normal() -> None:
    strategy = made(population=20_000, cells=(10,))
    elites = np.eye(10, SIZE, dtype=np.float32)
    parents = strategy.parents({"elite_parameters": elites, "updates": np.array(0)})
    drawn = np.bincount(parents.draws, minlength=10)
    assert len(drawn) == 10 and (np.abs(drawn - 4000) < 300).all()
    plans = np.stack([np.arange(20_000) % 7, np.arange(20_000)], axis=1)
    normals = line_normals(1, plans)
    assert normals.dtype == np.float32
    assert abs(normals.mean()) < 0.03 and abs(normals.std() - 1) < 0.03
    assert np.array_equal(line_normals(1, plans[40:45]), normals[40:45])


@each_case(
    "values",
    [[], [1], [0, 1], [1, np.nan], [2, 1, *[0.0] * SIZE], [1, 1, *[0.0] * SIZE, 1], [1.5, 1]],
)
def test_an_invalid_publication_of_parents_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="parents"):
        Parents.decode(np.array(values, np.float32), SIZE)


def test_a_publication_has_each_parent_once() -> None:
    strategy = made(cells=(3, 3))
    state = testing.begin(strategy)
    parents = Parents.decode(strategy.published(state)[SIZE:], SIZE)
    assert len(parents.elites) == len(np.unique(parents.elites, axis=0)) <= 9
    assert len(parents.draws) == 64


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


def test_the_first_individuals_have_their_own_deviation() -> None:
    strategy = made(initial_sigma=2.0)
    state = strategy.start(np.zeros(SIZE, np.float32))
    assert strategy.sigma(state) == 2.0
    assert strategy.sigma(testing.begin(strategy)) == 0.3


def test_a_state_keeps_its_centroids() -> None:
    strategy = made(archive="cvt", cells=(30,))
    state = testing.begin(strategy)
    archive = Archive.of(strategy.config, {**state, "archive_centroids": points(30, 2)})
    assert archive.cells is not None
    assert np.array_equal(archive.cells.centroids, points(30, 2))


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
        lambda cell: cell[:, np.newaxis],
        lambda cell: cell.astype(float),
        lambda cell: cell.astype("U5"),
        lambda cell: cell - 10**6,
        lambda cell: cell + 2**62,
        lambda cell: np.zeros_like(cell),
        lambda cell: np.array(3),
    ],
    "elite_fitness": [
        lambda fitness: np.full_like(fitness, np.nan),
        lambda fitness: fitness.astype("U9"),
        lambda fitness: fitness.astype(complex),
        lambda fitness: np.tile(fitness[:, np.newaxis], (1, 3)),
    ],
    "elite_behaviour": [
        lambda behaviour: behaviour[:, 0],
        lambda behaviour: behaviour[:, :0],
        lambda behaviour: behaviour[:, :1],
        lambda behaviour: np.tile(behaviour, (1, 2))[:, :3],
        lambda behaviour: np.full_like(behaviour, np.nan),
        lambda behaviour: np.zeros((len(behaviour), 600), np.float32),
    ],
    "elite_parameters": [
        lambda parameters: parameters[:, 0],
        lambda parameters: parameters[:, :2],
        lambda parameters: np.full_like(parameters, np.inf),
        lambda parameters: parameters.astype("U9"),
        lambda parameters: parameters.astype(np.float64),
    ],
    "archive_centroids": [
        lambda centroids: np.zeros((5, 7)),
        lambda centroids: np.array(5.0),
        lambda centroids: np.full((30, 2), 2.0),
        lambda centroids: np.full((30, 2), np.nan),
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


@each_case("config", [[], "text", None, {"sigma": "wide"}, {"sigmas": 1}])
def test_an_archive_with_planted_settings_is_refused(config: Any, tmp_path: Path) -> None:
    strategy = made(env="CartPole-v1")
    file = saved_archive(tmp_path / "a.npz", testing.begin(strategy), strategy.config)
    with np.load(file) as saved:
        arrays = dict(saved)
    np.savez(file, **{**arrays, "meta": np.array(json.dumps({"format": 1, "config": config}))})
    with pytest.raises(RunFolderError, match="cannot be used: "):
        load_archive(file)


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


@each_case("name", ["parameters", "updates"])
def test_a_run_does_not_continue_from_planted_arrays(name: str) -> None:
    strategy = made()
    state = testing.begin(strategy)
    strategy.validate_state(state, 2)
    for planted in (state[name].astype("U3"), state[name][np.newaxis], np.empty((2, 2))):
        with pytest.raises(RunFolderError, match=name):
            strategy.validate_state({**state, name: planted}, 2)


def test_a_run_does_not_continue_from_a_planted_count() -> None:
    strategy = made()
    state = testing.begin(strategy)
    for value in (-(2**62), -1, 2**63 - 1):
        with pytest.raises(RunFolderError, match="updates' holds a number that is no count"):
            strategy.validate_state({**state, "updates": np.array(value)}, 2)


def test_a_run_does_not_continue_from_an_archive_of_other_behaviours() -> None:
    setup = prepare_run(quick_config(strategy="map_elites", cells=(2,)), table=TABLE)
    state, archive = setup.initial_state(), Archive.of(setup.config, setup.initial_state().strategy)
    setup.validate_state(state)
    assert archive.cells is not None
    planted = replace(archive, behaviour=np.empty((0, 2), np.float32)).to_arrays()
    with pytest.raises(RunFolderError, match="have 2 numbers, but those of this run have 4"):
        setup.validate_state(replace(state, strategy={**state.strategy, **planted}))


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


def test_a_note_that_comes_and_goes_is_not_repeated_each_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = itertools.cycle(["far", ""])
    monkeypatch.setattr(MapElites, "behaviour_note", lambda self, behaviour: next(notes))
    monkeypatch.setattr(listeners, "NOTED_EVERY", 5)
    config = quick_config(strategy="map_elites", cells=(3,), population=8, generations=12)
    with caplog.at_level("WARNING", "es_queue.loop"):
        run_ring(config)
    noted = [text for text in caplog.messages if text.endswith("far")]
    assert noted == ["generation 0: far", "generation 6: far", "generation 12: far"]


@each_case(
    ("settings", "sentence"),
    [
        ({"behaviour_bounds": "1:0"}, "use LOW:HIGH"),
        ({"behaviour_bounds": "0:1,"}, "use LOW:HIGH"),
        ({"behaviour_bounds": "0:inf"}, "use LOW:HIGH"),
        ({"cells": (2000, 2000)}, "has 2 to 1,048,576 cells: use fewer"),
        ({"cells": (1000, 1000), "archive": "cvt"}, "has 2 to 100,000 cells: use fewer"),
        ({"cells": (1,)}, "cells is 1, but archive grid has 2 to 1,048,576 cells: use more"),
    ],
)
def test_an_archive_that_cannot_be_made_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        made(**settings)


def test_an_archive_that_takes_too_much_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="use at most 268 cells"):
        made(size=1_000_000, cells=(269,), noise_size=2**21)


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
