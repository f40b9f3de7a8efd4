"""The ledger: the first valid answer of a slot counts, everything else is refused with a reason
that is counted.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure
from es_queue.protocol.messages import (
    CENTRE,
    EVAL,
    TRAIN,
    Answer,
    Block,
    EpisodeMoments,
    SlotResult,
)
from master.collect.answer_check import ResultShape
from master.collect.blocks.block_scheduler import iterate_equal_blocks
from master.collect.ledger import AnswerChecker, Ledger, LedgerContext
from master.collect.publication.pending_slots import to_ranges
from master.collect.publication.slot_failures import DEATHS, FAILURES, MOST_FAILURES
from master.collect.recovery_statistics import WORKER_DIED
from master.fleet.worker_registry import WorkerRegistry
from tests.cases import each_case
from tests.notes import collect_notes

PUBLICATION, OTHER = "4.2-0000000a", "5.2-0000000a"
CONFIG = RunConfig(
    env="CartPole-v1", seed=3, noise_size=2**18, population=16, obs_norm=True, obs_sample=0.3
)
SLOTS, OBSERVED = 8, 4
EXPECTATIONS = AnswerChecker(
    CONFIG, 4, ResultShape(100, 2, OBSERVED), {TRAIN: 12, CENTRE: 1, EVAL: 5}
)
SAMPLED = [
    slot
    for slot in range(12)
    if (found := EXPECTATIONS.expected_answer(TRAIN, slot)) is not None and found.moments
]
PLAIN = [slot for slot in range(SLOTS) if slot not in SAMPLED]


def worker(number: int = 1) -> str:
    return f"host-1-{number:06x}"


def ledger(fleet: WorkerRegistry | None = None, **wanted: int) -> Ledger:
    kinds = wanted or {EVAL: 2, CENTRE: 1, TRAIN: SLOTS}
    return Ledger(PUBLICATION, EXPECTATIONS, kinds, LedgerContext(fleet))


def result(at: int, kind: str = TRAIN, value: float = 1.0, **changes: Any) -> SlotResult:
    expected = EXPECTATIONS.expected_answer(kind, at)
    assert expected is not None
    count = expected.individuals
    moments = (EpisodeMoments(3, b"\0" * 8 * OBSERVED, b"\0" * 8 * OBSERVED),) * expected.moments
    fields = (
        at,
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
    *results: SlotResult,
    kind: str = TRAIN,
    publication: str = PUBLICATION,
    failures: tuple[tuple[int, str], ...] = (),
    by: int = 1,
) -> bytes:
    return Answer(publication, kind, worker(by), 0.5, results, failures).encode()


def failed(slot: int, by: int = 1, attempt: int = 0, kind: str = TRAIN) -> bytes:
    return answer(kind=kind, by=by, failures=((slot, f"attempt {attempt}"),))


def test_the_first_valid_answer_of_a_slot_counts() -> None:
    book = ledger()
    assert book.accept(answer(result(0, value=1.0), result(1, value=2.0)))
    assert not book.accept(answer(result(0, value=9.0)))
    assert [one and one.fitness for one in book.results_in_order(TRAIN)][:3] == [
        (1.0, 1.0),
        (2.0, 2.0),
        None,
    ]
    assert book.refused == {"conflict": 1}
    assert book.context.conflicts == {worker(): 1}
    assert book.tally.contributors == {worker()}


def test_an_answer_that_was_sent_twice_counts_once() -> None:
    book = ledger()
    payload = answer(result(0), result(1))
    assert book.accept(payload) and not book.accept(payload)
    assert book.refused == {"duplicate": 2}
    assert book.tally.lost_steps == 40, "the steps of what was played twice are known"
    assert book.tally.seconds_per_slot(TRAIN) == 0.25


@each_case(
    ("payload", "reason"),
    [
        (b"nonsense", "undecodable"),
        (answer(result(0), publication=OTHER), "wrong-publication"),
        (answer(result(11, slot=12)), "unknown-slot"),
        (answer(result(0, EVAL, slot=5), kind=EVAL), "unknown-slot"),
        (answer(result(0, EVAL), kind="final"), "unknown-slot"),
        (answer(result(0, noise_index=5)), "wrong-index"),
        (answer(result(0, seed=5)), "wrong-index"),
        (answer(result(0, slot=1)), "wrong-index"),
        (answer(result(0, CENTRE, noise_index=0), kind=CENTRE), "wrong-index"),
        (answer(result(0, EVAL, seed=result(1, EVAL).seed), kind=EVAL), "wrong-index"),
        (
            answer(
                result(
                    PLAIN[0], fitness=(1.0,), returns=(1.0,), steps=(1,), at_limit=(0,), cut=(0,)
                )
            ),
            "wrong-shape",
        ),
        (answer(result(SAMPLED[0], moments=())), "wrong-shape"),
        (
            answer(result(SAMPLED[0], moments=(EpisodeMoments(3, b"\0" * 8, b"\0" * 8),) * 2)),
            "wrong-shape",
        ),
        (
            answer(result(PLAIN[0], moments=(EpisodeMoments(3, b"\0" * 32, b"\0" * 32),))),
            "wrong-shape",
        ),
        (answer(result(PLAIN[0], steps=(10, 0))), "wrong-length"),
        (answer(result(0, at_limit=(0, 2))), "wrong-length"),
        (answer(result(0, cut=(2, 0))), "wrong-length"),
        (
            answer(
                result(
                    SAMPLED[0],
                    moments=(
                        EpisodeMoments(11, b"\0" * 32, b"\0" * 32),
                        EpisodeMoments(12, b"\0" * 32, b"\0" * 32),
                    ),
                )
            ),
            "wrong-length",
        ),
        (answer(failures=tuple((slot, "x") for slot in range(13))), "undecodable"),
        (answer(*(result(0) for _ in range(13))), "undecodable"),
        (answer(result(0)) + b"\0" * 30_000, "undecodable"),
    ],
)
def test_what_cannot_count_is_refused_with_its_reason(payload: bytes, reason: str) -> None:
    book = ledger()
    before = book.unanswered_ranges()
    assert not book.accept(payload)
    assert book.refused == {reason: 1}
    assert book.unanswered_ranges() == before and not book.tally.contributors


def test_a_slot_that_may_be_wanted_later_is_taken_already() -> None:
    book = ledger()
    assert book.accept(answer(result(11)))
    assert book.results_in_order(TRAIN) == [None] * SLOTS
    book.require(TRAIN, 12)
    assert book.results_in_order(TRAIN)[11] == result(11)


def test_good_slots_of_an_answer_count_although_others_are_refused() -> None:
    book = ledger()
    assert book.accept(answer(result(0), result(1, seed=7), result(2)))
    assert book.refused == {"wrong-index": 1}
    assert book.unanswered_ranges()[-2:] == [("train", 1, 2), ("train", 3, 8)]


def test_a_publication_is_complete_when_every_wanted_slot_of_every_kind_is_answered() -> None:
    book = ledger()
    assert book.answer_counts() == (0, 11)
    book.accept(answer(*(result(slot) for slot in range(SLOTS))))
    book.accept(answer(result(0, CENTRE), kind=CENTRE))
    assert not book.is_complete() and book.unanswered_ranges() == [("eval", 0, 2)]
    book.accept(answer(result(0, EVAL), result(1, EVAL), kind=EVAL))
    assert book.is_complete() and book.answer_counts() == (11, 11)
    book.require(EVAL, 3)
    assert not book.is_complete() and book.unanswered_ranges() == [("eval", 2, 3)]
    assert book.has_answers(EVAL, 0, 2) and not book.has_answers(EVAL, 0, 3)


def test_three_failures_by_one_worker_alone_make_a_slot_hopeless() -> None:
    book = ledger()
    for attempt in range(FAILURES):
        assert not book.has_answers(TRAIN, 3, 4)
        assert book.accept(failed(3, attempt=attempt), live=1)
        assert book.needs_reconcile
    assert book.failures.slots == {("train", 3)} and book.has_answers(TRAIN, 3, 4)
    assert ("train", 3, 4) not in book.unanswered_ranges()


def test_where_there_are_two_workers_two_must_have_failed() -> None:
    book = ledger()
    for attempt in range(MOST_FAILURES - 1):
        book.needs_reconcile = False
        book.accept(failed(3, attempt=attempt), live=2)
        assert book.needs_reconcile == (attempt < FAILURES), (
            "a worker that goes on failing waits for the next second"
        )
    assert not book.failures.slots
    book.accept(failed(3, by=2), live=2)
    assert book.failures.slots == {("train", 3)}


def test_a_slot_that_one_worker_alone_keeps_failing_is_given_up_in_the_end() -> None:
    book = ledger()
    for attempt in range(MOST_FAILURES):
        assert not book.failures.slots
        book.accept(failed(3, attempt=attempt), live=2)
    assert book.failures.slots == {("train", 3)}


def test_a_failed_slot_is_a_suspect_and_a_later_result_of_it_counts() -> None:
    book = ledger()
    for attempt in range(FAILURES):
        book.accept(failed(3, attempt=attempt))
    assert book.reconcile_request(4, False, []).suspects == {("train", 3)}
    assert book.accept(answer(result(3)))
    assert not book.failures.slots and book.results_in_order(TRAIN)[3] == result(3)
    book.accept(failed(3, attempt=9))
    assert not book.failures.slots, "a failure after a result is nothing"


def test_an_evaluation_that_keeps_failing_ends_the_run() -> None:
    book = ledger()
    book.accept(failed(0, kind=EVAL))
    book.accept(failed(0, kind=EVAL, attempt=1))
    seed = result(0, EVAL).seed
    with pytest.raises(
        EnvironmentFailure,
        match=(
            rf"eval slot 0 \(generation 4 of CartPole-v1, environment seed {seed}\) failed 3 "
            r"times.*attempt 2"
        ),
    ):
        book.accept(failed(0, kind=EVAL, attempt=2))


def test_a_generation_in_which_every_episode_fails_ends_the_run() -> None:
    book = ledger(train=2)
    for attempt in range(FAILURES):
        book.accept(failed(0, attempt=attempt))
    with pytest.raises(EnvironmentFailure, match="every episode"):
        for attempt in range(FAILURES):
            book.accept(failed(1, attempt=attempt))


def test_failures_of_slots_that_cannot_be_are_not_kept() -> None:
    book = ledger()
    for attempt in range(FAILURES):
        book.accept(failed(12, attempt=attempt))
    assert (
        not book.failures.slots
        and not book.needs_reconcile
        and not book.reconcile_request(4, False, []).suspects
    )


def test_after_two_deaths_the_slots_of_the_block_in_work_are_suspects_and_ten_end_the_run() -> None:
    book = ledger()
    held = (Block(PUBLICATION, TRAIN, 2, 4), Block(PUBLICATION, TRAIN, 4, 8))
    book.accept(answer(result(2)))
    book.record_death(held)
    assert not book.reconcile_request(4, False, []).suspects
    book.record_death(held)
    assert book.reconcile_request(4, False, []).suspects == {("train", 3)}, (
        "the answered slot and the waiting block did nothing"
    )
    for _ in range(DEATHS - 3):
        book.record_death(held)
    with pytest.raises(
        EnvironmentFailure, match=rf"train slot 3 .*CartPole-v1, environment seed {result(3).seed}"
    ):
        book.record_death(held)
    assert book.tally.recovered == DEATHS


def test_deaths_that_a_former_master_counted_count_on() -> None:
    book = ledger()
    book.failures.restore_deaths({(TRAIN, 2): DEATHS - 1, (TRAIN, 5): 1})
    assert book.reconcile_request(4, False, []).suspects == {("train", 2)}
    with pytest.raises(EnvironmentFailure, match="train slot 2"):
        book.record_death((Block(PUBLICATION, TRAIN, 2, 3),))


def test_the_death_of_an_idle_worker_or_over_another_publication_is_nobodys_fault() -> None:
    book = ledger()
    for _ in range(DEATHS + 1):
        book.record_death(())
        book.record_death((Block(OTHER, TRAIN, 0, 1),))
    assert book.tally.recovered == book.context.recoveries.count(WORKER_DIED) == DEATHS + 1, (
        "it is told all the same, but for the idle"
    )
    assert not book.reconcile_request(4, False, []).suspects


def test_owed_is_what_reconcile_needs() -> None:
    book = ledger()
    book.accept(answer(*(result(slot) for slot in (0, 1, 2, 3, 5))))
    owed = book.reconcile_request(3, True, ["someone"])
    assert (owed.publication, owed.block_size, owed.grace, owed.give_way) == (
        PUBLICATION,
        3,
        True,
        ["someone"],
    )
    assert owed.ranges == [("eval", 0, 2), ("centre", 0, 1), ("train", 4, 5), ("train", 6, 8)]


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 60)), st.integers(0, 7))
def test_ranges_and_blocks_cover_exactly_the_missing_slots(missing: set[int], size: int) -> None:
    spans = to_ranges(iter(sorted(missing)), TRAIN)
    assert all(second[1] > first[2] for first, second in itertools.pairwise(spans)), (
        "they do not touch"
    )
    blocks = list(iterate_equal_blocks(PUBLICATION, spans, {TRAIN: size}))
    assert [slot for block in blocks for slot in range(block.start, block.stop)] == sorted(missing)
    assert all(block.stop - block.start <= max(1, size) for block in blocks)


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(SLOTS)), st.data())
def test_the_order_and_the_repetition_of_answers_do_not_matter(
    order: list[int], data: st.DataObject
) -> None:
    book = ledger(train=SLOTS)
    sent = [*order, *data.draw(st.lists(st.sampled_from(order), max_size=5))]
    for slot in sent:
        book.accept(answer(result(slot, value=float(slot))))
    assert book.is_complete()
    assert book.results_in_order(TRAIN) == [
        result(slot, value=float(slot)) for slot in range(SLOTS)
    ]
    assert sum(book.refused.values()) == len(sent) - SLOTS


def test_a_hopeless_centre_and_half_a_hopeless_generation_are_not_a_hopeless_generation() -> None:
    book = ledger(centre=1, train=2)
    for kind in (CENTRE, TRAIN):
        for attempt in range(FAILURES):
            book.accept(failed(0, kind=kind, attempt=attempt))
    assert book.failures.slots == {("centre", 0), ("train", 0)} and not book.is_complete()


def test_a_failure_that_was_sent_twice_is_one_failure() -> None:
    book = ledger()
    for _ in range(FAILURES):
        book.accept(failed(3))
    assert not book.failures.slots


def test_failures_of_slots_that_cannot_be_are_refused() -> None:
    book = ledger()
    assert not book.accept(failed(12))
    assert book.refused == {"unknown-slot": 1}


def test_what_a_host_lacked_stops_the_run_and_scores_nothing() -> None:
    book = ledger()
    for attempt in range(FAILURES - 1):
        book.accept(answer(failures=((2, f"host: OSError: No space left on device {attempt}"),)))
    with pytest.raises(
        EnvironmentFailure,
        match=(
            r"train slot 2 \(generation 4 of CartPole-v1, environment seed \d+\) failed 3 times "
            r"because of the workers' hosts: OSError: No space left"
        ),
    ):
        book.accept(answer(failures=((2, "host: OSError: No space left on device"),)))
    assert not book.failures.slots


def test_no_honest_answer_is_too_long_or_has_too_many_slots() -> None:
    every, reason = tuple(result(slot) for slot in range(12)), "\U0001f600" * 1000
    for data in (answer(*every), answer(failures=tuple((slot, reason) for slot in range(12)))):
        book = ledger()
        assert book.accept(data) and not book.refused
    assert len(data) > 12 * 1600


def test_an_answer_longer_than_an_honest_one_is_refused_by_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book, seen = ledger(), []
    monkeypatch.setattr("es_queue.protocol.codec.Reader", lambda data: seen.append(data))
    assert not book.accept(b"\0" * (EXPECTATIONS.largest_bytes + 1)) and not seen
    assert book.refused == {"undecodable": 1}


def test_an_episode_that_is_left_out_of_the_statistics_is_an_answer() -> None:
    nothing = EpisodeMoments(0, b"\0" * 8 * OBSERVED, b"\0" * 8 * OBSERVED)
    assert ledger().accept(answer(result(SAMPLED[0], moments=(nothing, nothing))))


def test_failures_that_do_not_count_are_counted_as_refused_and_not_remembered() -> None:
    book = ledger()
    assert book.accept(failed(0)) and not book.accept(failed(0))
    assert book.accept(answer(result(0)))
    remembered = len(book.failures.marks)
    assert not any(book.accept(failed(0, attempt=attempt)) for attempt in range(1, 50))
    assert (
        book.refused == {"duplicate": 1, "late-failure": 49}
        and len(book.failures.marks) == remembered
    )


LIMITED = AnswerChecker(
    CONFIG,
    4,
    ResultShape(100, 2, OBSERVED),
    {TRAIN: 12, CENTRE: 1, EVAL: 5},
    (10, 20),
)


@each_case(("kind", "most"), [(TRAIN, 10), (CENTRE, 10), (EVAL, 20)])
def test_no_episode_is_longer_than_its_limit(kind: str, most: int) -> None:
    at = PLAIN[0] if kind == TRAIN else 0
    fitting = result(at, kind)
    count = len(fitting.steps)
    assert LIMITED.refusal(kind, dataclasses.replace(fitting, steps=(most,) * count)) == ""
    assert (
        LIMITED.refusal(kind, dataclasses.replace(fitting, steps=(most + 1,) * count))
        == "wrong-length"
    )


@each_case(("mean", "m2"), [(1e150, 0.0), (-3.5e38, 0.0), (0.0, 1e78), (0.0, -1e78)])
def test_moments_that_no_float32_observation_has_are_refused(mean: float, m2: float) -> None:
    """Statistics of them would not be finite as float32, and a task that is not finite stops every
    worker.
    """

    def moments(mean: float, m2: float) -> tuple[EpisodeMoments, ...]:
        one = EpisodeMoments(
            1, struct.pack("<d", mean) * OBSERVED, struct.pack("<d", m2) * OBSERVED
        )
        return (one,) * len(result(SAMPLED[0]).moments)

    assert EXPECTATIONS.refusal(TRAIN, result(SAMPLED[0], moments=moments(3.4e38, 1e76))) == ""
    assert (
        EXPECTATIONS.refusal(TRAIN, result(SAMPLED[0], moments=moments(mean, m2)))
        == "wrong-moments"
    )


def test_the_first_two_results_of_a_slot_that_differ_are_named_with_hosts_and_figures() -> None:
    book, notes = ledger(), collect_notes()
    for value in (1.0, 1.0000001, 1.5):
        book.accept(answer(result(0, value=value), by=int(2 * value)))
    assert book.refused == {"conflict": 2} and len(notes) == 1
    assert f"{worker(2)} fitness 1.0 and 1.0, return 1.0 and 1.0, 10 and 10 steps" in notes[0]
    assert "fitness 1.0000001 and 1.0000001" in notes[0] and "train slot 0 (gen" in notes[0]


def test_failures_of_all_seats_of_a_worker_are_those_of_one_worker() -> None:
    known: dict[str, dict[str, str]] = {
        worker(number): {"host": "one", "rq_name": "w"} for number in (1, 2)
    }
    book = ledger(WorkerRegistry(lambda: known))
    for number, by in enumerate((1, 2, 1)):
        book.accept(failed(PLAIN[0], by=by, attempt=number), live=2)
    assert book.failures.slots == set()
    known[worker(3)] = {"host": "two", "rq_name": "w"}
    book.accept(failed(PLAIN[0], by=3, attempt=9), live=2)
    assert book.failures.slots == {(TRAIN, PLAIN[0])}


@each_case("name", ["fitness", "returns"])
def test_a_return_whose_square_is_infinite_is_refused(name: str) -> None:
    assert EXPECTATIONS.refusal(TRAIN, result(PLAIN[0], **{name: (-1e99, 1e99)})) == ""
    assert EXPECTATIONS.refusal(TRAIN, result(PLAIN[0], **{name: (1.0, -1e101)})) == "wrong-return"
