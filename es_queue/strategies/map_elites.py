"""Mouret, Clune 2015, Illuminating search spaces by mapping elites.

https://arxiv.org/abs/1504.04909: an archive keeps the best individual of each cell of behaviours.
Each generation mutates elites drawn uniformly from it. The emitter ``gaussian`` is the paper's, x₁
+ σ ε. ``iso_line`` is Vassiliades, Mouret 2018, Discovering the elite hypervolume by leveraging
interspecies correlation, https://arxiv.org/abs/1804.03906: x₁ + σ ε + σ_line n (x₂ − x₁), with ε
from N(0, I) and n from N(0, 1).

A child has two parents, so a chain of seeds would grow by every ancestor of both. Elites are
therefore vectors: up to ``cells`` of them in the state, and in a publication those that it mutates.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.config.settings import declared, setting
from es_queue.environments.episode_rules import parse_bounds
from es_queue.errors import RunFolderError, UsageError
from es_queue.files import MAX_NPZ
from es_queue.numerics.arrays import Floats, Integers, NoiseRows, norm, typed_array
from es_queue.numerics.normals import directions, radii
from es_queue.numerics.statistics import Moments
from es_queue.slot_plan import MEMBER, PARENTS, multiply_shift, raw_words
from es_queue.strategies.base import Batch, BehaviourSettings, Builder, Draw, Info, State, Strategy
from es_queue.strategies.map_elites_archive import (
    CVT,
    Archive,
    Cells,
    load_archive,
    make_cells,
    validate_count,
)

__all__ = ["Archive", "MapElites", "load_archive"]

LOGGER = logging.getLogger("es_queue.strategies")
ISO_LINE = "iso_line"
#: A larger share of behaviours outside the bounds is noted, with the range of each number unless
#: there are more.
MOST_OUTSIDE, MOST_PAIRS = 0.5, 4
#: More updates than a run can reach.
MOST_UPDATES = 2**40
#: Bytes that the parameters of all elites can have: half of the largest checkpoint that is read.
MAX_ARCHIVE_BYTES = MAX_NPZ // 2
#: Bytes of the elites that are published for one generation.
MAX_PARENT_BYTES = 2**26
HEADER_FLOATS = 2
#: Numbers up to here are exact in float32.
MAX_DRAWS = 2**24


class ArchiveSettings(BehaviourSettings):
    archive = setting(
        "grid",
        "cells of behaviours: equal boxes (grid), or the nearest of evenly spread centroids "
        "(cvt), for behaviours of many numbers",
        choices=("grid", "cvt"),
    )
    cells = setting(
        (32, 32),
        "cells along each number of a behaviour; one entry holds for all of them; the product "
        "is the number of centroids of archive cvt",
        low=1,
        high=2**20,
        metavar="N,N",
    )
    behaviour_bounds = setting(
        "0:1",
        "LOW:HIGH of each number of a behaviour, joined by commas; one pair holds for all of "
        "them; behaviours outside count in the nearest cell",
        form=parse_bounds,
        metavar="LOW:HIGH,...",
    )
    qd_offset = setting(
        0.0, "lowest possible fitness, subtracted from that of each elite in qd_score"
    )


class ArchiveStrategy(Strategy):
    """A strategy that fills an archive; the unperturbed policy is the elite with the greatest
    fitness.

    State: ``parameters`` of that elite; the ``Archive``; and ``updates``, which numbers the draws
    of elites.
    """

    Settings = ArchiveSettings
    per_slot: ClassVar[int] = 1
    wants_behaviour: ClassVar[bool] = True
    compares_generations: ClassVar[bool] = True

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        super().__init__(config, size, pace)
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

    # --- the first state, and one from a checkpoint

    def start(self, parameters: Floats) -> State:
        return {
            **super().start(parameters),
            **Archive.empty(self.size).to_arrays(),
            "updates": np.array(0, np.int64),
        }

    def begin(self, state: State, moments: Moments, draw: Draw, behaviour_size: int) -> State:
        """With the cells, whose centroids can take long."""
        if self.config.archive == CVT:
            LOGGER.info(
                f"computing {math.prod(self.config.cells):,} centroids of {behaviour_size} numbers "
                "for the archive"
            )
        return {**state, **self.archive(state, behaviour_size).to_arrays()}

    def validate_state(self, state: State, behaviour_size: int) -> None:
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

    # --- what the master learns

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The best of each cell enter the archive, in the order of their slots."""
        fitness, behaviour = batch.fitness[:, 0], batch.behaviour[:, 0]
        archive = self.archive(state, behaviour.shape[1])
        cells = archive.cells
        assert cells is not None
        chosen = archive.accepted(behaviour, fitness)
        built = self.rebuilt(state, batch, chosen)
        archive = archive.with_elites(behaviour[chosen], fitness[chosen], built)
        before = state["parameters"]
        after = {
            **state,
            **archive.to_arrays(),
            "parameters": archive.parameters[archive.best] if len(archive) else before,
            "updates": np.array(state["updates"] + 1),
        }
        return after, {
            **self.figures(after, 0.0, norm(after["parameters"] - before)),
            "accepted": float(len(chosen)),
            "outside": cells.outside_share(behaviour),
        }

    @abstractmethod
    def rebuilt(self, state: State, batch: Batch, chosen: Integers) -> Floats:
        """The vectors that workers played, float32 [k, size], of the ascending rows ``chosen``."""

    def archive(self, state: State, numbers: int) -> Archive:
        """The archive, for behaviours of so many numbers. Raises UsageError if the settings do not
        fit.
        """
        archive = Archive.of(self.config, state)
        if archive.cells is not None:
            return archive
        cells = make_cells(self.config, numbers)
        self.validate_memory(cells.count)
        return replace(archive, cells=cells, behaviour=np.empty((0, numbers), np.float32))

    def figures(
        self, state: State, gradient_norm: float, step_norm: float, *, no_step: bool = False
    ) -> Info:
        """Also ``qd_score``, ``coverage``, ``elites`` and ``best_fitness``."""
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

    def behaviour_note(self, behaviour: Floats) -> str:
        """Bounds that most behaviours are outside of make an archive of its edge."""
        seen = behaviour[np.isfinite(behaviour).all(axis=1)]
        bounds = parse_bounds(self.config.behaviour_bounds)
        low, high = np.broadcast_to(bounds, (seen.shape[1], 2)).T
        share = Cells(low, high, ()).outside_share(seen)
        if share <= MOST_OUTSIDE:
            return ""
        lowest, highest = seen.min(axis=0), seen.max(axis=0)
        if len(lowest) > MOST_PAIRS:
            lowest, highest = lowest.min(keepdims=True), highest.max(keepdims=True)
        pairs = zip(lowest.tolist(), highest.tolist(), strict=True)
        return (
            f"{share:.0%} of the behaviours are outside behaviour_bounds "
            f"{self.config.behaviour_bounds}, and so in few cells: begin a new run with "
            "--behaviour-bounds LOW:HIGH for each number; these behaviours have "
            f"{','.join(f'{least:.3g}:{most:.3g}' for least, most in pairs)}"
        )


