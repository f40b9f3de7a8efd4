"""Verification: the master plays again what a decision depends on, and its own results count where
they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.return_statistics import ReturnStatistics
from es_queue.protocol.messages import (
    CENTRE,
    CONFIRM,
    EVAL,
    FINAL,
    TRAIN,
    Answer,
    Block,
    SlotResult,
    Task,
)
from master.collect import verification
from master.collect.answer_check import ResultShape
from master.collect.ledger import AnswerChecker, Ledger
from master.collect.verification import (
    DRAWN,
    EXTREME,
    MOST_NOTES,
    WHOLE_SECONDS,
    Verification,
)
from master.collect.verifier import VerificationError, Verifier, VerifierReply
from master.loop.schedule import close_generation
from master.loop.state import Best, RollbackPoint, RunState
from master.run.setup import prepare_run
from tests.cases import each_case
from tests.notes import collect_notes
from tests.ring import quick_config
from workers.episode import EpisodeControl
from workers.join import join

NOISE = NoiseTable.in_memory(2**18)
PUBLICATION, WORKER = "4.2-0000000a", "host-1-000001"
CONFIG = RunConfig(env="CartPole-v1", seed=3, noise_size=2**18, population=16, obs_norm=False)
MANY = 40
EXPECTATIONS = AnswerChecker(
    CONFIG,
    4,
    ResultShape(100, 2, 4, 4),
    {TRAIN: 8, EVAL: MANY, CONFIRM: 100, FINAL: MANY, CENTRE: 2},
)


def honest(kind: str, slot: int) -> SlotResult:
    expected = EXPECTATIONS.expected_answer(kind, slot)
    assert expected is not None
    value = float(slot)
    return SlotResult(
        slot,
        -1,
        expected.seed,
        (value,),
        (value,),
        (10,),
        (0,),
        (0,),
        behaviour=bytes(expected.behaviour),
    )


def lie(kind: str, slot: int, value: float = 1e9) -> SlotResult:
    return replace(honest(kind, slot), fitness=(value,), returns=(value,))


class Own(Verifier):
    """Plays honestly and at once, unless ``error`` is there or it is told to ``wait``."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[str, int]]] = []
        self.error: Exception | None = None
        self.wait = False

    def play(
        self, task: bytes, parameters: bytes, slots: Sequence[tuple[str, int]]
    ) -> Future[VerifierReply]:  # type: ignore[override]
        self.asked.append(list(slots))
        self.future: Future[VerifierReply] = Future()
        if self.error is not None:
            self.future.set_exception(self.error)
        elif not self.wait:
            self.answer()
        return self.future

    def answer(self) -> None:
        self.future.set_result(
            VerifierReply("1" * 32, {slot: honest(*slot) for slot in self.asked[-1]})
        )


class Bench:
    """A verification over a ledger that wants ``count`` evaluation slots."""

    def __init__(self, sign: int = 1, count: int = MANY, kind: str = EVAL) -> None:
        self.own, self.notes, self.kind, self.count = Own(), collect_notes(), kind, count
        self.seen: list[ReturnStatistics] = []
        self.verification = Verification(self.own, lambda rest, number: list(rest[:number]))
        self.ledger = Ledger(PUBLICATION, EXPECTATIONS, {kind: count})
        self.decisive_sign = sign
        self.verification.begin(b"", b"", self._record_figures)

    def _record_figures(self, kind: str, figures: ReturnStatistics) -> int:
        self.seen.append(figures)
        return self.decisive_sign

    def answered(self, *lies: int, value: float = 1e9) -> Bench:
        results = tuple(
            lie(self.kind, slot, value) if slot in lies else honest(self.kind, slot)
            for slot in range(self.count)
        )
        self.ledger.accept(Answer(PUBLICATION, self.kind, WORKER, 0.1, results).encode())
        return self

    def replace_all_by_lies(self) -> None:
        """As one look of the collector does: the audit takes everything back, and other answers
        are there already.
        """
        for slot in range(self.count):
            self.ledger.withdraw((self.kind, slot))
        self.answered(*range(self.count))

    def is_pending(self) -> bool:
        return self.verification.is_pending(self.ledger)

    def settle(self) -> list[SlotResult | None]:
        while self.is_pending():
            pass
        return self.ledger.results_in_order(self.kind)


