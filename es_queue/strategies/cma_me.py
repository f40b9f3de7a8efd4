"""Fontaine, Togelius, Nikolaidis, Hoover 2020, Covariance matrix adaptation for the rapid
illumination of behavior space (CMA-ME), https://doi.org/10.1145/3377930.3390232.

Emitters fill the archive of ``map_elites``. Each is a CMA-ES that is rewarded for what its
individuals add to the archive (the improvement emitter, algorithm 2): first those that fill an
empty cell, by fitness; then those that are better than their cell's elite, by how much; last the
others. If none becomes an elite, the emitter begins again around one that is drawn uniformly. As in
pyribs, with its selection rule "mu", the better half are the parents.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.config.settings import setting
from es_queue.errors import RunFolderError
from es_queue.numerics.arrays import Doubles, Floats, Integers, NoiseRows, typed_array
from es_queue.slot_plan import MEMBER, multiply_shift, raw_words
from es_queue.strategies.base import Batch, Builder, Info, State
from es_queue.strategies.covariance import CMAES, CSAES, SepCMAES
from es_queue.strategies.map_elites import ArchiveSettings, ArchiveStrategy
from es_queue.strategies.map_elites_archive import Archive

FULL = "full"
PREFIX = "emitter_"
#: What an individual does to the archive.
REJECTED, IMPROVES, FILLS = 0, 1, 2


class CMAME(ArchiveStrategy):
    """The first λ slots are the individuals of the first emitter, the next λ those of the second …

    each: λ; search: an emitter's CMA-ES; floats: of an emitter in a publication, its σ and what
    ``search`` publishes. State: also each array of ``search``, stacked: ``emitter_parameters``
    float32 [emitters, size], and so on.
    """

    class Settings(ArchiveSettings):
        emitters = setting(
            4,
            "number of searches that share the archive, each with as many individuals",
            low=1,
            high=1000,
        )
        covariance = setting(
            FULL,
            "what each emitter learns of the directions: all (full, as cma_es), or the scale of "
            "each parameter (diagonal, as sep_cma_es), for large policies",
            choices=(FULL, "diagonal"),
        )

    name: ClassVar[str] = "cma_me"

    @classmethod
    def check_own(cls, config: RunConfig) -> None:
        super().check_own(config)
        if config.population % config.emitters or config.population < 2 * config.emitters:
            why = f"there are {config.emitters} emitters with at least 2 individuals each"
            raise config.refused("population", f"{why}: use a multiple of {config.emitters}")

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        super().__init__(config, size, pace)
        kind = CMAES if config.covariance == FULL else SepCMAES
        self.each = config.population // config.emitters
        own = {"env": "an emitter", "population": self.each, "sigma": config.sigma}
        self.search: CSAES = kind(RunConfig(strategy=kind.name, **own), size, pace)
        self.floats = 1 + self.search.first_size

    def emitters(self, state: State) -> list[State]:
        names = [name for name in state if name.startswith(PREFIX)]
        return [
            {name.removeprefix(PREFIX): state[name][place] for name in names}
            for place in range(self.config.emitters)
        ]

    def stacked(self, emitters: list[State]) -> State:
        return {
            f"{PREFIX}{name}": np.stack([emitter[name] for emitter in emitters])
            for name in emitters[0]
        }

    def start(self, parameters: Floats) -> State:
        first = self.search.start(parameters)
        return {**super().start(parameters), **self.stacked([first] * self.config.emitters)}

    def validate_state(self, state: State, behaviour_size: int) -> None:
        super().validate_state(state, behaviour_size)
        expected = self.start(np.zeros(self.size, np.float32))
        for name in [name for name in expected if name.startswith(PREFIX)]:
            values = typed_array(state, name, expected[name].dtype.type, expected[name].shape)
            is_sigma = name == f"{PREFIX}sigma"
            if not (np.isfinite(values).all() and (values > 0).all() >= is_sigma):
                raise RunFolderError(f"its array {name!r} holds a number that cannot be")

    # --- what is published: the best elite, then a block for each emitter

    def published(self, state: State) -> Floats:
        parts = [state["parameters"]]
        for emitter in self.emitters(state):
            sigma = np.array([self.search.sigma(emitter)], np.float32)
            parts += [sigma, self.search.published(emitter)]
        return np.concatenate(parts)

    def sigma(self, state: State) -> float:
        """The mean of the emitters', for people."""
        sigmas = [self.search.sigma(emitter) for emitter in self.emitters(state)]
        return sum(sigmas) / len(sigmas)

    def builder(self, noise: NoiseRows) -> Builder:
        def build(
            published: Floats, sigma: float, generation: int, slot: int, index: int
        ) -> Floats:
            (row,) = noise.views(np.array([index]), 0, self.size)
            return self.individuals(published, self.owner(slot), row[np.newaxis])

        return build

    def owner(self, slots: Any) -> Any:
        """The emitters of slots. Those that ``--min-steps`` adds to a generation go round again."""
        return slots // self.each % self.config.emitters

    def individuals(self, published: Floats, emitter: int, noise: Floats) -> Floats:
        start = self.size + emitter * self.floats
        sigma, *_ = block = published[start : start + self.floats]
        return self.search.ask(block[1:], float(sigma), noise)[:, 0]

    # --- what the master learns

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The archive takes the best of each cell, and each emitter learns from its own slots."""
        fitness = batch.fitness[:, 0]
        before = self.archive(state, batch.behaviour.shape[2])
        effects, gains = effects_on(before, batch.behaviour[:, 0], fitness)
        after, figures = super().tell(state, batch)
        owners, emitters, restarts = self.owner(batch.slot_plans[:, 1]), [], 0
        for place, emitter in enumerate(self.emitters(state)):
            rows = np.flatnonzero(owners == place)
            if (effects[rows] > REJECTED).any():
                merits = np.stack([effects[rows], gains[rows]], axis=1)  # equal ones share a rank
                ranks = np.unique(merits, axis=0, return_inverse=True)[1].reshape(-1).astype(float)
                ranks[~np.isfinite(fitness[rows])] = np.nan
                own = Batch(batch.noise, batch.noise_indices[rows], ranks[:, np.newaxis])
                emitter, _ = self.search.tell(emitter, own)
            elif len(elites := after["elite_parameters"]):
                number = int(state["updates"]) * self.config.emitters + place
                words = raw_words(self.config.seed, MEMBER, number, 1)
                emitter = self.search.start(elites[int(multiply_shift(words, len(elites))[0])])
                restarts += 1
            emitters.append(emitter)
        after |= self.stacked(emitters)
        return after, {**figures, "sigma": self.sigma(after), "emitter_restarts": float(restarts)}

    def rebuilt(self, state: State, batch: Batch, chosen: Integers) -> Floats:
        published, built = self.published(state), np.empty((len(chosen), self.size), np.float32)
        owners = self.owner(batch.slot_plans[chosen, 1])
        for place in np.unique(owners).tolist():
            rows = owners == place
            noise = batch.noise.rows(batch.noise_indices[chosen[rows]], 0, self.size)
            built[rows] = self.individuals(published, place, noise)
        return built


def effects_on(archive: Archive, behaviour: Floats, fitness: Doubles) -> tuple[Integers, Doubles]:
    """What each individual does to the archive as it was, int64 [k], and by how much: its fitness
    in an empty cell, else the difference to the elite's.
    """
    assert archive.cells is not None
    valid = np.isfinite(fitness) & np.isfinite(behaviour).all(axis=1)
    elites = np.full(archive.cells.count, np.nan)
    elites[archive.cell] = archive.fitness
    effects, gains = np.full(len(fitness), REJECTED), np.full(len(fitness), -np.inf)
    current = elites[archive.cells.locate(behaviour[valid])]
    is_empty = np.isnan(current)
    gains[valid] = fitness[valid] - np.where(is_empty, 0.0, current)
    effects[valid] = np.where(is_empty, FILLS, np.where(gains[valid] > 0, IMPROVES, REJECTED))
    return effects, gains
