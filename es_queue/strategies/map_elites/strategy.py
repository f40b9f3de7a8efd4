"""Mouret, Clune 2015, Illuminating search spaces by mapping elites.

https://arxiv.org/abs/1504.04909: an archive keeps the best individual of each cell of behaviours.
Each generation mutates elites drawn uniformly from it.

A child of ``iso_line`` has two parents, so a family is no tree, and a chain of seeds would grow by
every ancestor of both. Elites are therefore vectors: in the state, and those that a generation
mutates in its publication, each once. A publication has at most two per individual and 64 MiB of
them. An archive has at most ``cells`` elites of 4 · (size + b) + 16 bytes, twice while the master
learns.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.errors import RunFolderError, UsageError
from es_queue.files import MAX_NPZ
from es_queue.numerics.arrays import Floats, Integers, typed_array
from es_queue.numerics.normalization import RunningMoments
from es_queue.numerics.ordered_sums import NoiseRows, norm
from es_queue.strategies.base import Batch, Builder, Draw, Info, State, Strategy
from es_queue.strategies.map_elites.archive import Archive
from es_queue.strategies.map_elites.cells import (
    CVT,
    box,
    make_cells,
    outside_share,
    parse_bounds,
    validate_count,
)
from es_queue.strategies.map_elites.emitters import (
    HEADER_FLOATS,
    ISO_LINE,
    Parents,
    draw_count,
    draw_parents,
    line_normals,
)

LOGGER = logging.getLogger("es_queue.strategies")
#: A larger share of behaviours outside the bounds is noted, with the range of each number unless
#: there are more.
MOST_OUTSIDE, MOST_PAIRS = 0.5, 4
#: More updates than a run can reach.
MOST_UPDATES = 2**40
#: Bytes that the parameters of all elites can have: half of the largest checkpoint that is read.
MAX_ARCHIVE_BYTES = MAX_NPZ // 2


class MapElites(Strategy):
    """Individuals are children of elites; the unperturbed policy is the elite with the greatest
    fitness.

    State: ``parameters`` of that elite; the ``Archive``; and ``updates``, which numbers the draws
    of parents. Before the first elite, all individuals are children of the first parameters.
    """

    name: ClassVar[str] = "map_elites"
    per_slot: ClassVar[int] = 1
    asynchronous: ClassVar[bool] = True
    wants_behaviour: ClassVar[bool] = True
    compares_generations: ClassVar[bool] = True
    #: σ of the paper on ``iso_line``; parameters of policies are about 1.
    SIGMA: ClassVar[float] = 0.01
    settings: ClassVar[tuple[str, ...]] = (
        "archive",
        "cells",
        "behaviour_bounds",
        "emitter",
        "line_sigma",
        "initial_sigma",
        "qd_offset",
    )

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        super().__init__(config, size, pace)
        parse_bounds(config.behaviour_bounds)
        validate_count(config.archive, config.cells)
        self.validate_memory(math.prod(config.cells))

    def validate_memory(self, count: int) -> None:
        """Raises UsageError if the elites of so many cells can take too much memory."""
        if 4 * self.size * count > MAX_ARCHIVE_BYTES:
            raise UsageError(
                f"cells is {','.join(map(str, self.config.cells))}, and {count:,} policies of "
                f"{self.size:,} parameters take {4e-9 * self.size * count:.2g} GB: use at most "
                f"{MAX_ARCHIVE_BYTES // (4 * self.size)} cells"
            )

    def begin(
        self, state: State, moments: RunningMoments, draw: Draw, behaviour_size: int
    ) -> State:
        """With the cells, whose centroids can take long."""
        if self.config.archive == CVT:
            LOGGER.info(
                f"computing {math.prod(self.config.cells):,} centroids of {behaviour_size} numbers "
                "for the archive"
            )
        return {**state, **self.archive(state, behaviour_size).to_arrays()}

    def behaviour_note(self, behaviour: Floats) -> str:
        """Bounds that most behaviours are outside of make an archive of its edge."""
        seen = behaviour[np.isfinite(behaviour).all(axis=1)]
        low, high = box(self.config, behaviour.shape[1])
        share = outside_share(seen, low, high)
        if share <= MOST_OUTSIDE:
            return ""
        lowest, highest = seen.min(axis=0), seen.max(axis=0)
        if len(low) > MOST_PAIRS:
            lowest, highest = lowest.min(keepdims=True), highest.max(keepdims=True)
        pairs = zip(lowest.tolist(), highest.tolist(), strict=True)
        return (
            f"{share:.0%} of the behaviours are outside behaviour_bounds "
            f"{self.config.behaviour_bounds}, and so in few cells: begin a new run with "
            "--behaviour-bounds LOW:HIGH for each number; these behaviours have "
            f"{','.join(f'{least:.3g}:{most:.3g}' for least, most in pairs)}"
        )

    def validate_state(self, state: State, behaviour_size: int) -> None:
        """Its archive and what is drawn by number."""
        archive = Archive.read(self.config, state, self.size)
        if archive.cells and len(archive.cells.low) != behaviour_size:
            raise RunFolderError(
                f"its behaviours have {len(archive.cells.low)} numbers, but those of this run have "
                f"{behaviour_size}"
            )
        typed_array(state, "parameters", np.float32, (self.size,))
        updates = typed_array(state, "updates", np.int64, ())
        if not 0 <= updates < MOST_UPDATES:
            raise RunFolderError("its array 'updates' holds a number that is no count of a run")

    # --- what is published: the best elite, and the parents

    def start(self, parameters: Floats) -> State:
        """The first parameters and an empty archive."""
        return {
            **super().start(parameters),
            **Archive.empty(self.size).to_arrays(),
            "updates": np.array(0, np.int64),
        }

    def sigma(self, state: State) -> float:
        """``initial_sigma`` until there is an elite."""
        if self.config.initial_sigma and not len(state["elite_cell"]):
            return self.config.initial_sigma * self.pace.sigma
        return super().sigma(state)

    def published(self, state: State) -> Floats:
        """The best elite, float32 [size], then the encoded ``Parents``."""
        return np.concatenate([state["parameters"], self.parents(state).encode()])

    def parents(self, state: State) -> Parents:
        """The parents of the state's generation."""
        elites = state["elite_parameters"]
        count = draw_count(self.config.population, self.size)
        if not len(elites):
            return Parents(state["parameters"][np.newaxis], np.zeros(count, np.int64))
        drawn = draw_parents(self.config.seed, int(state["updates"]), count, len(elites))
        rows, draws = np.unique(drawn, return_inverse=True)
        return Parents(elites[rows], draws)

    def fits(self, size: int, observations: int) -> bool:
        """With at least one parent that is drawn once; ``builder`` checks the rest."""
        return size > 2 * self.size + HEADER_FLOATS

    def builder(self, noise: NoiseRows) -> Builder:
        """Decodes the parents of each publication once. Raises ValueError for invalid ones."""
        current: list[tuple[Floats, Parents]] = []

        def build(
            published: Floats, sigma: float, generation: int, slot: int, index: int
        ) -> Floats:
            if not current or current[0][0] is not published:
                current[:] = [(published, Parents.decode(published[self.size :], self.size))]
            (row,) = noise.views(np.array([index]), 0, self.size)
            plan = np.array([[generation, slot]])
            return self.children(current[0][1], sigma, plan, row[np.newaxis])

        return build

    def children(self, parents: Parents, sigma: float, plans: Integers, noise: Floats) -> Floats:
        """Individuals of (generation, slot) ``plans`` int64 [S, 2], float32 [S, size]."""
        line = self.config.line_sigma if self.config.emitter == ISO_LINE else 0.0
        normals = line_normals(self.config.seed, plans)
        return parents.children(plans[:, 1], noise, normals, (sigma, line))

    # --- what the master learns

    def spread(self, state: State) -> Floats:
        """σ, then the encoded parents."""
        sigma = np.array([self.sigma(state)], np.float32)
        return np.concatenate([sigma, self.parents(state).encode()])

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The best of each cell enter the archive, in the order of their slots."""
        fitness, behaviour = batch.fitness[:, 0], batch.behaviour[:, 0]
        archive = self.archive(state, behaviour.shape[1])
        assert archive.cells is not None
        chosen = archive.accepted(behaviour, fitness)
        after_archive = archive.with_elites(
            behaviour[chosen], fitness[chosen], self.rebuilt(state, batch, chosen)
        )
        before = state["parameters"]
        best = after_archive.parameters[after_archive.best] if len(after_archive) else before
        after = {
            **state,
            **after_archive.to_arrays(),
            "parameters": best,
            "updates": np.array(state["updates"] + 1),
        }
        return after, {
            **self.figures(after, 0.0, norm(best - before)),
            "accepted": float(len(chosen)),
            "outside": outside_share(behaviour, archive.cells.low, archive.cells.high),
        }

    def archive(self, state: State, numbers: int) -> Archive:
        """The archive, for behaviours of so many numbers. Raises UsageError if the settings do not
        fit them.
        """
        archive = Archive.of(self.config, state)
        if archive.cells is not None:
            return archive
        cells = make_cells(self.config, numbers)
        self.validate_memory(cells.count)
        return replace(archive, cells=cells, behaviour=np.empty((0, numbers), np.float32))

    def rebuilt(self, state: State, batch: Batch, chosen: Integers) -> Floats:
        """The very vectors that workers played, float32 [k, size], of the ascending rows
        ``chosen`` of the batch.
        """
        plans, built = batch.slot_plans, np.empty((len(chosen), self.size), np.float32)
        for rows, spread in batch.by_spread(self.spread(state)):
            within = np.flatnonzero(np.isin(chosen, np.arange(len(plans))[rows]))
            if not len(within):
                continue
            parents = Parents.decode(spread[1:], self.size)
            noise = batch.noise.rows(batch.noise_indices[chosen[within]], 0, self.size)
            built[within] = self.children(parents, spread[0], plans[chosen[within]], noise)
        return built

    def figures(
        self, state: State, gradient_norm: float, step_norm: float, *, no_step: bool = False
    ) -> Info:
        """Also ``qd_score``, ``coverage``, ``elites`` and ``best_fitness``, once there is an
        elite.
        """
        figures = super().figures(state, gradient_norm, step_norm, no_step=no_step)
        archive = Archive.of(self.config, state)
        if not len(archive):
            return figures
        return {
            **figures,
            "qd_score": archive.qd_score(self.config.qd_offset),
            "coverage": archive.coverage,
            "elites": float(len(archive)),
            "best_fitness": float(archive.fitness[archive.best]),
        }