def test_an_evaluation_is_waited_for_from_its_last_slot_until_the_master_has_played() -> None:
    bench = Bench()
    bench.own.wait = True
    assert not bench.is_pending() and bench.own.asked == [], "the ledger itself waits for the slots"
    bench.answered()
    assert bench.is_pending() and bench.is_pending() and len(bench.own.asked) == 1
    bench.own.answer()
    assert not bench.is_pending() and not bench.ledger.refused and len(bench.own.asked) == 1


def test_what_nothing_depends_on_is_not_played_again() -> None:
    bench = Bench(sign=0).answered()
    assert not bench.is_pending() and not bench.is_pending()
    assert bench.own.asked == [] and len(bench.seen) == 1, "and it is looked at once"


@each_case(("sign", "extremes"), [(1, range(MANY - EXTREME, MANY)), (-1, range(EXTREME))])
def test_of_many_slots_those_that_speak_most_for_the_decision_are_played_and_some_others(
    sign: int, extremes: range
) -> None:
    bench = Bench(sign).answered()
    bench.settle()
    (asked,) = bench.own.asked
    assert len(asked) == EXTREME + DRAWN and {slot for _, slot in asked} >= set(extremes)


@each_case("lies", [{7}, {39}, set(range(MANY)), set(range(20, 40))])
def test_one_false_result_voids_the_evaluation_and_the_masters_own_counts(lies: set[int]) -> None:
    bench = Bench().answered(*lies)
    assert bench.settle() == [honest(EVAL, slot) for slot in range(MANY)]
    assert sorted(slot for asked in bench.own.asked for _, slot in asked) == list(range(MANY))
    assert bench.ledger.refused == {"refuted": len(lies)}
    assert len(bench.notes) == 1 and bench.notes[0].startswith(
        f"{WORKER} returned 1e+09 for eval slot "
    )


def test_a_false_low_result_is_found_where_low_ones_decide() -> None:
    bench = Bench(-1).answered(30, value=-1e9)
    assert bench.settle() == [honest(EVAL, slot) for slot in range(MANY)]


def test_a_few_slots_are_all_played_at_once() -> None:
    bench = Bench(count=3).answered(1)
    assert bench.settle() == [honest(EVAL, slot) for slot in range(3)] and len(bench.own.asked) == 1


@each_case("kind", [CONFIRM, FINAL])
def test_the_confirmation_and_the_final_evaluation_are_verified_too(kind: str) -> None:
    bench = Bench(count=4, kind=kind).answered(2)
    assert bench.settle() == [honest(kind, slot) for slot in range(4)]


@pytest.mark.parametrize(
    ("seconds", "played"), [(WHOLE_SECONDS, MANY), (-1.0, EXTREME + DRAWN)], ids=["in time", "not"]
)
def test_the_final_evaluation_is_wholly_verified_if_the_master_can_play_it_in_time(
    seconds: float, played: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "WHOLE_SECONDS", seconds)
    bench = Bench(kind=FINAL).answered(20, value=-5.0)
    returns = [result and result.returns[0] for result in bench.settle()]
    assert sum(map(len, bench.own.asked)) == played
    assert (-5.0 in returns) == (played < MANY), "a false result that no drawn slot finds"


def test_a_final_evaluation_that_cannot_be_verified_counts_and_that_is_said() -> None:
    bench = Bench(kind=FINAL).answered()
    bench.own.error = VerificationError("no such environment here")
    assert bench.settle() == [honest(FINAL, slot) for slot in range(MANY)]
    assert "count as the workers returned them" in bench.notes[0]


