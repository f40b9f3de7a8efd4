"""The window of the asynchronous schedule: what counts, in which order, and once alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.numerics.slot_plan import max_slots
from es_queue.protocol.messages import (
    CENTRE,
    CONFIRM,
    EVAL,
    HOST_FAILURE,
    TRAIN,
    Answer,
    EpisodeMoments,
    SlotResult,
)
from master.collect.answer_check import ResultShape
from master.collect.ledger import AnswerChecker, Ledger
from master.collect.publication.closed_generation import OpenPublication
from master.collect.publication.closing import (
    MOST_BATCHES_AHEAD,
    AsyncBatch,
    BatchSize,
    CarriedOver,
    PriorPublication,
    slots_of_ranges,
)
from master.collect.publication.slot_failures import FAILURES

NEW, OLD, OLDEST, OTHER = "5.2-0000000a", "4.2-0000000a", "3.1-0000000b", "2.1-0000000b"
CONFIG = RunConfig(
    env="CartPole-v1",
    seed=3,
    noise_size=2**18,
    population=8,
    obs_norm=False,
    schedule="async",
    max_lag=2,
)
BATCH, OBSERVED = 4, 4
MOST = {TRAIN: max_slots(CONFIG, 2)[TRAIN], CENTRE: 1, EVAL: 2, CONFIRM: 3}


def expectations(publication: str) -> AnswerChecker:
    return AnswerChecker(CONFIG, int(publication[0]), ResultShape(100, 2, OBSERVED), MOST)


def spread(publication: str) -> np.ndarray:
    return np.full(3, float(publication[0]), np.float32)


def older(publication: str, *answered: int) -> PriorPublication:
    return PriorPublication(
        publication, expectations(publication), 50, spread(publication), set(answered)
    )


def window(*others: PriorPublication, **more: int) -> Ledger:
    wanted = {CENTRE: 1, TRAIN: BATCH, **more}
    newest = PriorPublication(NEW, expectations(NEW), 60, spread(NEW))
    batch = AsyncBatch(newest, BatchSize(BATCH, BATCH), CarriedOver(others))
    return Ledger(NEW, newest.checker, wanted, closing=batch)


def result(publication: str, slot: int, kind: str = TRAIN, **changes: Any) -> SlotResult:
    expected = expectations(publication).expected_answer(kind, slot)
    assert expected is not None
    count, value = expected.individuals, float(slot)
    moments = (EpisodeMoments(3, b"\0" * 8 * OBSERVED, b"\0" * 8 * OBSERVED),) * expected.moments
    fields = (
        slot,
        expected.noise_index,
        expected.seed,
        (value,) * count,
        (value,) * count,
        (10,) * count,
        (0,) * count,
        (0,) * count,
        moments,
    )
    return dataclasses.replace(SlotResult(*fields), **changes)


def answer(
    publication: str, *slots: int, kind: str = TRAIN, failed: tuple[tuple[int, str], ...] = ()
) -> bytes:
    return Answer(
        publication,
        kind,
        "host-1-000001",
        0.5,
        tuple(result(publication, slot, kind) for slot in slots),
        failed,
    ).encode()


def fresh(book: Ledger) -> list[tuple[str, int]]:
    return [(one.publication, one.slot) for one in book.closing.unused]


def test_a_batch_is_what_came_first_of_any_open_publication_sorted_by_publication_and_slot() -> (
    None
):
    book = window(older(OLD), older(OLDEST))
    for publication, slot in ((NEW, 2), (OLD, 7), (NEW, 0), (OLDEST, 3)):
        assert not book.is_complete()
        assert book.accept(answer(publication, slot))
    assert book.accept(answer(OLD, 1))
    assert book.is_complete() and book.answer_counts() == (BATCH, BATCH)
    batch, used = book.closing.take_batch()
    assert [one and one.slot for one in batch] == [3, 7, 0, 2]
    assert [(one.publication, one.slots.tolist()) for one in used] == [
        (OLDEST, [3]),
        (OLD, [7]),
        (NEW, [0, 2]),
    ]
    assert all((one.spread == spread(one.publication)).all() for one in used)
    assert fresh(book) == [(OLD, 1)], "what the batch leaves is first in the next"


def test_no_slot_counts_twice_whichever_publication_it_is_of() -> None:
    book = window(older(OLD, 0, 1))
    assert not book.accept(answer(OLD, 0, 1)), "a batch before a takeover has used them"
    for publication in (OLD, NEW):
        assert book.accept(answer(publication, 2))
        assert not book.accept(answer(publication, 2))
    assert fresh(book) == [(OLD, 2), (NEW, 2)]
    assert book.refused == {"duplicate": 4} and book.tally.lost_steps == 4 * 20


def test_an_answer_of_a_publication_that_is_not_open_does_not_count() -> None:
    book = window(older(OLD))
    assert not book.accept(answer(OTHER, 0))
    assert book.refused == {"wrong-publication": 1} and not book.closing.unused


def test_an_older_slot_must_be_answered_with_its_own_plan() -> None:
    book = window(older(OLD))
    forged = Answer(OLD, TRAIN, "host-1-000001", 0.5, (result(NEW, 1),)).encode()
    assert not book.accept(forged) and book.refused == {"wrong-index": 1}
    beyond = dataclasses.replace(result(OLD, 1), slot=MOST[TRAIN])
    assert (
        not book.accept(Answer(OLD, TRAIN, "host-1-000001", 0.5, (beyond,)).encode())
        and book.refused["unknown-slot"] == 1
    )


def test_the_centre_and_the_evaluation_of_an_older_publication_are_stale() -> None:
    book = window(older(OLD))
    assert not book.accept(answer(OLD, 0, kind=CENTRE)) and not book.accept(
        answer(OLD, 0, kind=EVAL)
    )
    assert book.refused == {"stale": 2} and not book.closing.unused


def test_an_older_slot_that_failed_is_owed_by_nobody() -> None:
    book = window(older(OLD))
    assert not book.accept(answer(OLD, failed=((1, "it fell over"),)))
    assert book.refused == {"late-failure": 1} and not book.closing.unused
    assert {
        (kind, slot)
        for kind, start, stop in book.unanswered_ranges()
        for slot in range(start, stop)
    } == {(CENTRE, 0), *((TRAIN, slot) for slot in range(BATCH))}


def test_a_slot_that_failed_everywhere_is_in_the_batch_once_and_never_counts_again() -> None:
    book = window()
    for attempt in range(FAILURES + 1):
        book.accept(answer(NEW, failed=((1, f"attempt {attempt}"),)))
    assert [(one.slot, one.result) for one in book.closing.unused] == [(1, None)]
    assert not book.accept(answer(NEW, 1)) and len(book.closing.unused) == 1
    with pytest.raises(Exception, match="because of the workers' hosts"):
        for attempt in range(FAILURES):
            book.accept(answer(NEW, failed=((2, f"{HOST_FAILURE}{attempt}"),)))


def test_a_batch_waits_for_the_evaluation_but_not_for_the_centre() -> None:
    book = window(eval=2)
    book.accept(answer(NEW, 0, 1, 2, 3))
    assert not book.is_complete()
    book.accept(answer(NEW, 0, kind=EVAL))
    assert not book.is_complete()
    book.accept(answer(NEW, 1, kind=EVAL))
    assert book.is_complete()
    book.require(CONFIRM, 3)
    assert not book.is_complete()


def test_slots_are_issued_while_few_are_owed_and_never_beyond_the_most() -> None:
    book = window()
    assert book.closing.slots_to_issue(BATCH, book.required) == 0, "as many are owed"
    book.accept(answer(NEW, 0))
    assert book.closing.slots_to_issue(BATCH, book.required) == BATCH // 2 + 1
    book.require(TRAIN, MOST[TRAIN] - 1)
    assert book.closing.slots_to_issue(1000, book.required) == 1


def test_while_an_evaluation_is_waited_for_no_more_than_some_batches_are_played_ahead() -> None:
    book = window(eval=2)
    book.require(TRAIN, MOST_BATCHES_AHEAD * BATCH)
    book.accept(answer(NEW, *range(MOST_BATCHES_AHEAD * BATCH - 1)))
    assert book.closing.slots_to_issue(BATCH, book.required) > 0
    book.accept(answer(NEW, MOST_BATCHES_AHEAD * BATCH - 1))
    assert book.closing.slots_to_issue(BATCH, book.required) == 0


def test_no_training_is_issued_beside_a_confirmation() -> None:
    book = window(confirm=3)
    book.accept(answer(NEW, 0))
    assert book.closing.slots_to_issue(BATCH, book.required) == 0


def test_a_slot_that_a_former_master_issued_is_owed_to_nobody_else() -> None:
    book = window()
    book.accept(answer(NEW, 9))
    assert book.required[TRAIN] == 10
    assert (TRAIN, 9) not in {
        (kind, slot)
        for kind, start, stop in book.unanswered_ranges()
        for slot in range(start, stop)
    }
    assert (
        book.closing.slots_to_issue(9, book.required) == 0
        and book.closing.slots_to_issue(10, book.required) > 0
    )


def test_what_a_worker_holds_or_a_batch_can_use_stays_open_up_to_the_lag() -> None:
    book = window(older(OLDEST), older(OLD))
    book.accept(answer(NEW, 0, 1, 2, 3))
    book.closing.update_held({OLDEST})
    book.closing.take_batch()
    kept = book.closing.take_still_open(book.tally, 6, max_lag=2)
    assert [one.publication for one in kept] == [NEW], (
        "the oldest is too late, nobody holds the old one, the newest may be held"
    )
    book = window(older(OLDEST), older(OLD))
    book.closing.update_held({OLDEST})
    kept = book.closing.take_still_open(book.tally, 6, max_lag=3)
    assert [one.publication for one in kept] == [OLDEST, NEW]
    book = window(older(OLD))
    book.closing.update_held(set())
    book.accept(answer(OLD, 5))
    assert [one.publication for one in book.closing.take_still_open(book.tally, 6, max_lag=2)] == [
        OLD,
        NEW,
    ], "a fresh slot of it is left"


def test_what_is_too_late_is_counted_as_stale_and_not_used() -> None:
    book = window(older(OLDEST), older(OLD))
    book.accept(answer(OLDEST, 0, 1))
    book.accept(answer(OLD, 0))
    book.closing.take_still_open(book.tally, 6, max_lag=2)
    assert fresh(book) == [(OLD, 0)]
    assert book.refused == {"stale": 2} and book.tally.lost_steps == 40


def test_a_checkpoint_says_which_slots_are_used_and_not_which_are_fresh() -> None:
    book = window(older(OLD, 0, 1, 2))
    book.accept(answer(OLD, 4, 6))
    book.accept(answer(NEW, 0, 1, 2, 3))
    book.closing.take_batch()
    kept = {
        one.publication: book.closing.to_open_publication(one)
        for one in book.closing.take_still_open(book.tally, 6, max_lag=2)
    }
    assert slots_of_ranges(kept[OLD].counted) == {0, 1, 2, 4, 6} and slots_of_ranges(
        kept[NEW].counted
    ) == {0, 1}
    assert kept[OLD].counted.tolist() == [[0, 3], [4, 5], [6, 7]]
    assert (
        isinstance(kept[NEW], OpenPublication)
        and kept[NEW].step_limit == 60
        and kept[NEW].generation == 5
    )
