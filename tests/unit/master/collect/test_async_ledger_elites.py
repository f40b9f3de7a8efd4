"""Elites in the window of the asynchronous schedule: an episode a slot, of any open publication,
each once, waited for by nobody.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.numerics.slot_plan import ELITE as SEEDS
from es_queue.numerics.slot_plan import evaluation_seeds, max_slots
from es_queue.protocol.messages import CENTRE, ELITE, TRAIN, Answer, Block, SlotResult
from master.collect.answer_check import AnswerChecker, ResultShape
from master.collect.ledger import Ledger
from master.collect.publication.closing import (
    MOST_BATCHES_AHEAD,
    AsyncBatch,
    BatchSize,
    CarriedOver,
    PriorPublication,
)
from master.collect.publication.slot_failures import FAILURES
from tests.parts import evaluator, task_of
from tests.tiny import Script

NEW, OLD = "5.2-0000000a", "4.2-0000000a"
CONFIG = RunConfig(
    env="CartPole-v1",
    seed=3,
    noise_size=2**14,
    population=16,
    truncation=4,
    candidates=3,
    elite_episodes=2,
    obs_norm=False,
    schedule="async",
    max_lag=2,
    strategy="ga",
)
MOST = {TRAIN: max_slots(CONFIG, 1)[TRAIN], CENTRE: 1, ELITE: max_slots(CONFIG, 1)[ELITE]}
BATCH, MOST_OF_A_BATCH = 2, 16
SPREAD = np.zeros(3, np.float32)


def expectations(publication: str) -> AnswerChecker:
    return AnswerChecker(CONFIG, int(publication[0]), ResultShape(100, 1, 4), MOST)


def window(elites: int = 4, *older: PriorPublication) -> Ledger:
    newest = PriorPublication(NEW, expectations(NEW), 60, SPREAD)
    batch = AsyncBatch(newest, BatchSize(BATCH, MOST_OF_A_BATCH), CarriedOver(older))
    book = Ledger(NEW, newest.checker, {CENTRE: 1, TRAIN: BATCH}, closing=batch)
    book.require_slots(ELITE, range(elites))
    return book


def result(publication: str, kind: str, slot: int, **changes: Any) -> SlotResult:
    expected = expectations(publication).expected_answer(kind, slot)
    assert expected is not None
    return dataclasses.replace(
        SlotResult(slot, expected.noise_index, expected.seed, (1.0,), (1.0,), (10,), (0,), (0,)),
        **changes,
    )


def answer(publication: str, kind: str, *slots: int, **changes: Any) -> bytes:
    return Answer(
        publication,
        kind,
        "host-1-000001",
        0.5,
        tuple(result(publication, kind, slot, **changes) for slot in slots),
    ).encode()


def tried(book: Ledger) -> list[tuple[str, list[int]]]:
    return [(name, slots.tolist()) for name, slots in book.closing.take_reevaluated()[1]]


def test_elites_are_owed_but_a_batch_does_not_wait_for_them() -> None:
    book = window()
    assert (ELITE, 0, 4) in book.unanswered_ranges()
    assert book.accept(answer(NEW, TRAIN, 0, 1)) and book.is_complete()
    assert (ELITE, 0, 4) in book.unanswered_ranges()


def test_a_batch_of_older_answers_waits_until_the_elites_are_claimed() -> None:
    late = PriorPublication(OLD, expectations(OLD), 60, SPREAD)
    for elites, closes in ((4, False), (0, True)):
        book = window(elites, dataclasses.replace(late, answered=set()))
        assert book.accept(answer(OLD, TRAIN, 5, 6)) and book.is_complete() is closes
        assert (
            book.accept(answer(NEW, TRAIN, 0)) and book.is_complete()
        )  # its block stood behind theirs


def test_elites_of_any_open_publication_count_once() -> None:
    book = window(4, PriorPublication(OLD, expectations(OLD), 60, SPREAD, reevaluated={0}))
    assert book.accept(answer(OLD, ELITE, 3, 1)) and book.accept(answer(NEW, ELITE, 2))
    assert not book.accept(answer(OLD, ELITE, 0, 3)) and not book.accept(answer(NEW, ELITE, 2))
    assert book.refused == {"duplicate": 3}
    assert tried(book) == [(OLD, [1, 3]), (NEW, [2])] and tried(book) == []
    assert not book.closing.unused, "they are no training"


def test_an_elite_must_be_answered_with_its_own_seed() -> None:
    book = window()
    seeds = evaluation_seeds(CONFIG, SEEDS, 5, 2).tolist()
    assert [result(NEW, ELITE, slot).seed for slot in range(4)] == [*seeds, *seeds]
    assert not book.accept(answer(NEW, ELITE, 1, seed=seeds[0])) and not book.accept(
        answer(NEW, ELITE, 1, noise_index=7)
    )
    assert book.refused == {"wrong-index": 2}
    beyond = dataclasses.replace(result(NEW, ELITE, 1), slot=MOST[ELITE])
    assert (
        not book.accept(Answer(NEW, ELITE, "host-1-000001", 0.5, (beyond,)).encode())
        and book.refused["unknown-slot"] == 1
    )


def test_an_elite_that_fails_everywhere_is_said_to_have_failed() -> None:
    book = window()
    for attempt in range(FAILURES):
        book.accept(
            Answer(NEW, ELITE, "host-1-000001", 0.1, (), ((2, f"attempt {attempt}"),)).encode()
        )
    (only,), names = book.closing.take_reevaluated()
    assert only is None and [(name, slots.tolist()) for name, slots in names] == [(NEW, [2])]


def test_a_batch_takes_all_that_is_there_up_to_a_population() -> None:
    book = window(0)
    assert book.closing.slots_to_issue(4, book.required) > 0
    assert book.accept(answer(NEW, TRAIN, *range(20)))
    batch, _ = book.closing.take_batch()
    assert len(batch) == MOST_OF_A_BATCH and len(book.closing.unused) == 4
    assert (
        book.accept(answer(NEW, TRAIN, *range(20, 16 + MOST_BATCHES_AHEAD * MOST_OF_A_BATCH)))
        and book.closing.slots_to_issue(50, book.required) == 0
    )


def test_a_worker_plays_an_episode_of_each_slot_of_those_whom_the_publication_names() -> None:
    values = {
        "strategy": "ga",
        "schedule": "async",
        "population": 16,
        "truncation": 4,
        "candidates": 3,
        "elite_episodes": 2,
        "obs_norm": False,
    }
    world = Script([1.0])
    who = evaluator(world, **values)
    elite, base = [0.25, -0.5], [0.1, 0.2]
    table = [
        2,
        1,
        1,
        1,
        1,
        0,
        0,
        9,
        0.5,
    ]  # two rows; the second is the parent and the contender, base + 0.5 · noise[9]
    task, published = task_of(4, 2, parameters=[*elite, *base, *table])
    assert (
        who.fits(task)
        and who.planner.has_block(Block(task.publication, ELITE, 7, 8))
        and not who.planner.has_block(Block(task.publication, ELITE, 8, 9))
    )
    sent = who.evaluate(
        task, published, Block(task.publication, ELITE, 0, 4), "host-1-000001", lambda failure: None
    )
    seeds = evaluation_seeds(who.config, SEEDS, 4, 2).tolist()
    assert world.seeds == [*seeds, *seeds] and not sent.failures
    assert [(one.slot, one.noise_index, one.seed, one.steps) for one in sent.results] == [
        (slot, -1, seeds[slot % 2], (1,)) for slot in range(4)
    ]
    look, contender = world.observation(0), np.float32(base) + np.float32(0.5) * who.table.row(9, 2)
    for place, parameters in enumerate(
        (contender, contender, np.float32(elite), np.float32(elite))
    ):
        assert float(world.seen[place][2][0]) == float(np.clip(look @ parameters, -1, 1))


def test_a_table_that_cannot_be_is_a_failure_of_its_slots() -> None:
    who = evaluator(Script([1.0]), strategy="ga", population=8, truncation=4, obs_norm=False)
    task, published = task_of(4, 2, parameters=[0, 0, 0, 0, 2, 1, 0, 1, 7, 0, 9, 0.5])
    sent = who.evaluate(
        task, published, Block(task.publication, TRAIN, 0, 2), "host-1-000001", lambda failure: None
    )
    assert not sent.results and [slot for slot, _ in sent.failures] == [0, 1]
    assert all(
        "a table of mutations contains a number of the wrong type" in reason
        for _, reason in sent.failures
    )
