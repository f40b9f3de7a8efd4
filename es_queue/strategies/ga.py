"""Such, Madhavan, Conti, Lehman, Stanley, Clune 2017, Deep neuroevolution: genetic algorithms are a
competitive alternative.

https://arxiv.org/abs/1712.06567, algorithm 1: truncation selection and Gaussian mutation, no
crossover. An individual is a chain of noise indices. In the asynchronous schedule there are no
generations: parents are the best of the newest individuals with a result. A lucky individual
therefore ages, as in Real et al. 2019, https://arxiv.org/abs/1802.01548.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from es_queue.config.run_config import ASYNC
from es_queue.genetics.mutation_chain import (
    HEADER_FLOATS,
    MAX_TABLE_FLOATS,
    Lineage,
    MutationChain,
    ParentTable,
    decode_parent_table,
)
from es_queue.genetics.parent_cache import ParentCache
from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.numerics.ordered_sums import NoiseRows, norm
from es_queue.numerics.slot_plan import draw_parents
from es_queue.strategies.base import Batch, Builder, Info, State, Strategy
from es_queue.strategies.elite_evaluation import (
    NO_EVALUATION,
    EliteEvaluation,
    best_reevaluated,
    elite_figure,
    rank_finite,
)

#: Parents, unless the settings say.
PARENTS = 20


class GA(Strategy):
    """Individuals are parent + σε. The ``truncation`` parents are the elite, unmutated, and the
    best others.

    The elite is the best on fresh episodes among the ``candidates`` best and itself; it keeps no
    score. Individuals have the names of their family tree (``es_queue.genetics.mutation_chain``).
    """

    name = "ga"
    per_slot = 1
    asynchronous = True
    reevaluates = True
    settings: ClassVar[tuple[str, ...]] = ("truncation",)
    #: Some tens of normalised inputs of a unit then change its sum by a third; networks of millions
    #: want Uber's 0.002 to 0.005.
    SIGMA = 0.05
    #: Batches of the asynchronous schedule that are a population together.
    BATCHES = 8

    @property
    def truncation(self) -> int:
        return self.config.truncation or min(PARENTS, self.config.population)

    @property
    def is_steady(self) -> bool:
        return self.config.schedule == ASYNC

    # --- what is published: the elite, the root of the living, and the tree of those who are
    # mutated

    def start(self, parameters: Floats) -> State:
        """A family of only ``parameters``, float32 [size]: the elite and the only parent."""
        first = super().start(parameters)
        state = {
            **first,
            **Lineage.of(first["parameters"]).to_arrays(),
            "parents": np.zeros(1, np.int64),
        }
        nobody, nothing = np.empty(0, np.int64), np.empty(0)
        asynchronous = {
            "window": nobody,
            "window_fitness": nothing,
            "kept": nobody,
            "kept_until": nobody,
            "answered": np.array(0),
            **NO_EVALUATION.to_arrays(),
        }
        return {**state, **asynchronous} if self.is_steady else state

    def published(self, state: State) -> Floats:
        """The elite and the root, float32 [size] each, then the table of mutations."""
        family = Lineage.from_arrays(state)
        elite_candidates = state["trial_name"] if self.is_steady else np.empty(0, np.int64)
        parents, elite_rows = family.rows(state["parents"]), family.rows(elite_candidates)
        rows = family.tree.ancestors([*parents.tolist(), *elite_rows.tolist()])
        table = ParentTable(
            family.tree.subtree(rows),
            np.searchsorted(rows, parents),
            np.searchsorted(rows, elite_rows),
        )
        return np.concatenate([state["parameters"], family.base, table.encode()])

    def fits(self, size: int, observations: int) -> bool:
        """At most as many mutations as a run can have."""
        return 2 * self.size + HEADER_FLOATS <= size <= 2 * self.size + MAX_TABLE_FLOATS

    def digest_input(self, state: State, published: Floats) -> Floats:
        """The elite, float32 [size]."""
        return self.centre(published)

    def builder(self, noise: NoiseRows) -> Builder:
        """Caches decoded parents. Raises ValueError for an invalid table."""
        cache, current = ParentCache(noise), list[tuple[Floats, ParentTable]]()

        def build(
            published: Floats, sigma: float, generation: int, slot: int, index: int
        ) -> Floats:
            if not current or current[0][0] is not published:
                table = decode_parent_table(
                    published[2 * self.size :], self.config.noise_size - self.size + 1
                )
                cache.open(published[self.size : 2 * self.size], table)
                current[:] = [(published, table)]
            table = current[0][1]
            if index < 0:  # an elite: in the asynchronous schedule, a slot is an episode of one
                candidate = slot // self.config.elite_episodes
                if not self.is_steady or candidate >= len(table.elite_candidates):
                    return self.centre(published)[np.newaxis]
                return cache.parent(int(table.elite_candidates[candidate]))[np.newaxis]
            row = draw_parents(self.config.seed, generation, np.array([slot]), len(table.parents))
            return cache.child(int(table.parents[row[0]]), index, sigma)[np.newaxis]

        return build

    # --- what the master learns

    def spread(self, state: State) -> Floats:
        """σ, then the upper and the lower halves of the parents' names."""
        return np.concatenate(
            [[self.sigma(state)], state["parents"] >> 16, state["parents"] & 0xFFFF]
        ).astype(np.float32)

    def genome(self, state: State) -> State:
        """The elite's links from the first parameters on: ``index`` int64[k], ``sigma``
        float32[k].
        """
        mutations = Lineage.from_arrays(state).chain(int(state["parents"][0]))
        return {"index": mutations.index, "sigma": mutations.sigma}

    def batch_slots(self) -> int:
        """In the asynchronous schedule an eighth of the population: parents are soon replaced."""
        return max(1, self.config.population // (self.BATCHES if self.is_steady else 1))

    def elite_slot_count(self, state: State, generation: int) -> int:
        """Slots of the trial that begins in the generation, one episode each."""
        if self.is_steady and int(state["trial_generation"]) == generation:
            return EliteEvaluation.from_arrays(state).slots
        return 0

    @property
    def handles_all_failed(self) -> bool:
        """In the asynchronous schedule, yes: trial results arrive with any batch, and parents stay
        for their late children.
        """
        return self.is_steady

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The next parents, and a new elite if one did better on fresh episodes."""
        if self.is_steady:
            return self._improve_steadily(state, batch)
        return self._improve_generation(state, batch)

    def _improve_generation(self, state: State, batch: Batch) -> tuple[State, Info]:
        slots, place = self.candidates(state, batch), best_reevaluated(batch.elite_fitness)
        winner = int(slots[place])
        best = rank_finite(batch.fitness[:, 0])[: self.truncation].tolist()
        chosen = np.array(best if winner in (self.centre_slot, *best) else [*best, winner])
        parents, sigma = self._parents_and_sigmas(state, batch)
        family, names = Lineage.from_arrays(state).with_children(
            parents[chosen], MutationChain(batch.noise_indices[chosen], sigma[chosen])
        )
        elite = int(state["parents"][0])
        if winner != self.centre_slot:
            elite = int(names[chosen == winner][0])
        next_parents = self._parents(elite, names[: len(best)])
        pruned, fitness = family.prune(next_parents, batch.noise), batch.elite_fitness[place]
        return self._advance(state, batch, pruned, next_parents, float(fitness))

    def _improve_steadily(self, state: State, batch: Batch) -> tuple[State, Info]:
        family, window, fitness = self._add_children(state, batch)
        evaluation = EliteEvaluation.from_arrays(state)
        evaluation = evaluation.with_results(batch.elite_slots, batch.elite_fitness)
        elite, elite_fitness = int(state["parents"][0]), np.nan
        answered = int(state["answered"]) + len(batch.fitness)
        if evaluation.is_over(batch.generation, self.config.max_lag):
            means = evaluation.means()
            place = best_reevaluated(means)
            elite = int([*evaluation.names.tolist(), elite][place])
            elite_fitness = float(means[place])
            evaluation = NO_EVALUATION
        best = window[rank_finite(fitness)]
        if evaluation.generation < 0 and answered >= self.config.population:
            names = best[best != elite][: self.config.candidates]
            episodes, answered = self.config.elite_episodes, 0
            evaluation = EliteEvaluation.of(batch.generation + 1, names, episodes)
        parents = self._parents(elite, best)
        kept, until = self._late_parents(state, batch.generation, parents)
        living = np.unique(np.concatenate([parents, window, evaluation.names, kept]))
        asynchronous = {
            "window": window,
            "window_fitness": fitness,
            "kept": kept,
            "kept_until": until,
            "answered": np.array(answered),
            **evaluation.to_arrays(),
        }
        family = family.prune(living, batch.noise)
        return self._advance({**state, **asynchronous}, batch, family, parents, elite_fitness)

    def _add_children(self, state: State, batch: Batch) -> tuple[Lineage, Integers, Doubles]:
        """The family with all individuals that have a result; names and fitness of the newest
        ``population`` of them, oldest first.
        """
        family, fitness = Lineage.from_arrays(state), batch.fitness[:, 0]
        parents, sigma = self._parents_and_sigmas(state, batch)
        known = np.isfinite(fitness) & (family.rows(parents) >= 0)
        family, names = family.with_children(
            parents[known], MutationChain(batch.noise_indices[known], sigma[known])
        )
        most = self.config.population
        return (
            family,
            np.append(state["window"], names)[-most:],
            np.append(state["window_fitness"], fitness[known])[-most:],
        )

    def _parents_and_sigmas(self, state: State, batch: Batch) -> tuple[Integers, Floats]:
        """The parent's name and σ of each row, int64 [S] and float32 [S]."""
        plans = batch.slot_plans
        names, sigma = np.empty(len(plans), np.int64), np.empty(len(plans), np.float32)
        for rows, spread in batch.by_spread(self.spread(state)):
            high, low = spread[1:].astype(np.int64).reshape(2, -1)
            for generation in np.unique(plans[rows, 0]).tolist():
                positions = np.arange(len(plans))[rows][plans[rows, 0] == generation]
                names[positions] = ((high << 16) + low)[
                    draw_parents(self.config.seed, generation, plans[positions, 1], len(high))
                ]
            sigma[rows] = spread[0]
        return names, sigma

    def _parents(self, elite: int, best: Integers) -> Integers:
        """The elite first, then the best others."""
        return np.append(elite, best[best != elite][: self.truncation - 1])

    def _late_parents(
        self, state: State, generation: int, parents: Integers
    ) -> tuple[Integers, Integers]:
        """Names of the parents whose children can still return after a generation, and the last
        generation for each.
        """
        known = state["kept_until"] > generation
        names, until = state["kept"][known], state["kept_until"][known]
        return np.append(names, parents), np.append(
            until, np.full(len(parents), generation + 1 + self.config.max_lag)
        )

    def _advance(
        self, state: State, batch: Batch, family: Lineage, parents: Integers, elite_fitness: float
    ) -> tuple[State, Info]:
        """The state with these parents, the elite first; ``elite_fitness``: its fitness on fresh
        episodes, NaN if it played none.
        """
        before, is_unchanged = state["parameters"], parents[0] == state["parents"][0]
        elite = before if is_unchanged else family.decode(int(parents[0]), batch.noise)
        after = {**state, **family.to_arrays(), "parameters": elite, "parents": parents}
        figures = self.figures(after, 0.0, 0.0 if is_unchanged else norm(elite - before))
        return after, {**figures, **elite_figure(elite_fitness)}
