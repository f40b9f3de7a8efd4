"""Jaderberg et al. 2017, Population Based Training of Neural Networks.

https://arxiv.org/abs/1711.09846: several searches of one strategy, the members, share the slots of
each generation. Each has its own sigma and learning rate. Every ``tune_generations``, the
unperturbed policies of all members play the same episodes. The worst members continue with copies
of the best ones (exploit) and change their settings (explore).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from es_queue.config.schedules import parse_tune, power
from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.slot_plan import TUNING, multiply_shift, raw_words
from es_queue.strategies.base import Batch, Info, State, Strategy
from es_queue.strategies.capabilities.hooks import (
    Draw,
    SeveralCentres,
    migrate_state,
    require_plain,
)
from es_queue.strategies.wrappers.islands import Islands, many_of, pack_islands, ranked

#: What a step up or down does to a setting (the paper's is 1.2 and 0.8).
FACTOR_UP, FACTOR_DOWN = 1.25, 0.8
#: The most steps of a setting from the configured one, before the first generation and later.
FIRST_STEPS, MOST_STEPS = 6, 12


class PopulationBased(SeveralCentres, Islands):
    """``tune_members`` states of ``island_kind``, the best of the last comparison first.

    State: as that of ``Islands``, with the mean fitness of the last comparison as ``score_sum`` and
    whether there is one as ``score_weight``; ``NAME_steps`` int64 [k], the steps of each tuned
    setting; ``updates``, the number of generations.
    """

    def start(self, parameters: Floats) -> State:
        """All members begin at ``parameters``, the first with the configured settings."""
        count = self.config.tune_members
        steps: State = {
            step_name(name): first_steps(self.config.seed, row, count)
            for row, name in enumerate(parse_tune(self.config.tune))
        }
        states = [search.start(parameters) for search in self._searches(steps, count)]
        counter = {"updates": np.array(0, np.int64)}
        return {**pack_islands(states, np.zeros(count), np.zeros(count)), **steps, **counter}

    def searches(self, state: State) -> list[Strategy]:
        return self._searches(state, len(state["score_sum"]))

    def _searches(self, steps: State, count: int) -> list[Strategy]:
        searches: list[Strategy] = []
        for row in range(count):
            factors = {
                name: getattr(self.pace, name) * step_factor(int(steps[step_name(name)][row]))
                for name in parse_tune(self.config.tune)
            }
            searches.append(self.island_kind(self.config, self.size, replace(self.pace, **factors)))
        return searches

    def _counts(self) -> list[int]:
        return [self.config.tune_members]

    @property
    def step_rate(self) -> float | None:
        """None if each member has its own."""
        return None if "learning_rate" in parse_tune(self.config.tune) else super().step_rate

    # --- whose return is compared

    @property
    def max_centres(self) -> int:
        return 1 + self.config.tune_members

    def centre_count(self, state: State) -> int:
        """All members in a generation that ends with a comparison."""
        return self.max_centres if self.is_compared(state) else 1

    def is_compared(self, state: State) -> bool:
        return int(state["updates"] + 1) % self.config.tune_generations == 0

    def centre_of(self, published: Floats, slot: int, draw: Draw) -> Floats:
        """Slot 0 is the best member, slot s member s − 1."""
        member: Floats = self._parts(published)[max(0, slot - 1), :-1]
        return self.island.centre(member)

    # --- what the master learns

    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """Each member learns from its own slots; then all may be compared."""
        _, learnt = self.learn_islands(state, batch)
        if all(info["no_step"] for _, info in learnt):
            return self.stay(state)
        compared, order = self.is_compared(state), list(range(len(learnt)))
        sums, weights = state["score_sum"], state["score_weight"]
        known = np.isfinite(batch.centre_fitness)
        if compared:
            sums, weights = np.where(known, batch.centre_fitness, 0.0), known.astype(np.float64)
            order = with_copies(ranked(sums, weights))
        steps = {
            step_name(name): self.explored(state[step_name(name)][order], row, batch.generation)
            if compared
            else state[step_name(name)]
            for row, name in enumerate(parse_tune(self.config.tune))
        }
        members = self.converted(state, [learnt[row][0] for row in order], order, steps)
        after: State = {
            **pack_islands(members, sums[order], weights[order]),
            **steps,
            "updates": np.array(state["updates"] + 1),
        }
        scores = batch.centre_fitness.tolist() if compared else []
        return after, {
            **learnt[order[0]][1],
            "no_step": 0.0,
            **self.member_figures(state),
            **{f"member_{row}_score": score for row, score in enumerate(scores) if known[row]},
        }

    def explored(self, steps: Integers, row: int, generation: int) -> Integers:
        """The steps of the row-th tuned setting, those of the copies one higher or lower."""
        words = raw_words(self.config.seed, TUNING, 1 + generation, (row + 1) * len(steps))
        moves = 2 * multiply_shift(words[row * len(steps) :], 2) - 1
        copies = np.arange(len(steps)) >= len(steps) - copy_count(len(steps))
        return np.where(copies, np.clip(steps + moves, -MOST_STEPS, MOST_STEPS), steps)

    def converted(
        self, state: State, members: list[State], order: list[int], steps: State
    ) -> list[State]:
        """The members' states for their new settings; ``order`` is where each comes from."""
        former = self.searches(state)
        return [
            migrate_state(search, member, former[row])
            for search, member, row in zip(
                self._searches(steps, len(order)), members, order, strict=True
            )
        ]

    def stay(self, state: State) -> tuple[State, Info]:
        """The figures of the best member, unchanged."""
        search, part = self.with_searches(state)[0]
        _, info = search.stay(part)
        return dict(state), {**info, **self.member_figures(state)}

    def member_figures(self, state: State) -> Info:
        info: Info = {}
        for row, (search, part) in enumerate(self.with_searches(state)):
            info[f"member_{row}_sigma"] = search.sigma(part)
            if search.step_rate is not None:
                info[f"member_{row}_learning_rate"] = search.step_rate
        return info

    def migrate_state(self, state: State, before: Any) -> State:
        shared = {name: value for name, value in state.items() if "." not in name}
        return {**shared, **super().migrate_state(state, before)}


@cache
def population_based(kind: type[Strategy]) -> type[Islands]:
    """The class whose members are ``kind``. Raises UsageError if ``kind`` cannot be tuned."""
    require_plain(kind, "tune")
    return many_of(PopulationBased, kind)


def step_name(name: str) -> str:
    return f"{name}_steps"


def step_factor(steps: int) -> float:
    return power(FACTOR_UP, steps) if steps > 0 else power(FACTOR_DOWN, -steps)


def first_steps(seed: int, row: int, members: int) -> Integers:
    """int64 [members], from -FIRST_STEPS to FIRST_STEPS for the row-th tuned setting, 0 for the
    first member.
    """
    words = raw_words(seed, TUNING, 0, (row + 1) * members)[row * members :]
    steps = multiply_shift(words, 2 * FIRST_STEPS + 1) - FIRST_STEPS
    steps[0] = 0
    return steps


def copy_count(members: int) -> int:
    """How many members continue as copies: a quarter, at least one."""
    return max(1, members // 4)


def with_copies(order: list[int]) -> list[int]:
    """Members from the best to the worst, the last of them replaced by the first."""
    copies = copy_count(len(order))
    return order[:-copies] + order[:copies]
