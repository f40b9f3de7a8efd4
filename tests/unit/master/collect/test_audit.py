"""Audit: a slot that another worker plays again tells broken machines and careless liars from the
others.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from es_queue.protocol.messages import TRAIN, Answer, Block, SlotResult
from master.collect.audit import MOST_TRIES, MOST_TRIES_AGREED, PROVEN_AT_MOST, Audit, Verdict
from master.collect.verifier import VerificationError, VerifierReply
from master.display.notes import MOST_NOTES
from master.fleet.silent_workers import LEAST_PATIENCE, ResponsiveWorkers
from master.fleet.worker_registry import WorkerIdentity, WorkerRegistry
from tests.cases import each_case
from tests.notes import collect_notes
from tests.unit.master.collect.collector_bench import Bench

ONE, TWO = "1" * 32, "2" * 32
SLOT = (TRAIN, 3)
HONEST = SlotResult(3, 5, 7, (1.0, 2.0), (1.0, 2.0), (4, 4), (0, 0), (0, 0))
LIE = dataclasses.replace(HONEST, fitness=(1001.0, 1002.0), returns=(1001.0, 1002.0))


def identity(name: str) -> WorkerIdentity:
    return WorkerIdentity(name, "w")


class Court:
    """An audit of everything, over workers of which each is alone on its host."""

    def __init__(self, *names: str, fraction: float = 1.0, **numerics: str) -> None:
        self.notes = collect_notes()
        self.fleet = WorkerRegistry(dict)
        self.present(*names, **numerics)
        self.now = 0.0
        self.responsive = ResponsiveWorkers(lambda: self.now)
        self.audit = Audit(self.fleet, fraction, lambda: 0.5, responsive=self.responsive)

    def present(self, *names: str, **numerics: str) -> None:
        self.fleet.update(
            {
                name: {"host": name, "rq_name": "w", "numerics": numerics.get(name, ONE)}
                for name in (*names, *numerics)
            }
        )

    def verdicts(self) -> list[Verdict]:
        """What the master has proven."""
        return self.audit.poll_verdicts(lambda _, result: result)


def test_two_that_agree_confirm_the_slot() -> None:
    court = Court("a", "b")
    court.audit.sample_slot(SLOT, "a", HONEST)
    assert list(court.audit.questions) == [SLOT]
    verdict = court.audit.add_result(SLOT, "b", HONEST)
    assert (
        verdict is not None
        and not verdict.wrong
        and verdict.right == {identity("a"), identity("b")}
    )
    assert (court.audit.questions, court.audit.checked) == ({}, 1) and court.audit.confirmed[
        SLOT
    ] == verdict.right


@each_case("liar", [0, 1, 2])
def test_of_three_the_one_that_stands_alone_is_wrong(liar: int) -> None:
    court = Court("a", "b", "c")
    said = [LIE if number == liar else HONEST for number in range(3)]
    court.audit.sample_slot(SLOT, "a", said[0])
    verdict = court.audit.add_result(SLOT, "b", said[1])
    if liar < 2:
        assert verdict is None and SLOT in court.audit.questions, (
            "two that differ do not say who is wrong"
        )
        verdict = court.audit.add_result(SLOT, "c", said[2])
    assert verdict is not None and verdict.result == HONEST
    assert verdict.wrong == (set() if liar == 2 else {identity("abc"[liar])})
    assert SLOT not in court.audit.questions


def test_only_the_sampled_fraction_is_asked_again_and_only_where_somebody_else_can_be() -> None:
    for court, expected in (
        (Court("a", "b", fraction=0.5), False),
        (Court("a", "b", fraction=0.51), True),
        (Court("a"), False),
        (Court("a", b=TWO), False),
    ):
        court.audit.sample_slot(SLOT, "a", HONEST)
        assert (SLOT in court.audit.questions) is expected


def test_a_worker_that_repeats_its_own_result_confirms_nothing() -> None:
    court = Court("a", "b")
    court.audit.sample_slot(SLOT, "a", LIE)
    for look in range(1, MOST_TRIES + 1):
        assert SLOT in court.audit.questions
        for _ in range(100):
            assert court.audit.add_result(SLOT, "a", LIE) is None
        assert court.audit.review() == ([SLOT] if look == MOST_TRIES else [])
    assert SLOT not in court.audit.questions and court.audit.disputed == 0


def test_two_that_differ_are_not_let_off_by_repeating_themselves() -> None:
    court = Court("a", "b", "c")
    court.audit.sample_slot(SLOT, "a", LIE)
    court.audit.add_result(SLOT, "b", HONEST)
    for _ in range(2 * MOST_TRIES):
        court.audit.add_result(SLOT, "a", LIE)
        assert court.audit.review() == []
    verdict = court.audit.add_result(SLOT, "c", HONEST)
    assert verdict is not None and verdict.wrong == {identity("a")}


def several(court: Court, **hosts: str) -> None:
    """Workers by host: ``a1="a"`` is the worker a1 on host a."""
    court.fleet.update(
        {name: {"host": host, "rq_name": name, "numerics": ONE} for name, host in hosts.items()}
    )


def test_the_workers_of_one_machine_do_not_outvote_another_machine() -> None:
    court = Court()
    several(court, bad1="bad", bad2="bad", good="good")
    court.audit.sample_slot(SLOT, "bad1", LIE)
    assert court.audit.add_result(SLOT, "bad2", LIE) is None
    assert court.audit.add_result(SLOT, "good", HONEST) is None
    court.audit.review()
    assert court.audit.undecided and "on another host" in court.notes[0], (
        "two hosts against each other"
    )
    several(court, bad1="bad", bad2="bad", good="good", third="third")
    court.audit.sample_slot(SLOT, "bad1", LIE)
    for name, told, verdict in (
        ("bad2", LIE, None),
        ("good", HONEST, None),
        ("third", HONEST, {WorkerIdentity("bad", "bad1"), WorkerIdentity("bad", "bad2")}),
    ):
        found = court.audit.add_result(SLOT, name, told)
        assert (found and found.wrong) == verdict


def test_a_liar_on_a_machine_of_honest_workers_is_told_from_them() -> None:
    court = Court()
    several(court, liar="one", a="one", b="two")
    court.audit.sample_slot(SLOT, "liar", LIE)
    assert court.audit.add_result(SLOT, "b", HONEST) is None
    verdict = court.audit.add_result(SLOT, "a", HONEST)
    assert verdict is not None and verdict.wrong == {WorkerIdentity("one", "liar")}


@each_case("can_play", [False, True])
def test_a_host_that_answers_nothing_does_not_hold_what_two_of_another_agree_on(
    can_play: bool,
) -> None:
    audit, played = one_host_and_a_silent_one(), list[Sequence[tuple[str, int]]]()

    def play(slots: Sequence[tuple[str, int]]) -> Future[VerifierReply]:
        played.append(slots)
        reply: Future[VerifierReply] = Future()
        reply.set_result(VerifierReply(ONE, {SLOT: HONEST}))
        return reply

    audit.player.play = play if can_play else None
    audit.sample_slot(SLOT, "a", HONEST)
    assert audit.add_result(SLOT, "b", HONEST) is None and audit.review() == []
    for _ in range(1 if can_play else MOST_TRIES_AGREED):
        assert SLOT in audit.questions
        audit.add_result(SLOT, "a", HONEST)
        assert audit.review() == []
    assert played == ([[SLOT]] if can_play else [])
    assert len(audit.poll_verdicts(lambda _, result: result)) == len(played)
    assert (audit.questions, audit.checked, audit.disputed) == ({}, 1, 0)


def one_host_and_a_silent_one() -> Audit:
    """Workers a and b on one host, c on another."""
    fleet = WorkerRegistry(dict)
    hosts = {"a": "one", "b": "one", "c": "two"}
    fleet.update(
        {name: {"host": host, "rq_name": name, "numerics": ONE} for name, host in hosts.items()}
    )
    return Audit(fleet, 1.0, lambda: 0.5)


def test_the_agreement_of_one_machine_is_enough_when_no_other_can_say() -> None:
    court = Court()
    several(court, a1="a", a2="a", b="b")
    court.audit.sample_slot(SLOT, "a1", HONEST)
    assert court.audit.add_result(SLOT, "a2", HONEST) is None and SLOT in court.audit.questions
    several(court, a1="a", a2="a")
    court.audit.review()
    assert court.audit.questions == {} and court.audit.checked == 1 and not court.audit.undecided


def test_what_somebody_in_quarantine_said_has_no_weight() -> None:
    court = Court("a", "liar", "c")
    court.audit.sample_slot(SLOT, "a", HONEST)
    court.audit.add_result(SLOT, "liar", LIE)
    court.audit.remove_opinions(identity("liar"))
    assert court.audit.questions[SLOT].opinions == {identity("a"): HONEST}
    court.audit.remove_opinions(identity("a"))
    assert court.audit.questions == {}


def test_results_of_other_arithmetic_are_not_held_against_each_other() -> None:
    court = Court("a", "b", c=TWO)
    court.audit.sample_slot(SLOT, "a", HONEST)
    assert court.audit.add_result(SLOT, "c", LIE) is None
    assert court.audit.questions[SLOT].opinions == {identity("a"): HONEST}


def test_a_second_answer_that_nobody_asked_for_is_no_opinion() -> None:
    court = Court("a", "b", "c", fraction=0.0)
    court.audit.sample_slot(SLOT, "a", HONEST)
    for name in ("b", "c"):
        assert court.audit.add_result(SLOT, name, LIE) is None
    assert court.audit.questions == {} and court.audit.disputed == 0


class Own:
    """What the master plays itself: ``result``, when ``done`` is called."""

    def __init__(
        self, court: Court, numerics: str = ONE, answered: Sequence[str] | None = None
    ) -> None:
        """``answered``: workers that have answered something before; all without it."""
        self.numerics, self.asked = numerics, list[tuple[str, int]]()
        for member in court.fleet.present:
            if answered is None or member.host in answered:
                court.responsive.record_answer(member)
        self.future: Future[VerifierReply] = Future()
        court.audit.player.play = self.play

    def play(self, slots: Sequence[tuple[str, int]]) -> Future[VerifierReply]:
        self.asked += slots
        return self.future

    def succeeded(self, result: SlotResult) -> None:
        self.future.set_result(VerifierReply(self.numerics, {SLOT: result}))


def test_two_invented_workers_that_agree_do_not_outvote_an_honest_one() -> None:
    court = Court("honest", "one", "two")
    own = Own(court)
    court.audit.sample_slot(SLOT, "honest", HONEST)
    for name in ("one", "two"):
        assert court.audit.add_result(SLOT, name, LIE) is None
    assert own.asked == [SLOT] and court.verdicts() == [] and court.audit.review() == []
    own.succeeded(HONEST)
    (verdict,) = court.verdicts()
    assert (verdict.result, verdict.author, verdict.wrong) == (HONEST, "honest", {identity("one")})
    assert court.audit.questions == {} and court.audit.checked == 1


@each_case(
    ("numerics", "own_result", "expected"),
    [
        (TWO, HONEST, "arithmetic differs from the workers"),
        (ONE, replace(HONEST, steps=(9, 9)), "differs from all of them"),
    ],
)
def test_what_proves_nothing_expels_nobody(
    numerics: str, own_result: SlotResult, expected: str
) -> None:
    court = Court("honest", "liar")
    own = Own(court, numerics)
    court.audit.sample_slot(SLOT, "liar", LIE)
    court.audit.add_result(SLOT, "honest", HONEST)
    own.succeeded(own_result)
    assert not any(verdict.wrong for verdict in court.verdicts())
    assert court.audit.undecided and expected in court.notes[0]


def test_a_master_that_cannot_play_a_slot_says_why_and_the_first_result_counts() -> None:
    court = Court("honest", "liar")
    own = Own(court)
    court.audit.sample_slot(SLOT, "liar", LIE)
    court.audit.add_result(SLOT, "honest", HONEST)
    own.future.set_exception(VerificationError("no such environment here"))
    assert (
        court.verdicts() == []
        and "the master cannot play the slot (no such environment here)" in court.notes[0]
    )


def test_the_master_plays_a_bounded_number_of_slots_for_the_audit() -> None:
    court = Court("a", "b")
    own = Own(court)
    for slot in range(PROVEN_AT_MOST + 1):
        court.audit.sample_slot((TRAIN, slot), "a", HONEST)
        court.audit.add_result((TRAIN, slot), "b", LIE)
    assert len(own.asked) == PROVEN_AT_MOST and court.audit.disputed == 1
    court.audit.begin()
    court.audit.sample_slot(SLOT, "a", HONEST)
    court.audit.add_result(SLOT, "b", LIE)
    assert len(own.asked) == PROVEN_AT_MOST + 1, "of each publication"


def test_a_difference_that_nobody_can_decide_is_said_and_bits_are_not_promised() -> None:
    court = Court("a", "b")
    court.audit.sample_slot(SLOT, "a", HONEST)
    court.audit.add_result(SLOT, "b", LIE)
    court.audit.review()
    assert court.audit.questions == {} and court.audit.undecided and court.audit.disputed == 1
    assert court.notes == [
        "audit: w on a and w on b gave different results for train slot 3, and there is no "
        "third worker with equal arithmetic (on another host, if there are several) to decide "
        "which is wrong; "
        "the first result counts, and equal bits are not guaranteed"
    ]


def test_three_that_all_differ_point_at_the_environment() -> None:
    court = Court("a", "b", "c", "d")
    court.audit.sample_slot(SLOT, "a", HONEST)
    court.audit.add_result(SLOT, "b", LIE)
    court.audit.add_result(SLOT, "c", dataclasses.replace(HONEST, steps=(9, 9)))
    assert court.audit.undecided and "is not reproducible" in court.notes[0]


def test_a_question_is_dropped_when_nobody_is_left_to_answer_it() -> None:
    court = Court("a", "b")
    court.audit.sample_slot(SLOT, "a", HONEST)
    court.audit.review()
    assert SLOT in court.audit.questions
    court.present("a")
    court.audit.review()
    assert court.audit.questions == {} and not court.audit.undecided
    assert court.notes == [
        "audit: some results are not audited: no second worker with the same arithmetic returns "
        "results"
    ]


def test_a_worker_that_has_answered_nothing_is_not_waited_for() -> None:
    court = Court("a", "silent")
    own = Own(court, answered=())
    court.audit.sample_slot(SLOT, "a", HONEST)
    assert own.asked == [SLOT]
    own.succeeded(HONEST)
    assert [verdict.right for verdict in court.verdicts()] == [{identity("a")}]


def test_a_worker_that_answers_no_more_is_waited_for_once() -> None:
    court = Court("a", "b")
    own = Own(court)
    court.audit.begin(8)
    court.audit.sample_slot(SLOT, "a", HONEST)
    court.now = LEAST_PATIENCE
    assert court.audit.review() == [] and own.asked == []
    court.now += 0.1
    assert court.audit.review() == [] and own.asked == [SLOT]
    court.audit.begin(8)
    court.audit.sample_slot(SLOT, "a", HONEST)
    assert own.asked == [SLOT] * 2, "the next question goes to the master at once"
    court.audit.sample_slot((TRAIN, 4), "b", HONEST)
    court.audit.sample_slot((TRAIN, 5), "a", HONEST)
    assert own.asked == [SLOT] * 2 and court.audit.add_result((TRAIN, 5), "b", HONEST)


def test_a_worker_is_waited_for_longer_if_results_take_longer() -> None:
    court = Court("a", "b")
    own = Own(court)
    court.audit.begin(8)
    court.now = 30.0
    court.audit.sample_slot(SLOT, "a", HONEST)
    court.now = 89.0
    court.audit.review()
    assert own.asked == []
    court.now = 91.0
    court.audit.review()
    assert own.asked == [SLOT]


def test_where_nobody_answers_and_the_master_has_played_enough_the_first_result_stands() -> None:
    court = Court("a", "b")
    own = Own(court)
    court.audit.begin(PROVEN_AT_MOST + 8)
    court.audit.player.share = 1.0
    for slot in range(PROVEN_AT_MOST + 8):
        court.audit.sample_slot((TRAIN, slot), "a", HONEST)
    court.now = LEAST_PATIENCE + 0.1
    assert court.audit.review() == []
    assert list(court.audit.questions) == own.asked and len(own.asked) == PROVEN_AT_MOST


def test_after_two_looks_without_an_opinion_the_master_plays_the_slot() -> None:
    court = Court("a", "b")
    own = Own(court)
    court.audit.begin(1)
    court.audit.sample_slot(SLOT, "a", HONEST)
    for expected in ([], [SLOT]):
        court.audit.add_result(SLOT, "a", HONEST)
        assert court.audit.review() == [] and own.asked == expected


def test_a_result_that_nobody_confirmed_is_taken_back_once() -> None:
    court = Court("a", "b")
    court.audit.sample_slot(SLOT, "a", HONEST)
    for _ in range(MOST_TRIES - 1):
        court.audit.mark_inconclusive(SLOT)
        assert court.audit.review() == []
    court.audit.mark_inconclusive(SLOT)
    assert court.audit.review() == [SLOT]
    court.audit.sample_slot(SLOT, "a", HONEST)
    assert court.audit.questions == {}
    court.audit.begin()
    court.audit.sample_slot(SLOT, "a", HONEST)
    assert list(court.audit.questions) == [SLOT], "the slot of the next publication is another one"


@each_case(("told", "wrong"), [(HONEST, set()), (LIE, {identity("a")})])
def test_the_master_plays_what_no_second_worker_can_be_asked_for(
    told: SlotResult, wrong: set[WorkerIdentity]
) -> None:
    court = Court("a", b=TWO)
    own = Own(court)
    court.audit.sample_slot(SLOT, "a", told)
    assert own.asked == [SLOT] and SLOT in court.audit.questions
    own.succeeded(HONEST)
    (verdict,) = court.verdicts()
    assert (verdict.result, verdict.wrong, court.audit.checked, court.audit.undecided) == (
        HONEST,
        wrong,
        1,
        False,
    )


def test_the_master_plays_a_bounded_number_of_slots_instead_of_a_second_worker() -> None:
    court = Court("a")
    own = Own(court)
    court.audit.begin(PROVEN_AT_MOST)
    for slot in range(PROVEN_AT_MOST + 5):
        court.audit.sample_slot((TRAIN, slot), "a", HONEST)
    assert len(own.asked) == PROVEN_AT_MOST
    court.audit.begin(100 * PROVEN_AT_MOST)
    court.audit.sample_slot(SLOT, "a", HONEST)
    assert court.audit.questions == {}, "of a large publication some are drawn, not the first ones"


def test_what_nobody_can_audit_is_noted_once() -> None:
    court = Court("a")
    own = Own(court, TWO)
    court.audit.sample_slot(SLOT, "a", LIE)
    own.succeeded(HONEST)
    assert court.verdicts() == [] and court.audit.questions == {} and not court.audit.undecided
    court.audit.sample_slot(SLOT, "a", LIE)
    assert court.verdicts() == []
    assert (
        len(court.notes) == 1
        and "no second worker with the same arithmetic returns results" in court.notes[0]
    )


# --- with the ledger and the collector around it


def bench_of(*names: str) -> tuple[Bench, dict[str, object]]:
    bench = Bench(audit=1.0)
    channels = {name: bench.worker(name, rq_name="w", numerics=ONE) for name in names}
    bench.open()
    bench.tick()
    return bench, channels


def lie(bench: Bench, result: SlotResult) -> SlotResult:
    better = tuple(one + 1000 for one in result.fitness)
    return dataclasses.replace(result, fitness=better, returns=better)


def test_the_generation_stays_open_until_what_is_played_again_is_answered() -> None:
    bench, channels = bench_of("a", "b")
    bench.work(channels["a"])
    bench.collector.drain(bench.ledger, 0.0)
    assert not bench.ledger.is_complete() and len(bench.collector.context.audit.questions) == 7
    bench.tick()
    assert sum(int(one.split()[2]) - int(one.split()[1]) for one in bench.todo()) == 7, (
        "reconcile issues them"
    )
    bench.work(channels["b"])
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.ledger.is_complete() and bench.collector.context.audit.checked == 7
    assert bench.ledger.refused == {"audit": 7}, "it was asked for, so it is no fault of anybody"


def test_what_a_liar_answered_is_evaluated_again_and_its_later_answers_do_not_count() -> None:
    bench, channels = bench_of("a", "b", "liar")
    honest, bench.result = bench.result, lambda kind, slot: lie(bench, honest(kind, slot))
    bench.work(channels["liar"])
    bench.collector.drain(bench.ledger, 0.0)
    bench.result = honest
    for name in ("a", "b"):
        for kind, slots in (("centre", 1), ("train", 6)):
            bench.answer(channels[name], Block(bench.ledger.publication, kind, 0, slots))
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.collector.fleet.quarantined == {WorkerIdentity("liar", "w")}
    assert next(one for one in bench.notes if "liar" in one).startswith(
        "audit: w on liar gave a different result for centre slot 0"
    )
    assert all(
        one is None or max(one.fitness) == 1.0
        for kind in ("centre", "train")
        for one in bench.ledger.results_in_order(kind)
    )
    before = bench.ledger.refused["quarantined"]
    bench.answer(channels["liar"], Block(bench.ledger.publication, "train", 0, 6))
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.ledger.refused["quarantined"] == before + 6
    bench.tick()
    assert (
        bench.server.progress["give_way"] == "liar-1-abcdef"
        and '"liar"' in bench.server.progress["quarantined"]
    )


def test_what_others_confirmed_of_a_liar_is_kept_and_the_rest_is_owed_again() -> None:
    bench, channels = bench_of("a", "b", "liar")
    honest = bench.result
    bench.result = lambda kind, slot: (
        lie(bench, honest(kind, slot)) if (kind, slot) == ("train", 5) else honest(kind, slot)
    )
    bench.work(channels["liar"])
    bench.collector.drain(bench.ledger, 0.0)
    bench.result = honest
    bench.answer(channels["a"], Block(bench.ledger.publication, "train", 0, 2))
    for name in ("a", "b"):
        bench.answer(channels[name], Block(bench.ledger.publication, "train", 5, 6))
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.collector.fleet.quarantined == {WorkerIdentity("liar", "w")}
    assert bench.ledger.unanswered_ranges() == [("centre", 0, 1), ("train", 2, 5)]


def test_a_question_at_which_the_others_only_fail_does_not_stay_open_for_ever() -> None:
    bench, channels = bench_of("a", "b")
    bench.work(channels["a"])
    bench.collector.drain(bench.ledger, 0.0)
    for number in range(MOST_TRIES):
        assert (TRAIN, 0) in bench.collector.context.audit.questions
        payload = Answer(
            bench.ledger.publication, TRAIN, "b-1-abcdef", 0.1, (), ((0, f"attempt {number}"),)
        ).encode()
        channels["b"].answer(Block(bench.ledger.publication, TRAIN, 0, 1), payload)
        bench.collector.drain(bench.ledger, 0.0)
        bench.tick()
    assert (
        TRAIN,
        0,
    ) not in bench.collector.context.audit.questions and 0 not in bench.ledger.results[TRAIN], (
        "its result does not stand either"
    )


def test_a_liars_reports_of_failures_are_taken_back() -> None:
    bench, channels = bench_of("a", "b", "liar")
    for number in range(10):
        payload = Answer(
            bench.ledger.publication, TRAIN, "liar-1-abcdef", 0.1, (), ((0, f"attempt {number}"),)
        ).encode()
        channels["liar"].answer(Block(bench.ledger.publication, TRAIN, 0, 1), payload)
    honest, bench.result = bench.result, lambda kind, slot: lie(bench, honest(kind, slot))
    bench.answer(channels["liar"], Block(bench.ledger.publication, TRAIN, 5, 6))
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.ledger.failures.slots == {(TRAIN, 0)}
    bench.result = honest
    for name in ("a", "b"):
        bench.answer(channels[name], Block(bench.ledger.publication, TRAIN, 5, 6))
    bench.collector.drain(bench.ledger, 0.0)
    assert (
        bench.ledger.failures.slots == set() and ("train", 0, 5) in bench.ledger.unanswered_ranges()
    )


def test_a_strict_run_waits_for_workers_of_its_own_arithmetic() -> None:
    bench = Bench(strict=True)
    one, other = bench.worker("one", numerics=ONE), bench.worker("other", numerics=TWO)
    bench.collector.fleet.restore(ONE, None)
    bench.open()
    bench.work(other)
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.ledger.answer_counts()[0] == 0 and bench.ledger.refused == {"other-numerics": 7}
    bench.tick()
    assert bench.server.progress["give_way"] == "other-1-abcdef"
    bench.work(one)
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.ledger.is_complete()


def test_the_claims_of_a_dismissed_worker_hold_nothing_up() -> None:
    bench = Bench(strict=True)
    other = bench.worker("other", numerics=TWO)
    bench.collector.fleet.restore(ONE, None)
    bench.open()
    assert other.claim(0.0) is not None
    bench.tick()
    assert sum(int(one.split()[2]) - int(one.split()[1]) for one in bench.todo()) == 7


def test_what_nobody_has_questioned_of_a_liar_is_owed_again_too() -> None:
    bench, channels = bench_of("a", "b", "liar")
    draws = iter([2.0] * 6 + [0.0] + [2.0] * 99)
    bench.collector.context.audit._draw = lambda: next(draws)
    honest, bench.result = bench.result, lambda kind, slot: lie(bench, honest(kind, slot))
    bench.work(channels["liar"])
    bench.collector.drain(bench.ledger, 0.0)
    assert list(bench.collector.context.audit.questions) == [("train", 5)]
    bench.result = honest
    for name in ("a", "b"):
        bench.answer(channels[name], Block(bench.ledger.publication, TRAIN, 5, 6))
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.ledger.unanswered_ranges() == [("centre", 0, 1), ("train", 0, 5)]


def test_a_decided_slot_is_not_opened_again_by_another_answer() -> None:
    bench, channels = bench_of("a", "b", "liar", "second")
    honest, bench.result = bench.result, lambda kind, slot: lie(bench, honest(kind, slot))
    block = Block(bench.ledger.publication, TRAIN, 5, 6)
    bench.answer(channels["liar"], block)
    bench.collector.drain(bench.ledger, 0.0)
    bench.result = honest
    for name in ("a", "b"):
        bench.answer(channels[name], block)
    bench.collector.drain(bench.ledger, 0.0)
    bench.result = lambda kind, slot: lie(bench, honest(kind, slot))
    bench.answer(channels["second"], block)
    bench.collector.drain(bench.ledger, 0.0)
    told = [one for one in bench.notes if one.startswith("audit:")]
    assert [one.split(" gave ")[0] for one in told] == ["audit: w on liar"]
    assert bench.ledger.refused["conflict"] == 3 and bench.ledger.results[TRAIN][5] == honest(
        TRAIN, 5
    )


def test_of_a_proven_liar_that_cannot_be_quarantined_nothing_counts_in_this_publication() -> None:
    bench, channels = bench_of("a", "b", "liar")
    burnt = json.dumps([[f"burnt{number}", "w"] for number in range(3)])
    bench.collector.fleet.restore(ONE, burnt)
    honest = bench.result

    def play(slots: Sequence[tuple[str, int]]) -> Future[VerifierReply]:
        reply: Future[VerifierReply] = Future()
        reply.set_result(VerifierReply(ONE, {slot: honest(*slot) for slot in slots}))
        return reply

    draws = iter([2.0] * 6 + [0.0] * 2 + [2.0] * 99)
    audit = bench.collector.context.audit
    assert audit is not None
    audit.player.play, audit._draw = play, lambda: next(draws)
    audit.player._draw = audit._draw
    bench.result = lambda kind, slot: lie(bench, honest(kind, slot))
    bench.work(channels["liar"])
    bench.collector.drain(bench.ledger, 0.0)
    bench.ledger.decide()
    assert len(bench.collector.fleet.quarantined) == 3
    assert bench.ledger.unanswered_ranges() == [("centre", 0, 1), ("train", 0, 5)]
    bench.answer(channels["liar"], Block(bench.ledger.publication, TRAIN, 0, 2))
    bench.collector.drain(bench.ledger, 0.0)
    assert bench.ledger.refused["quarantined"] == 2
    assert bench.ledger.unanswered_ranges() == [("centre", 0, 1), ("train", 0, 5)]
    assert [note for note in bench.notes if "none of its results counts in this generation" in note]
    audit.begin()
    assert bench.collector.fleet.refusal("liar-1-abcdef") == ""


def test_a_lone_worker_that_differs_from_the_master_is_not_asked_again_and_again() -> None:
    court = Court("a")
    verdict = Verdict(SLOT, HONEST, frozenset(), frozenset({identity("a")}), proven=True)
    assert not court.audit.exclude(identity("a"), verdict, "train slot 3", 5)
    assert court.fleet.refusal("a") == "" and "evaluated again" not in court.notes[0]


def test_a_flood_of_false_results_does_not_become_a_flood_of_notes() -> None:
    court = Court("a")
    verdict = Verdict(SLOT, HONEST, frozenset(), frozenset(), proven=True)
    for _ in range(10 * MOST_NOTES):
        court.audit.exclude(identity("a"), verdict, "train slot 3", 0)
    assert len(court.notes) == MOST_NOTES
