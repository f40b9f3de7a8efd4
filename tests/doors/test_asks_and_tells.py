"""What strategies are told: of individuals that failed, and of results that come late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.protocol.messages import CENTRE, TRAIN
from es_queue.slots import ANSWERED, Span, Tally
from es_queue.strategies import STRATEGIES, strategy_class
from es_queue.testing import begin, is_same, run_generation, sample_strategy
from tests.cases import each_case
from tests.parts import setup_of

pytestmark = pytest.mark.fast


@each_case(
    ("name", "settings"),
    [
        *((name, {}) for name, kind in STRATEGIES.items() if not kind.wants_behaviour),
        ("openai_es", {"shaping": "log-rank"}),
        ("openai_es", {"shaping": "z-score"}),
    ],
)
def test_an_individual_that_failed_counts_as_the_worst(name: str, settings: dict[str, Any]) -> None:
    kind = strategy_class(RunConfig(env="CartPole-v1", strategy=name))
    strategy = sample_strategy(kind, **settings)
    state = begin(strategy)
    batch = run_generation(strategy, state, 9)
    worst = np.unravel_index(batch.fitness.argmin(), batch.fitness.shape)
    expected = strategy.learn(state, batch)[0]
    others = np.sort(batch.fitness.ravel())
    # Where the size of a return counts, a failure has the smallest of the others.
    batch.fitness[worst] = others[1]
    tied = strategy.learn(state, batch)[0]
    batch.fitness[worst] = np.nan
    learnt = strategy.learn(state, batch)[0]
    assert is_same(learnt, expected) or is_same(learnt, tied)


def test_a_late_result_is_learnt_with_the_deviations_that_it_was_drawn_with() -> None:
    setup = setup_of("snes", schedule="async")
    state = setup.initial_state()
    old, new = (
        setup.learner.slots(state, number, "", [Span(CENTRE, 0, 1), Span(TRAIN, 0, 3)])
        for number in (0, 1)
    )
    old.spread = new.spread * 2
    for first, slots in ((4, old), (0, new)):
        slots.table["state"], slots.table["fitness"] = ANSWERED, 1.0
        slots.table["arrived"] = first + np.arange(4)
    batch = setup.learner.batch(state, setup.learner.choose([old, new]))
    told = [(rows.stop - rows.start, spread.tolist()) for rows, spread in batch.spreads]
    assert told == [(3, old.spread.tolist()), (3, new.spread.tolist())]


def test_an_asynchronous_batch_is_the_results_that_arrived_first_and_none_beyond_its_size() -> None:
    setup = setup_of("snes", schedule="async")
    state = setup.initial_state()
    spans = [Span(CENTRE, 0, 1), Span(TRAIN, 0, 6)]
    tables = [setup.learner.slots(state, number, "", spans) for number in (0, 1)]
    for number, slots in enumerate(tables):
        slots.table["state"] = ANSWERED
        slots.table["arrived"] = 2 * np.arange(7) + number
        slots.table["fitness"] = slots.table["arrived"][:, np.newaxis]
    batch = setup.learner.batch(state, setup.learner.choose(tables))
    assert sorted(batch.fitness.ravel().tolist()) == list(range(2, 10))


def test_asynchronous_results_that_come_too_late_to_be_learnt_from_are_counted() -> None:
    setup = setup_of("snes", schedule="async", max_lag=1)
    spans, tally = [Span(CENTRE, 0, 1), Span(TRAIN, 0, 6)], Tally()
    state = setup.initial_state()
    tables = [setup.learner.slots(state, number, "", spans) for number in (1, 2, 3)]
    for slots in tables:
        slots.table["state"], slots.table["arrived"], slots.table["steps"] = ANSWERED, 0, 5
    assert setup.learner.still_open(state, tables, 3, tally) == tables[1:]
    assert (tally.refused["stale"], tally.lost_steps) == (6, 30)
