"""Such, Madhavan, Conti, Lehman, Stanley, Clune 2017, Deep neuroevolution: genetic algorithms are a
competitive alternative.

https://arxiv.org/abs/1712.06567, algorithm 1: truncation selection and Gaussian mutation, no
crossover. In the asynchronous schedule there are no generations: parents are the best of the newest
individuals with a result. A lucky individual therefore ages, as in Real et al. 2019,
https://arxiv.org/abs/1802.01548.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import ASYNC
from es_queue.config.settings import setting
from es_queue.genetics import (
    HEADER_FLOATS,
    MAX_TABLE_FLOATS,
    Lineage,
    MutationChain,
    ParentCache,
    ParentTable,
    decode_parent_table,
)
from es_queue.numerics.arrays import Doubles, Floats, Integers, NoiseRows, norm
from es_queue.numerics.statistics import sum_in_order
from es_queue.slot_plan import draw_parents
from es_queue.strategies.base import (
    Batch,
    Builder,
    Info,
    ReevaluationSettings,
    State,
    Strategy,
    best_reevaluated,
    rank_finite,
)

#: Parents, unless the settings say.
PARENTS = 20


class GA(Strategy):
    """Individuals are parent + σε: chains of mutations, with names of their family tree
    (``es_queue.genetics``). The ``truncation`` parents are the elite, unmutated, and the best
    others.

    The elite is the best on fresh episodes among the ``candidates`` best and itself; it keeps no
    score.
    """

    class Settings(ReevaluationSettings):
        truncation = setting(
            0,
            "number of parents: the elite and the best others of the population; auto is 20, or a "
            "smaller population",
            unit="individuals",
            low=0,
            high=1_000_000,
            word="auto",
            grows=0.5,
            grows_from=PARENTS,
        )

    name = "ga"
    per_slot = 1
    asynchronous = True
    reevaluates = True
    #: Some tens of normalised inputs of a unit then change its sum by a third; networks of millions
    #: want Uber's 0.002 to 0.005.
    SIGMA = 0.05
    #: Batches of the asynchronous schedule that are a population together.
    BATCHES = 8

    @classmethod
    def check_own(cls, config: RunConfig) -> None:
        super().check_own(config)
        if config.truncation > config.population:
            has = f"a population has {config.population} individuals"
            raise config.refused("truncation", f"{has}: use at most {config.population}")

    @property
    def truncation(self) -> int:
        return self.config.truncation or min(PARENTS, self.config.population)

    @property
    def is_steady(self) -> bool:
        return self.config.schedule == ASYNC

    # --- what is published: the elite, the root of the living, and the tree of those who are
    # mutated

    def start(self, parameters: Floats) -> State:
        """A family of only the first parameters: the elite and the only parent."""
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
        """The elite's mutations: ``index`` int64[k], ``sigma`` float32[k]."""
        mutations = Lineage.from_arrays(state).chain(int(state["parents"][0]))
        return {"index": mutations.index, "sigma": mutations.sigma}

    def batch_slots(self) -> int:
        """In the asynchronous schedule an eighth of the population: parents are soon replaced."""
        return max(1, self.config.population // (self.BATCHES if self.is_steady else 1))

    def elite_slot_count(self, state: State, generation: int) -> int:
        """Slots of the trial that begins in the generation, one episode each."""
        begins = self.is_steady and int(state["trial_generation"]) == generation
        return state["trial_seen"].size if begins else 0

    @property
    def handles_all_failed(self) -> bool:
        """In the asynchronous schedule, a trial's results arrive with any batch."""
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
        trial = EliteEvaluation.from_arrays(state)
        trial = trial.with_results(batch.elite_slots, batch.elite_fitness)
        elite, elite_fitness = int(state["parents"][0]), np.nan
        answered, lag = int(state["answered"]) + len(batch.fitness), self.config.max_lag
        if trial.is_over(batch.generation, lag):
            means = trial.means()
            place = best_reevaluated(means)
            elite, elite_fitness = [*trial.names.tolist(), elite][place], float(means[place])
            trial = NO_EVALUATION
        best = window[rank_finite(fitness)]
        if trial.generation < 0 and answered >= self.config.population:
            names, answered = best[best != elite][: self.config.candidates], 0
            trial = EliteEvaluation.of(batch.generation + 1, names, self.config.elite_episodes)
        parents = self._parents(elite, best)
        # Parents stay for as long as a child of theirs can return.
        known = state["kept_until"] > batch.generation
        kept = np.append(state["kept"][known], parents)
        until = np.full(len(parents), batch.generation + 1 + lag)
        asynchronous = {
            "window": window,
            "window_fitness": fitness,
            "kept": kept,
            "kept_until": np.append(state["kept_until"][known], until),
            "answered": np.array(answered),
            **trial.to_arrays(),
        }
        living = np.unique(np.concatenate([parents, window, trial.names, kept]))
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
        window = np.append(state["window"], names)[-self.config.population :]
        return family, window, np.append(state["window_fitness"], fitness[known])[-len(window) :]

    def _parents_and_sigmas(self, state: State, batch: Batch) -> tuple[Integers, Floats]:
        """The parent's name and σ of each row, int64 [S] and float32 [S]."""
        generations, slots = batch.slot_plans.T
        names, sigma = np.empty(len(slots), np.int64), np.empty(len(slots), np.float32)
        for rows, spread in batch.by_spread(self.spread(state)):
            high, low = spread[1:].astype(np.int64).reshape(2, -1)
            for generation in np.unique(generations[rows]).tolist():
                positions = np.arange(len(slots))[rows][generations[rows] == generation]
                names[positions] = ((high << 16) + low)[
                    draw_parents(self.config.seed, generation, slots[positions], len(high))
                ]
            sigma[rows] = spread[0]
        return names, sigma

    def _parents(self, elite: int, best: Integers) -> Integers:
        """The elite first, then the best others."""
        return np.append(elite, best[best != elite][: self.truncation - 1])

    def _advance(
        self, state: State, batch: Batch, family: Lineage, parents: Integers, elite_fitness: float
    ) -> tuple[State, Info]:
        """The state with these parents, the elite first; ``elite_fitness``: on fresh episodes, else
        NaN.
        """
        before, is_unchanged = state["parameters"], parents[0] == state["parents"][0]
        elite = before if is_unchanged else family.decode(int(parents[0]), batch.noise)
        after = {**state, **family.to_arrays(), "parameters": elite, "parents": parents}
        figures = self.figures(after, 0.0, 0.0 if is_unchanged else norm(elite - before))
        if np.isfinite(elite_fitness):
            figures["elite_fitness"] = elite_fitness
        return after, figures


# --- the elite in the asynchronous schedule

PENDING, PLAYED, FAILED = range(3)


@dataclass(frozen=True)
class EliteEvaluation:
    """A trial of the best individuals and of the current elite on the same fresh seeds, while
    training continues. Slot s is episode s mod E of contender s div E; the elite is the last one.

    generation: of the publication with the slots, -1 without a trial; names: int64[c]
    fitness: float64[c + 1, E], 0 if ``status`` is not PLAYED; status: int64[c + 1, E]
    """

    generation: int
    names: Integers
    fitness: Doubles
    status: Integers

    @classmethod
    def of(cls, generation: int, names: Integers, episodes: int) -> EliteEvaluation:
        shape = (len(names) + 1, episodes)
        return cls(generation, names, np.zeros(shape), np.zeros(shape, np.int64))

    def with_results(self, slots: Integers, values: Doubles) -> EliteEvaluation:
        """With ``values`` float64[k] of (generation, slot) ``slots`` int64[k, 2]; those of other
        trials do not count, and of two the first.
        """
        fitness, status = self.fitness.copy(), self.status.copy()
        for (generation, slot), value in zip(slots.tolist(), values.tolist(), strict=True):
            is_own = generation == self.generation and slot < status.size
            if is_own and status.flat[slot] == PENDING:
                status.flat[slot] = PLAYED if np.isfinite(value) else FAILED
                fitness.flat[slot] = value if np.isfinite(value) else 0.0
        return replace(self, fitness=fitness, status=status)

    def is_over(self, generation: int, max_lag: int) -> bool:
        """Whether no result can arrive any more once ``generation`` has closed."""
        is_late = generation >= self.generation + max_lag
        return self.generation >= 0 and (is_late or bool((self.status != PENDING).all()))

    def means(self) -> Doubles:
        """float64[c + 1]: mean fitness over the episodes that all contenders played; NaN for one
        that failed in one, or if there is none.
        """
        lost = (self.status == FAILED).any(axis=1)
        common = (self.status[~lost] == PLAYED).all(axis=0)
        means = np.full(len(self.status), np.nan)
        if common.any():
            means[~lost] = [
                sum_in_order(row[common].tolist()) / int(common.sum())
                for row in self.fitness[~lost]
            ]
        return means

    def to_arrays(self) -> State:
        return {
            "trial_generation": np.array(self.generation),
            "trial_name": self.names,
            "trial_fitness": self.fitness,
            "trial_seen": self.status,
        }

    @classmethod
    def from_arrays(cls, state: State) -> EliteEvaluation:
        names = ("trial_name", "trial_fitness", "trial_seen")
        return cls(int(state["trial_generation"]), *(state[name] for name in names))


NO_EVALUATION = EliteEvaluation.of(-1, np.empty(0, np.int64), 1)
