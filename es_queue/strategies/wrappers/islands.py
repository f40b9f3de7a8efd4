"""Successive halving (Jamieson, Talwalkar 2016, Non-stochastic best arm identification and
hyperparameter optimization, https://arxiv.org/abs/1502.07943) over independent searches.

The islands are search distributions of one strategy that share the slots of each generation. Every
``island_generations``, the worse half ends, and the others have twice as many individuals.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np

from es_queue.numerics.arrays import Doubles, Floats
from es_queue.numerics.ordered_sums import NoiseRows
from es_queue.numerics.return_statistics import sum_in_order
from es_queue.strategies.base import Batch, Info, State, Strategy
from es_queue.strategies.capabilities.hooks import (
    Builder,
    BuildsIndividuals,
    MigratesState,
    SlotDraw,
    migrate_state,
    require_plain,
)
from es_queue.strategies.shaping import with_failures_lowest

#: What a score keeps of its former generations: it is about the mean of the last ten.
SCORE_DECAY = 0.9


class Islands(BuildsIndividuals, MigratesState, Strategy):
    """Independent states of ``island_kind``, the best first; slot s belongs to state s mod k of k.

    State: ``parameters`` of the best island; ``score_sum`` and ``score_weight`` float64 [k], whose
    quotient is an island's score, the decaying mean of its individuals' fitness; and the arrays of
    island i as ``i.NAME``.
    """

    #: The strategy of each island; ``islands_of`` sets it.
    island_kind: ClassVar[type[Strategy]]

    @cached_property
    def island(self) -> Strategy:
        return self.island_kind(self.config, self.size, self.pace)

    def searches(self, state: State) -> list[Strategy]:
        return [self.island] * len(state["score_sum"])

    # --- what is published: for each island what its strategy publishes, then its sigma

    def start(self, parameters: Floats) -> State:
        """All islands begin at ``parameters``; only the noise of their slots differs."""
        count = self.config.islands
        states = [self.island.start(parameters) for _ in range(count)]
        return pack_islands(states, np.zeros(count), np.zeros(count))

    def published(self, state: State) -> Floats:
        """float32 [k · (n + 1)] for k islands whose strategy publishes n floats."""
        return np.concatenate(
            [
                np.append(search.published(part), np.float32(search.sigma(part)))
                for search, part in self.with_searches(state)
            ]
        )

    def with_searches(self, state: State) -> list[tuple[Strategy, State]]:
        return list(zip(self.searches(state), unpack_islands(state), strict=True))

    def fits(self, size: int, observations: int) -> bool:
        """True for any number of islands that the run can have."""
        return any(
            size % count == 0 and self.island.fits(size // count - 1, observations)
            for count in self._counts()
        )

    def _counts(self) -> list[int]:
        return [
            self.config.islands >> halvings for halvings in range(self.config.islands.bit_length())
        ]

    def _parts(self, published: Floats) -> Floats:
        """The islands of a publication, float32 [k, n + 1]. Raises ValueError if it has none."""
        for count in self._counts():
            if len(published) % count == 0 and self.island.fits(len(published) // count - 1, 0):
                return published.reshape(count, -1)
        raise ValueError(f"{len(published)} published floats do not divide into islands")

    def centre(self, published: Floats) -> Floats:
        """That of the best island."""
        best: Floats = self._parts(published)[0, :-1]
        return self.island.centre(best)

    def sigma(self, state: State) -> float:
        """That of the best island; workers use the published ones."""
        search, part = self.with_searches(state)[0]
        return search.sigma(part)

    @property
    def step_rate(self) -> float | None:
        return self.island.step_rate

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """Individuals of the best island."""
        part = self._parts(published)[0]
        return self.island.ask(part[:-1], float(part[-1]), noise)

    def builder(self, noise: NoiseRows) -> Builder:
        """Individuals of the slot's island."""

        def build(published: Floats, sigma: float, drawn: SlotDraw) -> Floats:
            parts = self._parts(published)
            part = parts[drawn.slot % len(parts)]
            rows = drawn.noise[np.newaxis]
            individuals: Floats = self.island.ask(part[:-1], float(part[-1]), rows)[0]
            return individuals

        return build

    def genome(self, state: State) -> State:
        return {}

    # --- what the master learns

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """Each island learns from its own slots; then they are ranked, and the worse half may
        end.
        """
        batches, learnt = self.learn_islands(state, batch)
        if all(info["no_step"] for _, info in learnt):
            return self.stay(state)
        sums, weights = updated_scores(state, batches)
        halvings = (batch.generation + 1) // self.config.island_generations
        order = ranked(sums, weights)[: max(1, self.config.islands >> min(64, halvings))]
        after = pack_islands([learnt[row][0] for row in order], sums[order], weights[order])
        return after, {
            **learnt[order[0]][1],
            "no_step": 0.0,
            "islands": float(len(order)),
            "island_score": float(sums[order[0]] / max(weights[order[0]], 1.0)),
        }

    def learn_islands(
        self, state: State, batch: Batch
    ) -> tuple[list[Batch], list[tuple[State, Info]]]:
        pairs = self.with_searches(state)
        batches = [island_batch(batch, row, len(pairs)) for row in range(len(pairs))]
        learnt = [
            search.learn(part, island)
            for (search, part), island in zip(pairs, batches, strict=True)
        ]
        return batches, learnt

    def stay(self, state: State) -> tuple[State, Info]:
        """The figures of the best island, unchanged."""
        search, part = self.with_searches(state)[0]
        _, info = search.stay(part)
        return dict(state), {**info, "islands": float(len(state["score_sum"]))}

    def migrate_state(self, state: State, before: Any) -> State:
        states = [
            migrate_state(search, part, former)
            for (search, part), former in zip(
                self.with_searches(state), before.searches(state), strict=True
            )
        ]
        return pack_islands(states, state["score_sum"], state["score_weight"])


