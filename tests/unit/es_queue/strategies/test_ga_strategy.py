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
from es_queue.numerics.ordered_sums import ArrayNoise
from es_queue.numerics.slot_plan import draw_parents
from es_queue.strategies import Batch, State, Strategy, make_strategy
from es_queue.strategies.base import rank_finite
from es_queue.strategies.ga import EliteEvaluation
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


def test_in_generation_0_everybody_is_a_child_of_the_first_parameters() -> None:
    strategy = made()
    found = children(strategy, strategy.start(FIRST), 0, 5)
    expected = FIRST + np.float32(0.5) * NOISE.rows(INDICES, 0, SIZE)
    assert np.array_equal(np.stack(found), expected)


def test_the_next_parents_are_the_elite_and_the_best_others_by_their_first_results() -> None:
    strategy = made()
    state = strategy.start(FIRST)
    born = children(strategy, state, 0, 5)
    after, info = strategy.learn(state, batch(strategy, state, 3.0, NAN, 10.0, 4.0, 0.0))
    assert parents_of(after) == [born[2].tobytes(), born[3].tobytes(), born[0].tobytes()]
    assert after["parameters"].tobytes() == born[2].tobytes()
    assert (info["elite_fitness"], info["no_step"]) == (10.0, 0.0)


def test_an_elite_that_stands_is_a_parent_unmutated_and_keeps_no_score() -> None:
    strategy = made()
    state = strategy.start(FIRST)
    born = children(strategy, state, 0, 5)
    after, info = strategy.learn(
        state, batch(strategy, state, 3.0, NAN, 10.0, 4.0, 0.0, standing=10.0)
    )  # it wins the tie
    assert parents_of(after) == [FIRST.tobytes(), born[2].tobytes(), born[3].tobytes()]
    assert after["parameters"].tobytes() == FIRST.tobytes() and info["elite_fitness"] == 10.0
    later = children(strategy, after, 1, 5, 100)
    beaten, _ = strategy.learn(
        after, batch(strategy, after, 3.0, 1.0, 2.0, 4.0, 0.0, generation=1, standing=-5.0)
    )
    assert beaten["parameters"].tobytes() == later[3].tobytes(), (
        "four is less than ten, which does not count any more"
    )


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


def test_children_of_the_next_generation_are_those_of_the_drawn_parents() -> None:
    strategy = made(population=200, truncation=3)
    state = strategy.start(FIRST)
    state, _ = strategy.learn(state, batch(strategy, state, 3.0, 1.0, 10.0, 4.0, 0.0))
    drawn = draw_parents(4, 1, np.arange(200), 3)
    assert set(drawn.tolist()) == {0, 1, 2}
    build, published, seen = strategy.builder(NOISE), strategy.published(state), parents_of(state)
    for slot in (0, 1, 17, 199):
        child = build(published, 0.5, 1, slot, 40)[0]
        assert (
            child.tobytes()
            == (
                np.frombuffer(seen[drawn[slot]], np.float32)
                + np.float32(0.5) * NOISE.noise[40 : 40 + SIZE]
            ).tobytes()
        )


def test_whose_child_a_slot_is_depends_on_seed_generation_slot_and_number_of_parents_alone() -> (
    None
):
    whole = draw_parents(4, 2, np.arange(1000), 20)
    assert draw_parents(4, 2, np.array([999, 3]), 20).tolist() == whole[[999, 3]].tolist()
    counts = np.bincount(whole, minlength=20)
    assert len(counts) == 20 and counts.min() > 20
    assert (draw_parents(5, 2, np.arange(1000), 20) != whole).any() and (
        draw_parents(4, 3, np.arange(1000), 20) != whole
    ).any()
    assert draw_parents(4, 2, np.arange(9), 1).tolist() == [0] * 9


@each_case(
    ("fitness", "places"),
    [
        ((1.0, 3.0, 2.0), [1, 2, 0]),
        ((2.0, 2.0, 2.0), [0, 1, 2]),
        ((NAN, math.inf, -math.inf, 1.0), [3]),
        ((NAN,), []),
        ((5.0,), [0]),
    ],
)
def test_ties_go_to_the_earlier_place_and_who_failed_has_none(
    fitness: tuple[float, ...], places: list[int]
) -> None:
    assert rank_finite(np.array(fitness)).tolist() == places


def test_one_parent_is_the_elite_alone() -> None:
    strategy = made(truncation=1)
    state = strategy.start(FIRST)
    after, _ = strategy.learn(state, batch(strategy, state, 3.0, 1.0, 10.0, 4.0, 0.0))
    assert (
        parents_of(after) == [after["parameters"].tobytes()]
        and len(Lineage.from_arrays(after).tree) == 1
    )


