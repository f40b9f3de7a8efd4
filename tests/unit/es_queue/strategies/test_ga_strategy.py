"""The genetic algorithm: whose child a slot is, who are the next parents, who becomes the elite,
with generations and without.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.genetics import Floats, Lineage, apply_mutations
from es_queue.genetics import MutationChain as Chain
from es_queue.numerics.arrays import ArrayNoise
from es_queue.strategies import Batch, State, Strategy, make_strategy
from tests.cases import each_case

NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(5_000, dtype=np.float32))
SIZE = 6
INDICES = np.array([7, 1500, 31, 2222, 900])
FIRST = np.linspace(-1, 1, SIZE).astype(np.float32)
NAN = math.nan


def made(**settings: Any) -> Strategy:
    plain = {
        "strategy": "ga",
        "population": 5,
        "truncation": 3,
        "candidates": 2,
        "elite_episodes": 2,
        "seed": 4,
        "sigma": 0.5,
        "noise_size": len(NOISE.noise),
    }
    return make_strategy(RunConfig(**{**plain, **settings}), SIZE)


def batch(
    strategy: Strategy, state: State, *fitness: float, generation: int = 0, standing: float = -99.0
) -> Batch:
    """A generation with these results; whoever is evaluated again has the first one again, the
    standing elite ``standing``.
    """
    first = Batch(
        NOISE,
        INDICES[: len(fitness)] + 100 * generation,
        np.array(fitness)[:, None],
        generation=generation,
    )
    slots = strategy.candidates(state, first).tolist()
    return replace(
        first,
        elite_fitness=np.array(
            [fitness[slot] if slot < len(fitness) else standing for slot in slots]
        ),
    )


def children(
    strategy: Strategy, state: State, generation: int, slots: int, offset: int = 0
) -> list[Floats]:
    """As the workers build them."""
    build, published = strategy.builder(NOISE), strategy.published(state)
    indices = (INDICES[:slots] + offset).tolist()
    return [
        build(
            published,
            strategy.sigma(state),
            generation,
            slot,
            index,
        )[0]
        for slot, index in enumerate(indices)
    ]


def parents_of(state: State) -> list[bytes]:
    family = Lineage.from_arrays(state)
    return [family.decode(name, NOISE).tobytes() for name in state["parents"].tolist()]


# --- generations


def test_the_next_parents_are_the_elite_and_the_best_others_by_their_first_results() -> None:
    strategy = made()
    state = strategy.start(FIRST)
    born = children(strategy, state, 0, 5)
    after, info = strategy.learn(state, batch(strategy, state, 3.0, NAN, 10.0, 4.0, 0.0))
    assert parents_of(after) == [born[2].tobytes(), born[3].tobytes(), born[0].tobytes()]
    assert after["parameters"].tobytes() == born[2].tobytes()
    assert (info["elite_fitness"], info["no_step"]) == (10.0, 0.0)


def test_the_elite_is_chosen_by_new_episodes_alone_and_need_not_be_among_the_best() -> None:
    strategy = made(candidates=5)
    state = strategy.start(FIRST)
    born = children(strategy, state, 0, 5)
    again = replace(
        batch(strategy, state, 3.0, 1.0, 10.0, 4.0, 0.0),
        elite_fitness=np.array([0.0, 0.0, -1.0, -2.0, 7.0, 1.0]),
    )
    after, _ = strategy.learn(state, again)
    assert parents_of(after) == [born[4].tobytes(), born[2].tobytes(), born[3].tobytes()]


def test_the_genome_of_the_elite_leads_from_the_first_parameters_to_it() -> None:
    strategy, rng = made(), np.random.default_rng(3)
    state = strategy.start(FIRST)
    for generation in range(25):
        state, _ = strategy.learn(
            state,
            batch(
                strategy,
                state,
                *rng.normal(size=5),
                generation=generation,
                standing=-3.0 if generation % 3 else 9.0,
            ),
        )
    genome = strategy.genome(state)
    assert 5 < len(genome["index"]) <= 25 and len(state["prefix_index"]) > 0
    assert (
        apply_mutations(FIRST, Chain(genome["index"], genome["sigma"]), NOISE).tobytes()
        == state["parameters"].tobytes()
    )


# --- without generations


def steady(**settings: Any) -> Strategy:
    return made(**{"schedule": "async", "population": 4, "max_lag": 3, **settings})


def answered(
    state: State,
    generation: int,
    *rows: tuple[int, int, float],
    spreads: dict[int, Floats],
    again: tuple[tuple[int, int, float], ...] = (),
) -> Batch:
    """A batch of (generation, slot, fitness), and elites as (generation, slot, fitness)."""
    drawn = np.array([(one, slot) for one, slot, _ in rows])
    stops = {one: stop for stop, (one, _, _) in enumerate(rows, 1)}
    starts = [0, *stops.values()]
    tried = np.array([(one, slot) for one, slot, _ in again], np.int64).reshape(-1, 2)
    parts = [
        (slice(start, stop), spreads[one])
        for start, (one, stop) in zip(starts, stops.items(), strict=False)
    ]
    return Batch(
        NOISE,
        np.array([1000 * one + slot for one, slot, _ in rows]),
        np.array([[value] for *_, value in rows]),
        np.array([value for *_, value in again]),
        parts,
        generation=generation,
        slot_plans=drawn,
        elite_slots=tried,
    )


def lived(strategy: Strategy, fitness: list[float]) -> tuple[list[State], dict[int, Floats]]:
    """States of a run whose generation g has one child, slot 0 of it, with ``fitness[g]``."""
    states, spreads = [strategy.start(FIRST)], dict[int, Floats]()
    for generation, value in enumerate(fitness):
        spreads[generation] = strategy.spread(states[-1])
        states.append(
            strategy.learn(
                states[-1],
                answered(states[-1], generation, (generation, 0, value), spreads=spreads),
            )[0]
        )
    return states, spreads


def test_the_trial_decides_when_all_have_played_and_the_loser_of_the_first_results_can_win() -> (
    None
):
    strategy = steady()
    states, spreads = lived(strategy, [1.0, 7.0, 3.0, 5.0])
    spreads[4] = strategy.spread(states[4])
    some = (
        (4, 0, 1.0),
        (4, 1, 1.0),
        (4, 2, 3.0),
        (4, 4, 0.0),
        (4, 5, 0.0),
        (3, 3, 99.0),
    )  # the last is of no trial
    half, info = strategy.learn(
        states[4], answered(states[4], 4, (4, 0, 0.0), spreads=spreads, again=some)
    )
    assert half["parameters"].tobytes() == FIRST.tobytes() and "elite_fitness" not in info
    spreads[5] = strategy.spread(half)
    done, info = strategy.learn(
        half, answered(half, 5, (5, 0, 0.0), spreads=spreads, again=((4, 3, 2.0), (4, 0, 50.0)))
    )  # one comes twice
    winner = int(states[4]["window"][3])
    assert info["elite_fitness"] == 2.5 and int(done["parents"][0]) == winner
    assert (
        done["parameters"].tobytes()
        == Lineage.from_arrays(states[4]).decode(winner, NOISE).tobytes()
    )
    assert strategy.elite_slot_count(done, 6) == 0, "a new trial waits for another population"


@each_case("slot", range(16))
def test_a_child_counts_that_is_as_late_as_can_be_whatever_failed_meanwhile(slot: int) -> None:
    strategy = steady(population=2, truncation=2, candidates=1)
    states, spreads = lived(strategy, [1.0, 9.0])  # the second one is kept by its trial
    state, born, late = states[-1], 2, 2 + strategy.config.max_lag
    for generation in range(born, late):  # the parents of publication ``born`` leave the window
        spreads[generation] = strategy.spread(state)
        fitness = NAN if generation == born + 1 else 100.0 + generation
        only = answered(state, generation, (generation, 0, fitness), spreads=spreads)
        state, _ = strategy.learn(state, only)
    after, _ = strategy.learn(state, answered(state, late, (born, slot, 1.0), spreads=spreads))
    assert after["window_fitness"][-1] == 1.0