@cache
def islands_of(kind: type[Strategy]) -> type[Islands]:
    """The class with islands of ``kind``. Raises UsageError if ``kind`` cannot have islands."""
    require_plain(kind, "islands")
    return many_of(Islands, kind)


def many_of(base: type[Islands], kind: type[Strategy]) -> type[Islands]:
    facts = {
        "island_kind": kind,
        "per_slot": kind.per_slot,
        "settings": kind.used_settings(),
        "optimizers": kind.optimizers,
    }
    return type(f"{kind.__name__}{base.__name__}", (base,), facts)


def pack_islands(states: list[State], sums: Doubles, weights: Doubles) -> State:
    """The state of all islands, the best first."""
    arrays = {
        f"{row}.{name}": value for row, part in enumerate(states) for name, value in part.items()
    }
    return {
        "parameters": states[0]["parameters"],
        "score_sum": sums,
        "score_weight": weights,
        **arrays,
    }


def unpack_islands(state: State) -> list[State]:
    parts: list[State] = [{} for _ in state["score_sum"]]
    for name, value in state.items():
        row, dot, inner = name.partition(".")
        if dot:
            parts[int(row)][inner] = value
    return parts


def island_batch(batch: Batch, row: int, count: int) -> Batch:
    return replace(
        batch,
        noise_indices=batch.noise_indices[row::count],
        fitness=batch.fitness[row::count],
    )


def updated_scores(state: State, batches: list[Batch]) -> tuple[Doubles, Doubles]:
    """``score_sum`` and ``score_weight`` with a generation's scores; unchanged if all individuals
    failed.
    """
    sums, weights = state["score_sum"].copy(), state["score_weight"].copy()
    for row, batch in enumerate(batches):
        if np.isfinite(batch.fitness).any():
            values = with_failures_lowest(batch.fitness).ravel().tolist()
            sums[row] = SCORE_DECAY * sums[row] + sum_in_order(values) / len(values)
            weights[row] = SCORE_DECAY * weights[row] + 1.0
    return sums, weights


def ranked(sums: Doubles, weights: Doubles) -> list[int]:
    """The islands from the highest to the lowest score, ties to the first; those without a score
    last.
    """
    scores = np.where(weights > 0, sums / np.maximum(weights, 1.0), -np.inf)
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order