def test_what_cannot_be_verified_decides_nothing() -> None:
    bench = Bench().answered()
    bench.own.error = VerificationError("no such environment here")
    assert len(bench.settle()) == MANY and bench.ledger.verified_results(EVAL) == []
    assert close_generation(bench.ledger, 0, 0).evaluation is None
    assert "the master cannot verify them (no such environment here)" in bench.notes[0]


def test_a_result_that_is_taken_back_is_verified_anew() -> None:
    bench = Bench().answered()
    bench.settle()
    bench.ledger.withdraw((EVAL, 39))
    assert not bench.is_pending()
    bench.ledger.accept(Answer(PUBLICATION, EVAL, WORKER, 0.1, (lie(EVAL, 39),)).encode())
    assert bench.settle()[39] == honest(EVAL, 39)


@each_case("sign", [0, 1])
def test_results_that_replace_others_between_two_looks_are_verified(sign: int) -> None:
    bench = Bench(sign).answered()
    bench.settle()
    bench.decisive_sign = 1
    bench.replace_all_by_lies()
    assert bench.settle() == [honest(EVAL, slot) for slot in range(MANY)]


@each_case("lies", [set(), {39}])
def test_results_that_replace_others_while_the_master_plays_are_verified(lies: set[int]) -> None:
    bench = Bench().answered(*lies)
    bench.own.wait = True
    assert bench.is_pending()
    if lies:
        bench.own.answer()
        assert bench.is_pending() and len(bench.own.asked) == 2
    bench.replace_all_by_lies()
    bench.own.answer()
    bench.own.wait = False
    assert bench.settle() == [honest(EVAL, slot) for slot in range(MANY)]


def test_an_evaluation_that_could_not_be_verified_is_verified_if_its_results_change() -> None:
    bench = Bench().answered()
    bench.own.error = VerificationError("no such environment here")
    bench.settle()
    bench.own.error = None
    bench.replace_all_by_lies()
    bench.settle()
    assert bench.ledger.verified_results(EVAL) == [honest(EVAL, slot) for slot in range(MANY)]


def test_a_run_is_told_of_a_few_differences_only() -> None:
    bench = Bench(count=3)
    for _ in range(MOST_NOTES + 3):
        bench.ledger = Ledger(PUBLICATION, EXPECTATIONS, {EVAL: 3})
        bench.verification.begin(b"", b"", lambda *_: 1)
        bench.answered(0).settle()
    assert len(bench.notes) == MOST_NOTES


def state_of(best: float | None, *, confirmed: bool = False) -> RunState:
    nothing = np.zeros(1, np.float32)
    chosen = None if best is None else Best(nothing, nothing, nothing, 0, best, confirmed)
    setup = prepare_run(quick_config(), table=NOISE)
    return replace(setup.initial_state(), best=chosen)


@each_case(
    ("kind", "mean", "best", "expected"),
    [
        (EVAL, 9.0, None, 1),
        (EVAL, 9.0, 8.0, 1),
        (EVAL, 7.0, 8.0, 0),
        (EVAL, 8.0, 8.0, 1),
        (EVAL, 500.0, 500.0, 1),
        (CONFIRM, 400.0, 8.0, 0),
        (CONFIRM, 500.0, 8.0, 1),
        (FINAL, 1.0, 8.0, 1),
    ],
)
def test_what_depends_on_an_evaluation(
    kind: str, mean: float, best: float | None, expected: int
) -> None:
    learner = prepare_run(quick_config(), table=NOISE).learner
    assert learner.target == 475
    assert (
        learner.weighs(state_of(best), kind, ReturnStatistics(mean, 0.0, mean, mean, 20))
        == expected
    )


def test_a_rollback_depends_on_low_returns() -> None:
    setup = prepare_run(quick_config(rollback=True, eval_every=1, eval_episodes=50), table=NOISE)
    state = state_of(100.0)
    state = replace(state, anchor=RollbackPoint(0, state.strategy, state.moments, 500, 10.0, 50))
    assert [
        setup.learner.weighs(state, EVAL, ReturnStatistics(mean, 10.0, mean, mean, 50))
        for mean in (20.0, 99.0, 101.0)
    ] == [-1, 0, 1]


