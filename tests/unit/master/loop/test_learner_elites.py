"""Evaluating individuals again: more slots of the same publication, chosen by its answers, whoever
gives them and whenever.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from es_queue.numerics.slot_plan import ELITE as SEEDS
from es_queue.numerics.slot_plan import evaluation_seeds, make_generation_plan
from es_queue.protocol.messages import CENTRE, ELITE, TRAIN, Answer, Block, SlotResult
from master.collect.answer_check import ResultShape
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.collector import Interrupted
from master.collect.ledger import AnswerChecker, Ledger
from master.collect.publication.closed_generation import ClosedGeneration
from master.collect.publication.slot_failures import FAILURES
from master.loop.learner import Learner
from master.storage import checkpoint
from tests.cases import each_case
from tests.memory_channel import MemoryWorkerChannel
from tests.parts import TABLE, config_of, evaluator, task_of
from tests.tiny import MOODY, Script
from tests.unit.master.collect.collector_bench import Bench
from tests.unit.master.loop.test_generation_loop import Run, lively, same, tiny

PUBLICATION = "4.1-00000000"
SEARCH: dict[str, Any] = {
    "strategy": "random_search",
    "population": 8,
    "candidates": 3,
    "elite_episodes": 5,
    "obs_norm": False,
}
CONFIG = config_of(**SEARCH)
EXPECTATIONS = AnswerChecker(
    CONFIG, 4, ResultShape(2, 1, 2), {TRAIN: 8, CENTRE: 1, ELITE: 9}, (50, 100)
)


def answered(ledger: Ledger, kind: str, *slots: int, **changes: Any) -> bool:
    return ledger.accept(
        Answer(
            PUBLICATION,
            kind,
            "host-1-000001",
            0.1,
            tuple(result(kind, slot, **changes) for slot in slots),
        ).encode()
    )


def result(kind: str, slot: int, /, **changes: Any) -> SlotResult:
    expected = EXPECTATIONS.expected_answer(kind, slot)
    assert expected is not None
    one = SlotResult(
        slot,
        expected.noise_index,
        expected.seed,
        (float(slot),),
        (float(slot),),
        (10 * expected.episodes,),
        (0,),
        (0,),
    )
    return dataclasses.replace(one, **changes)


# --- the ledger


def test_a_publication_can_close_on_chosen_slots() -> None:
    ledger = Ledger(PUBLICATION, EXPECTATIONS, {TRAIN: 8})
    assert answered(ledger, TRAIN, *range(8)) and ledger.is_complete()
    assert ledger.require_slots(ELITE, [2, 3, 8]) and not ledger.is_complete()
    assert ledger.unanswered_ranges() == [
        (ELITE, 2, 4),
        (ELITE, 8, 9),
    ] and ledger.answer_counts() == (8, 11)
    assert answered(ledger, ELITE, 3)
    assert ledger.unanswered_ranges() == [(ELITE, 2, 3), (ELITE, 8, 9)]
    assert answered(ledger, ELITE, 2, 8) and ledger.is_complete()
    assert [one and one.slot for one in ledger.results_in_order(ELITE)] == [2, 3, 8]


def test_the_same_choice_is_no_reason_to_wait_and_another_is() -> None:
    ledger = Ledger(PUBLICATION, EXPECTATIONS, {TRAIN: 8})
    assert not ledger.require_slots(ELITE, []) and ELITE not in ledger.required
    answered(ledger, TRAIN, *range(8))
    assert ledger.require_slots(ELITE, [2, 8]) and not ledger.require_slots(ELITE, [2, 8])
    assert answered(ledger, ELITE, 2, 8) and ledger.is_complete()
    assert ledger.require_slots(ELITE, [2, 5, 8]) and ledger.unanswered_ranges() == [(ELITE, 5, 6)]
    assert (
        ledger.require_slots(ELITE, [])
        and ledger.is_complete()
        and ledger.results_in_order(ELITE) == []
    )


def test_an_answer_that_came_before_the_choice_counts_once_it_is_chosen() -> None:
    ledger = Ledger(PUBLICATION, EXPECTATIONS, {TRAIN: 8})
    assert answered(ledger, ELITE, 2, 5)
    assert ledger.require_slots(ELITE, [2, 8]) and ledger.unanswered_ranges() == [
        (TRAIN, 0, 8),
        (ELITE, 8, 9),
    ]


@each_case(
    ("slot", "changes", "reason"),
    [
        (9, {"slot": 9}, "unknown-slot"),
        (2, {"noise_index": -1}, "wrong-index"),
        (8, {"noise_index": 3}, "wrong-index"),
        (2, {"seed": 7}, "wrong-index"),
        (2, {"steps": (4,)}, "wrong-length"),  # five episodes have five steps or more
        (2, {"steps": (251,)}, "wrong-length"),  # and fifty each at most
        (2, {"at_limit": (6,)}, "wrong-length"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(
    slot: int, changes: dict[str, Any], reason: str
) -> None:
    ledger = Ledger(PUBLICATION, EXPECTATIONS, {TRAIN: 8})
    assert not answered(ledger, ELITE, min(slot, 8), **changes)
    assert ledger.refused == {reason: 1}


def test_a_publication_without_elites_knows_none() -> None:
    expectations = AnswerChecker(CONFIG, 4, ResultShape(2, 1, 2), {TRAIN: 8, CENTRE: 1})
    ledger = Ledger(PUBLICATION, expectations, {TRAIN: 8})
    assert not answered(ledger, ELITE, 2) and ledger.refused == {"unknown-slot": 1}


def test_an_elite_that_fails_everywhere_has_no_second_result() -> None:
    ledger = Ledger(PUBLICATION, EXPECTATIONS, {TRAIN: 8})
    answered(ledger, TRAIN, *range(8))
    ledger.require_slots(ELITE, [2, 8])
    for attempt in range(FAILURES):
        ledger.accept(
            Answer(
                PUBLICATION, ELITE, "host-1-000001", 0.1, (), ((2, f"attempt {attempt}"),)
            ).encode()
        )
    assert answered(ledger, ELITE, 8) and ledger.is_complete()
    assert [one and one.slot for one in ledger.results_in_order(ELITE)] == [None, 8]


# --- the worker


def test_an_individual_is_played_again_on_the_seeds_that_all_elites_share() -> None:
    world = Script([1.0])
    who = evaluator(world, **SEARCH, action_noise=0.5)
    task, published = task_of(4, 2, sigma=0.5, parameters=[0.25, -0.5, 0.1, 0.2])
    sent = who.evaluate(
        task, published, Block(task.publication, ELITE, 6, 9), "host-1-000001", lambda failure: None
    )
    seeds = evaluation_seeds(CONFIG, SEEDS, 4, 5).tolist()
    assert world.seeds == seeds * 3
    plan = make_generation_plan(CONFIG, 4, 2, 1).slots(0, 8)
    assert [(one.slot, one.noise_index, one.seed, one.steps) for one in sent.results] == [
        (6, plan.noise_indices[6], seeds[0], (5,)),
        (7, plan.noise_indices[7], seeds[0], (5,)),
        (8, -1, seeds[0], (5,)),
    ]
    look = world.observation(0)
    first = np.array([0.1, 0.2], np.float32)
    tried = [
        first + np.float32(0.5) * TABLE.row(int(index), 2) for index in plan.noise_indices[6:8]
    ]
    for place, parameters in enumerate((*tried, published[:2])):  # without action noise
        assert float(world.seen[5 * place][2][0]) == float(np.clip(look @ parameters, -1, 1))


def test_only_a_strategy_that_evaluates_again_has_such_slots() -> None:
    for values, stop, has in (
        ({"strategy": "pgpe"}, 1, False),
        (SEARCH, 9, True),
        (SEARCH, 10, False),
    ):
        assert (
            evaluator(Script([1.0]), **values).planner.has_block(
                Block(PUBLICATION, ELITE, stop - 1, stop)
            )
            is has
        )


# --- the ring


def test_the_elite_of_a_generation_is_the_best_by_its_new_episodes() -> None:
    run = Run(tiny(**SEARCH, generations=6))
    ended = run.play()
    found = [record["elite_fitness"] for record in run.sink.records if record["population"]]
    assert len(found) == 6 and found[-1] > -6.25  # of the first parameters
    assert ended.state.counters.env_steps == 6 * (
        8 * 5 + 4 * 5 * 5
    )  # a budget counts the second episodes too


def test_slots_beyond_the_batch_are_never_elites(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[tuple[set[int], int, bool]] = []
    real = Learner.learn

    def learn(self: Learner, state: Any, done: ClosedGeneration) -> Any:
        lucky = max((one.fitness[0] for one in done.surplus if one), default=0.0)
        better = lucky > sorted(one.fitness[0] for one in done.counted if one)[-3]
        again.append(
            (
                {one.slot for one in done.reevaluations if one} - {self.strategy.centre_slot},
                len(done.counted),
                better,
            )
        )
        return real(self, state, done)

    monkeypatch.setattr(Learner, "learn", learn)
    Run(
        lively(
            "random_search",
            generations=30,
            population=4,
            step_limit="200",
            sigma=1.0,
            elite_episodes=1,
            eval_every=0,
        )
    ).play()
    assert any(better for _, _, better in again), "one of the surplus would be among the best"
    assert all(len(slots) == 3 and max(slots) < counted for slots, counted, _ in again)


def test_a_failing_second_episode_is_the_same_for_everybody() -> None:
    values = {
        **SEARCH,
        "elite_episodes": 2,
        "env": MOODY,
        "env_arg": (("fault", "some"),),
        "env_seeds": "slot",
        "generations": 6,
        "eval_every": 0,
        "final_episodes": 0,
    }
    quiet = Run(tiny(**values))
    expected = quiet.play()
    failed = [
        record
        for record in quiet.sink.records
        if record["failed"] and "elite_fitness" not in record
    ]
    assert failed and any("elite_fitness" in record for record in quiet.sink.records)
    other = Run(tiny(**values, block=1))
    assert same(other.play(3), expected) and other.figures() == quiet.figures()


def test_a_run_stopped_among_its_elites_goes_on_with_what_was_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = Run(lively("random_search", generations=3)).play()
    run, asked, real = (
        Run(lively("random_search", generations=3, block=1)),
        threading.Event(),
        MemoryWorkerChannel.answer,
    )
    played: list[Block] = []

    def elites() -> int:
        return sum(block.kind == ELITE and block.publication.startswith("1.") for block in played)

    def answer(self: MemoryWorkerChannel, block: Block, payload: bytes) -> bool:
        if elites() == 2:
            asked.wait(10)
        played.append(block)
        return real(self, block, payload)

    def ask() -> bool:
        if elites() == 2:
            asked.set()
        return asked.is_set()

    monkeypatch.setattr(MemoryWorkerChannel, "answer", answer)
    with pytest.raises(Interrupted):
        run.play(interrupted=ask)
    monkeypatch.setattr(MemoryWorkerChannel, "answer", real)
    run.server.lease = ("", 0.0)
    publication = run.server.progress["publication"]
    state = checkpoint.decode(run.server.checkpoint or b"")[1]
    assert state.generation == 1 and publication.startswith("1.")
    ended = run.play(2, state, publication)
    assert same(ended, expected)
    assert ended.state.counters.refused == 0 and not any(
        "published again" in note for note in run.sink.notes
    )


def test_a_redis_that_comes_back_empty_among_the_elites_costs_nothing_but_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = Run(lively("random_search", generations=3)).play()
    run, flushed, real = (
        Run(lively("random_search", generations=3, block=1)),
        [],
        MemoryWorkerChannel.answer,
    )

    def answer(self: MemoryWorkerChannel, block: Block, payload: bytes) -> bool:
        with self.server.changed:
            if not flushed and block.kind == ELITE and block.publication.startswith("1."):
                flushed.append(block)
                self.server.flush()
        return real(self, block, payload)

    monkeypatch.setattr(MemoryWorkerChannel, "answer", answer)
    assert same(run.play(2), expected)
    assert flushed and any("published again" in note for note in run.sink.notes)


def test_lost_elites_are_issued_again_in_blocks_of_their_own_length() -> None:
    """A slot of 40 episodes where training's has two: a block of as many slots would take twenty
    times as long.
    """
    scheduler = BlockScheduler(per_slot=2, episodes_per_slot={ELITE: 40}, seconds={TRAIN: 0.01})
    bench = Bench(scheduler=scheduler)
    bench.ledger = Ledger(
        bench.ledger.publication,
        AnswerChecker(CONFIG, 3, ResultShape(8, 1, 2), {TRAIN: 12, ELITE: 13}),
        {TRAIN: 12},
        bench.collector.context,
    )
    bench.open()
    lost = bench.server.todo.copy()
    bench.server.todo.clear()
    bench.tick()
    assert max(block.stop - block.start for block in decoded(bench)) == 7 and lost
    bench.ledger.require_slots(ELITE, range(13))
    bench.server.todo.clear()
    bench.tick()
    assert max(block.stop - block.start for block in decoded(bench) if block.kind == ELITE) == 2


def decoded(bench: Bench) -> list[Block]:
    return [Block.decode(one) if isinstance(one, str | bytes) else one for one in bench.server.todo]