class MapElites(ArchiveStrategy):
    """Individuals are children of elites; before the first elite, of the first parameters."""

    class Settings(ArchiveSettings):
        emitter = setting(
            "iso_line",
            "how individuals are made of elites: noise and a step towards or away from a second "
            "elite (iso_line), or only noise (gaussian)",
            choices=("iso_line", "gaussian"),
        )
        line_sigma = setting(
            0.2,
            "standard deviation of the step to the second elite, in distances of the two",
            low=0.0,
            high=1000.0,
        )
        initial_sigma = setting(
            0.0,
            "standard deviation of the first individuals around the first parameters; auto is "
            "sigma",
            low=0.0,
            high=1000.0,
            word="auto",
        )

    name: ClassVar[str] = "map_elites"
    asynchronous: ClassVar[bool] = True
    #: σ of the paper on ``iso_line``; parameters of policies are about 1.
    SIGMA: ClassVar[float] = 0.01

    @classmethod
    def check_own(cls, config: RunConfig) -> None:
        super().check_own(config)
        line = declared(cls.Settings)["line_sigma"]
        if config.emitter != ISO_LINE and config.line_sigma != line.default:
            why = f"the emitter {config.emitter} takes no step to a second elite"
            fix = "leave line_sigma out, or use the emitter iso_line"
            raise config.refused("line_sigma", f"{why}: {fix}")

    # --- what is published: the best elite, and the parents

    def published(self, state: State) -> Floats:
        """The best elite, float32 [size], then the encoded ``Parents``."""
        return np.concatenate([state["parameters"], self.parents(state).encode()])

    def fits(self, size: int, observations: int) -> bool:
        """At least one parent, drawn once; ``builder`` checks the rest."""
        return size > 2 * self.size + HEADER_FLOATS

    def sigma(self, state: State) -> float:
        if self.config.initial_sigma and not len(state["elite_cell"]):
            return float(self.config.initial_sigma) * self.pace.sigma
        return super().sigma(state)

    def spread(self, state: State) -> Floats:
        """σ, then the encoded parents."""
        sigma = np.array([self.sigma(state)], np.float32)
        return np.concatenate([sigma, self.parents(state).encode()])

    def parents(self, state: State) -> Parents:
        """Uniform draws: two for each individual, or as many as may be published."""
        elites = state["elite_parameters"]
        most = min(2 * self.config.population, MAX_PARENT_BYTES // (4 * self.size), MAX_DRAWS)
        count = max(2, most)
        if not len(elites):
            return Parents(state["parameters"][np.newaxis], np.zeros(count, np.int64))
        words = raw_words(self.config.seed, MEMBER, int(state["updates"]), count)
        rows, draws = np.unique(multiply_shift(words, len(elites)), return_inverse=True)
        return Parents(elites[rows], draws)

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
        """Individuals of (generation, slot) ``plans`` int64 [S, 2]."""
        line = self.config.line_sigma if self.config.emitter == ISO_LINE else 0.0
        normals = line_normals(self.config.seed, plans)
        return parents.children(plans[:, 1], noise, normals, (sigma, line))

    def rebuilt(self, state: State, batch: Batch, chosen: Integers) -> Floats:
        built, positions = [np.empty((0, self.size), np.float32)], np.arange(len(batch.fitness))
        for rows, spread in batch.by_spread(self.spread(state)):
            some = chosen[np.isin(chosen, positions[rows])]
            parents = Parents.decode(spread[1:], self.size)
            noise = batch.noise.rows(batch.noise_indices[some], 0, self.size)
            built.append(self.children(parents, spread[0], batch.slot_plans[some], noise))
        return np.concatenate(built)


@dataclass(frozen=True)
class Parents:
    """The elites that a generation's children are made of.

    elites: float32 [k, size], distinct; draws: int64 [d], rows of ``elites``. The parents of slot s
    are draws 2s and 2s + 1 modulo d.
    """

    elites: Floats
    draws: Integers

    def children(
        self, slots: Integers, noise: Floats, normals: Floats, sigmas: tuple[float, float]
    ) -> Floats:
        """float32 [S, size] of ``slots`` int64 [S], their ``noise`` float32 [S, size], ``normals``
        float32 [S], and σ and σ_line. A row depends only on its own slot.
        """
        first, second = (self.draws[(2 * slots + place) % len(self.draws)] for place in (0, 1))
        start, (sigma, line) = self.elites[first], np.array(sigmas, np.float32)
        children: Floats = start + sigma * noise
        if line:
            children += (line * normals)[:, np.newaxis] * (self.elites[second] - start)
        return children

    def encode(self) -> Floats:
        """float32: counts of elites and draws, then the elites and the draws."""
        header = np.array([len(self.elites), len(self.draws)], np.float32)
        return np.concatenate([header, self.elites.ravel(), self.draws.astype(np.float32)])

    @classmethod
    def decode(cls, values: Floats, size: int) -> Parents:
        """Raises ValueError for invalid values."""
        header = values[:HEADER_FLOATS]
        if len(header) < HEADER_FLOATS or not is_whole(header, 1, MAX_DRAWS):
            raise ValueError("a publication does not begin with the number of its parents")
        count, draws = header.astype(np.int64).tolist()
        rows = values[HEADER_FLOATS + count * size :]
        if len(rows) != draws or not is_whole(rows, 0, count - 1):
            raise ValueError("a publication's parents do not have their stated number")
        elites = values[HEADER_FLOATS : HEADER_FLOATS + count * size].reshape(count, size)
        return cls(elites, rows.astype(np.int64))


def is_whole(values: Floats, low: int, high: int) -> bool:
    """Whether all are whole numbers from ``low`` to ``high``; NaN is none."""
    return bool(((values >= low) & (values <= high) & (np.floor(values) == values)).all())


def line_normals(seed: int, plans: Integers) -> Floats:
    """float32 [S], standard normals of (generation, slot) ``plans`` int64 [S, 2]."""
    normals = np.empty(len(plans), np.float32)
    for generation in np.unique(plans[:, 0]).tolist():
        rows = plans[:, 0] == generation
        slots = plans[rows, 1]
        stop = int(slots.max()) + 1
        normals[rows] = generation_normals(seed, generation, 1 << (stop - 1).bit_length())[slots]
    return normals


@lru_cache(maxsize=16)
def generation_normals(seed: int, generation: int, count: int) -> Floats:
    """Those of the first slots of a generation, float32 [count]; a slot's does not depend on the
    count.
    """
    words: NDArray[np.uint64] = raw_words(seed, PARENTS, generation, count)
    bits = words.astype("<u8", copy=False).view("<i4").reshape(-1, 2)
    space = np.empty((4, count), np.float32)
    radius = radii(np.ascontiguousarray(bits[:, 0]), space).copy()
    along, _ = directions(np.ascontiguousarray(bits[:, 1]), space)
    return radius * along