@each_case(("strategy", "expected"), [("novelty", 1), ("pgpe", 0)])
def test_what_an_archive_of_behaviours_is_told_is_verified(strategy: str, expected: int) -> None:
    learner = prepare_run(quick_config(strategy=strategy), table=NOISE).learner
    assert learner.weighs(state_of(None), CENTRE, ReturnStatistics(1.0, 0.0, 1, 1, 1)) == expected


@each_case("can_play", [True, False])
def test_a_false_behaviour_of_a_centre_does_not_enter_the_archive(can_play: bool) -> None:
    bench = Bench(count=2, kind=CENTRE)
    bench.own.error = None if can_play else VerificationError("no such game here")
    false = replace(honest(CENTRE, 1), behaviour=np.full(4, 3e38, "<f4").tobytes())
    bench.ledger.accept(
        Answer(PUBLICATION, CENTRE, WORKER, 0.1, (honest(CENTRE, 0), false)).encode()
    )
    assert bench.settle()[1] == (honest(CENTRE, 1) if can_play else false)
    assert len(bench.notes) == 1
    assert can_play or "count as the workers returned them" in bench.notes[0]


# --- the process


SLOTS = [(TRAIN, 0), (TRAIN, 1), (TRAIN, 5), (EVAL, 2), (CONFIRM, 0)]


def published(generation: int = 4) -> tuple[Task, np.ndarray]:
    """A task of a CartPole run with a linear policy, and its parameters."""
    parameters = np.linspace(-1, 1, 8, dtype=np.float32)
    zeros, ones = np.zeros(4, "<f4").tobytes(), np.ones(4, "<f4").tobytes()
    return Task(
        f"{generation}.2-0000000a", 0.1, 100, 8, "0" * 32, zeros, ones, NOISE.digest, 0.2
    ), parameters


def resolved(**values: object) -> RunConfig:
    return prepare_run(quick_config(strategy="ars", population=12, **values), table=NOISE).config


def test_the_masters_process_plays_a_slot_as_a_worker_does(tmp_path: Path) -> None:
    config = resolved()
    joined, (task, parameters) = join(config, EpisodeControl(), table=NOISE), published()
    with closing(Verifier(config, tmp_path)) as verifier:
        played = verifier.play(task.encode(), parameters.tobytes(), SLOTS).result(60)
        again = verifier.play(task.encode(), parameters.tobytes(), SLOTS[-1:]).result(60)
    workers = {
        (kind, slot): joined.evaluator.evaluate(
            task, parameters, Block(task.publication, kind, slot, slot + 1), WORKER, lambda _: None
        ).results[0]
        for kind, slot in SLOTS
    }
    assert played.results == workers and played.numerics == joined.numerics
    assert again.results == {SLOTS[-1]: workers[SLOTS[-1]]}


def test_what_the_process_cannot_play_is_one_sentence_and_it_can_be_asked_again(
    tmp_path: Path,
) -> None:
    task, parameters = published()
    with closing(Verifier(resolved(), tmp_path)) as verifier:
        with pytest.raises(VerificationError):
            verifier.play(task.encode(), b"", SLOTS).result(60)
        process = verifier._process
        assert process is not None
        process.kill()
        process.wait()
        assert len(
            verifier.play(task.encode(), parameters.tobytes(), SLOTS).result(60).results
        ) == len(SLOTS)


def test_a_master_that_ends_does_not_wait_for_what_its_process_plays(tmp_path: Path) -> None:
    task, parameters = published()
    verifier = Verifier(resolved(), tmp_path)
    replies = [verifier.play(task.encode(), parameters.tobytes(), SLOTS) for _ in range(3)]
    process = verifier._process
    verifier.close()
    assert process is not None and process.poll() is not None and all(one.done() for one in replies)
    verifier.close()