def test_one_individual_and_equal_ones_and_failed_ones_are_a_generation_too() -> None:
    strategy = made()
    state = strategy.start(FIRST)
    (only,) = children(strategy, state, 0, 1)
    alone, _ = strategy.learn(state, batch(strategy, state, 2.0))
    assert parents_of(alone) == [only.tobytes()]
    equal, _ = strategy.learn(state, batch(strategy, state, *[1.0] * 5, standing=1.0))
    assert parents_of(equal) == [
        FIRST.tobytes(),
        *(one.tobytes() for one in children(strategy, state, 0, 2)),
    ]
    failed, info = strategy.learn(state, batch(strategy, state, *[NAN] * 5))
    assert parents_of(failed) == [FIRST.tobytes()] and info["no_step"] == 1.0


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


def test_a_changed_sigma_counts_from_its_generation_on() -> None:
    strategy = made(truncation=1, sigma_schedule="piecewise:1=0.5")
    state = strategy.start(FIRST)
    state, _ = strategy.learn(state, batch(strategy, state, 3.0))
    half = make_strategy(strategy.config, SIZE, 1)
    state, _ = half.learn(state, batch(half, state, 3.0, generation=1))
    assert half.genome(state)["sigma"].tolist() == [0.5, 0.25]


@each_case(
    ("size", "fits"),
    [
        (2 * SIZE, False),
        (2 * SIZE + 3, True),
        (2 * SIZE + 400, True),
        (2 * SIZE + 3 + 6 * 2**20, True),
        (2 * SIZE + 4 + 6 * 2**20, False),
    ],
)
def test_what_is_published_has_a_bounded_length(size: int, fits: bool) -> None:
    assert made().fits(size, 3) is fits


# --- without generations


def steady(**settings: Any) -> Strategy:
    return made(**{"schedule": "async", "population": 4, "max_lag": 3, **settings})


def test_the_strategy_itself_knows_what_each_schedule_plays() -> None:
    """The master asks the same in both: no answer is of the other schedule."""
    results = {"population": 80, "candidates": 2}
    sync, steadily = made(**results), steady(**results)
    assert (sync.batch_slots(), steadily.batch_slots()) == (80, 10)
    some = Batch(NOISE, INDICES[:3], np.array([[1.0], [3.0], [2.0]]))
    assert sync.candidates(sync.start(FIRST), some).tolist() == [1, 2, 80]
    assert steadily.candidates(steadily.start(FIRST), some).tolist() == []
    assert sync.elite_slot_count(sync.start(FIRST), 0) == 0
    published = sync.published(sync.start(FIRST))
    elite = sync.builder(NOISE)(published, 0.5, 0, 80, -1)
    assert elite.tobytes() == FIRST.tobytes() and elite.shape == (1, SIZE)


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


def test_whoever_was_lucky_grows_old() -> None:
    strategy = steady()
    states, _ = lived(strategy, [9.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert [state["window_fitness"].tolist() for state in states[-3:]] == [
        [9.0, 1.0, 2.0, 3.0],
        [1.0, 2.0, 3.0, 4.0],
        [2.0, 3.0, 4.0, 5.0],
    ]
    lucky = int(states[1]["window"][0])
    assert lucky in states[4]["parents"] and lucky not in states[5]["parents"]


def childless(seed: int) -> tuple[Strategy, list[State], dict[int, Floats], int]:
    """A run in which the child of generation 0 has left the window without children by generation
    4, and a slot of generation 1 that is one.
    """
    strategy = steady(seed=seed, population=2, candidates=1)
    states, spreads = lived(strategy, [-9.0, 1.0, 2.0, 3.0])
    drawn = draw_parents(seed, 1, np.arange(50), 2).tolist()
    family, name = Lineage.from_arrays(states[4]), int(states[1]["window"][0])
    rows = family.rows(np.array([name]))
    fits = (
        drawn[0] == 0
        and rows[0] >= 0
        and rows[0] not in family.tree.parent[1:]
        and name not in states[4]["window"]
        and name not in states[4]["parents"]
    )
    return strategy, states, spreads, drawn.index(1) if fits else -1


def test_a_late_child_is_its_own_parents_whatever_has_died_out_meanwhile() -> None:
    strategy, states, spreads, slot = next(
        found for found in map(childless, range(200)) if found[3] >= 0
    )
    after, _ = strategy.learn(states[4], answered(states[4], 4, (1, slot, 20.0), spreads=spreads))
    child = Lineage.from_arrays(after).decode(int(after["window"][-1]), NOISE)
    build = strategy.builder(NOISE)
    assert (
        child.tobytes()
        == build(
            strategy.published(states[1]),
            0.5,
            1,
            slot,
            1000 + slot,
        )[0].tobytes()
    )


def test_a_child_of_somebody_long_forgotten_counts_for_nothing() -> None:
    strategy = steady()
    states, spreads = lived(strategy, [9.0, 1.0])
    spreads[1] = np.array([0.5, 0, 60_000], np.float32)  # who descends from a parent of that name
    after, _ = strategy.learn(states[-1], answered(states[-1], 2, (1, 5, 20.0), spreads=spreads))
    assert after["window"].tolist() == states[-1]["window"].tolist()
    spreads[1] = np.array([0.5, 0, 1], np.float32)
    after, _ = strategy.learn(states[-1], answered(states[-1], 2, (1, 5, 20.0), spreads=spreads))
    assert len(after["window"]) == 3


def test_an_elite_evaluation_begins_after_a_population_and_is_played_by_the_workers() -> None:
    strategy = steady()
    states, _ = lived(strategy, [1.0, 7.0, 3.0, 5.0])
    assert [
        strategy.elite_slot_count(state, generation) for generation, state in enumerate(states)
    ] == [0, 0, 0, 0, 6]
    published, family = strategy.published(states[4]), Lineage.from_arrays(states[4])
    build = strategy.builder(NOISE)
    played = [build(published, 0.5, 4, slot, -1)[0].tobytes() for slot in range(6)]
    second, fourth = (
        family.decode(int(states[4]["window"][place]), NOISE).tobytes() for place in (1, 3)
    )
    assert played == [second, second, fourth, fourth, FIRST.tobytes(), FIRST.tobytes()]


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


def test_a_trial_is_heard_though_everybody_in_the_batch_has_failed() -> None:
    strategy = steady()
    states, spreads = lived(strategy, [1.0, 7.0, 3.0, 5.0])
    spreads[4] = strategy.spread(states[4])
    everything = tuple((4, slot, float(slot)) for slot in range(6))
    after, info = strategy.learn(
        states[4], answered(states[4], 4, (4, 0, NAN), spreads=spreads, again=everything)
    )
    assert info["elite_fitness"] == 4.5 and int(after["parents"][0]) == int(states[4]["parents"][0])
    assert after["window"].tolist() == states[4]["window"].tolist()


@each_case("seed", range(20))
def test_children_that_are_as_late_as_can_be_count_whatever_failed_meanwhile(seed: int) -> None:
    strategy = steady(seed=seed, population=2, candidates=1)
    states, spreads = lived(strategy, [1.0, 9.0])  # the second one is kept by its trial
    state, born, late = states[-1], 2, 2 + strategy.config.max_lag
    for generation in range(born, late + 1):
        spreads[generation] = strategy.spread(state)
        if (
            generation < late
        ):  # the parents of publication ``born`` leave the window, or nobody succeeds
            fitness = NAN if generation == born + 1 else 100.0 + generation
            state, _ = strategy.learn(
                state, answered(state, generation, (generation, 0, fitness), spreads=spreads)
            )
    rows = tuple((born, slot, 1.0) for slot in range(16))
    family, _, _ = strategy._add_children(state, answered(state, late, *rows, spreads=spreads))  # type: ignore[attr-defined]
    assert len(family.tree) - len(Lineage.from_arrays(state).tree) == 16, (
        "a child of a publication that is still open was dropped"
    )


def test_without_a_choice_there_are_twenty_parents_or_a_smaller_population() -> None:
    assert [
        made(population=population, truncation=0).truncation for population in (5, 20, 100)
    ] == [5, 20, 20]  # type: ignore[attr-defined]


def test_nobody_waits_for_an_episode_of_a_trial_beyond_the_lag() -> None:
    strategy = steady()
    states, spreads = lived(strategy, [1.0, 7.0, 3.0, 5.0])
    state = states[4]
    for generation in range(4, 8):
        spreads[generation] = strategy.spread(state)
        again = (
            ((4, 0, 1.0), (4, 2, 3.0), (4, 3, -100.0), (4, 4, 0.0), (4, 5, 0.0))
            if generation == 4
            else ()
        )
        state, info = strategy.learn(
            state, answered(state, generation, (generation, 0, 0.0), spreads=spreads, again=again)
        )
    assert info["elite_fitness"] == 3.0, "episode 1 was not played by all, so it does not count"


@each_case(
    ("rows", "means"),
    [
        ([[1.0, 3.0], [5.0, 5.0]], [2.0, 5.0]),
        ([[1.0, None], [5.0, 7.0]], [1.0, 5.0]),
        ([[1.0, None], [None, 7.0]], [NAN, NAN]),
        (
            [[1.0, NAN], [None, 7.0]],
            [NAN, 7.0],
        ),  # who failed is out, and his missing episodes no one's loss
        ([[NAN, NAN], [NAN, NAN]], [NAN, NAN]),
    ],
)
def test_contenders_are_compared_by_what_all_have_played(
    rows: list[list[float | None]], means: list[float]
) -> None:
    trial = EliteEvaluation.of(3, np.array([8]), 2)
    heard = [
        ((3, slot), value)
        for slot, value in enumerate(one for row in rows for one in row)
        if value is not None
    ]
    trial = trial.with_results(
        np.array([place for place, _ in heard]), np.array([value for _, value in heard])
    )
    assert np.array_equal(trial.means(), means, equal_nan=True)
