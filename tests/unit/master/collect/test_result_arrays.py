"""What closing is made of: arrays of results, owed slots and gathered ones give the bits of going
through them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from es_queue.errors import RunFolderError
from es_queue.numerics.normalization import Moments, RunningMoments
from es_queue.numerics.return_statistics import return_statistics
from es_queue.numerics.slot_plan import GenerationPlan
from es_queue.protocol import messages
from es_queue.protocol.messages import Block, EpisodeMoments, SlotResult
from master.collect import collector
from master.collect.blocks import block_scheduler
from master.collect.collector import Collector, Interrupted
from master.collect.ledger import Ledger
from master.collect.publication import closed_generation as result_arrays
from master.collect.publication.closed_generation import (
    PrefixAccumulator,
    ResultArrays,
    merge_moments,
    ordered_statistics,
)
from master.collect.publication.pending_slots import PendingSlots, to_ranges
from master.loop.listeners import CheckpointWriter
from master.loop.publisher import OpenGeneration
from master.loop.state import TRAINING
from master.storage import checkpoint
from master.storage.checkpoint import Checkpoints
from tests.cases import each_case
from tests.memory_channel import MemoryMasterChannel
from tests.ring import workers
from tests.unit.master.collect.collector_bench import Bench
from tests.unit.master.loop.test_generation_loop import TABLE, Run, lively, same, tiny

numbers = st.floats(-1e300, 1e300, allow_nan=False)


# --- observation statistics


@each_case("size", [1, 2, 24, 376])
@each_case("piece", [1, 2**15])
def test_moments_merged_at_once_have_the_bits_of_one_after_the_other(
    size: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("es_queue.numerics.normalization.PIECE", piece)
    rng = np.random.default_rng(size)
    for count in (0, 1, 7, 400):
        counts = rng.integers(0, 3, count).tolist()
        means, m2s = 100 * rng.normal(size=(count, size)), rng.uniform(size=(count, size))
        first = RunningMoments(2**53 + 1, rng.normal(size=size), rng.uniform(size=size))
        assert bits(first.merge_many(counts, means, m2s)) == bits(
            one_by_one(first, counts, means, m2s)
        )


def test_an_episode_that_would_spoil_the_statistics_is_left_out_of_many_as_of_one() -> None:
    means, m2s = np.ones((5, 2)), np.ones((5, 2))
    means[2, 1], m2s[4, 0] = np.inf, np.nan
    found = RunningMoments.empty(2).merge_many([3] * 5, means, m2s)
    assert (
        bits(found) == bits(one_by_one(RunningMoments.empty(2), [3] * 5, means, m2s))
        and found.count == 9
    )


def test_moments_of_another_size_are_refused_at_once_too() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        RunningMoments.empty(3).merge_many([1], np.ones((1, 2)), np.ones((1, 2)))


def one_by_one(
    moments: RunningMoments, counts: list[int], means: np.ndarray, m2s: np.ndarray
) -> RunningMoments:
    for one in map(Moments, counts, means, m2s):
        moments = moments.merge(one)
    return moments


def bits(moments: RunningMoments) -> tuple[int, bytes, bytes]:
    return moments.count, moments.mean.tobytes(), moments.m2.tobytes()


# --- the arrays


class Told:
    """Stands in for what is gathered, and counts how often."""

    asked = 0

    def extend(self, *_: object) -> None:
        self.asked += 1


def result(slot: int, each: int = 2, moments: int = 0) -> SlotResult:
    rng = np.random.default_rng(slot)
    scores = tuple(rng.normal(size=each).tolist())
    mean = rng.normal(size=3).tobytes()
    return SlotResult(
        slot,
        slot + 7,
        1,
        scores,
        tuple(10 * one for one in scores),
        (slot + 1,) * each,
        (0,) * each,
        (slot % 2,) * each,
        (EpisodeMoments(4, mean, mean),) * moments,
    )


@each_case("failed", [set(), {0}, {3, 4}, set(range(9))])
def test_columns_hold_what_the_results_hold_and_nothing_of_failed_slots(failed: set[int]) -> None:
    slots = [None if slot in failed else result(slot) for slot in range(9)]
    found, results = ResultArrays.from_results(slots), [one for one in slots if one is not None]
    assert found.noise_indices.tolist() == [0 if one is None else one.noise_index for one in slots]
    assert found.scores("fitness").tolist() == [one for each in results for one in each.fitness]
    assert found.scores("returns").tolist() == [one for each in results for one in each.returns]
    assert np.isnan(found.fitness).all(axis=1).tolist() == [one is None for one in slots]
    assert (found.individuals, found.total_steps) == (
        2 * len(results),
        sum(sum(one.steps) for one in results),
    )


@given(st.lists(numbers, max_size=50))
def test_figures_of_an_array_are_those_of_the_list_to_the_bit(values: list[float]) -> None:
    assert repr(ordered_statistics(np.array(values, float))) == repr(return_statistics(values))


@each_case("seed", range(20))
def test_squares_are_those_of_the_list_too(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=20_000)
    assert ordered_statistics(values) == return_statistics(values.tolist())


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=6),
    st.sets(st.integers(0, 19)),
    st.integers(0, 20),
)
@settings(deadline=None)
def test_what_is_gathered_on_the_way_is_what_closing_would_have_made(
    stops: list[int], failed: set[int], most: int
) -> None:
    slots = [None if slot in failed else result(slot, moments=slot % 3) for slot in range(20)]
    results = {one.slot: one for one in slots if one is not None}
    base = RunningMoments.empty(3)
    gathered = PrefixAccumulator(base, most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_arrays, "LEAST_SLOTS", 2)
        for stop in stops:
            gathered.extend(results, stop)
    assert len(gathered.slots) <= most
    assert bits(gathered.all_moments(slots)) == bits(merge_moments(base, slots))
    for name in ("valid", "noise_indices", "fitness", "returns", "steps", "cut"):
        np.testing.assert_array_equal(
            getattr(gathered.to_arrays(slots), name),
            getattr(ResultArrays.from_results(slots), name),
        )


@each_case("strategy", ["openai_es", "pgpe"])
def test_a_run_that_gathers_every_slot_at_once_ends_as_one_that_gathers_none(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Run(lively(strategy)).play()
    taken: list[int] = []
    real = PrefixAccumulator.extend

    def gather(self: PrefixAccumulator, results: Any, stop: int) -> None:
        real(self, results, stop)
        taken.append(len(self.slots))

    monkeypatch.setattr(result_arrays, "LEAST_SLOTS", 1)
    monkeypatch.setattr(PrefixAccumulator, "extend", gather)
    assert same(Run(lively(strategy, block=1)).play(2), expected)
    assert any(taken), "nothing was gathered, so nothing was shown"


# --- which slots are owed


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answer", "want", "choose"]),
            st.integers(0, 12),
            st.sets(st.integers(0, 12)),
        ),
        max_size=30,
    )
)
def test_owed_slots_are_those_that_a_walk_over_all_would_find(
    steps: list[tuple[str, int, set[int]]],
) -> None:
    settled: set[int] = set()
    owed = PendingSlots(settled.__contains__, lambda: not settled)
    wanted: list[int] = []
    for what, number, some in steps:
        if what == "answer":
            settled.add(number)
            owed.mark_answered(number)
        elif what == "want":
            wanted = list(range(number))
            owed.require(number)
        elif some:
            wanted = sorted(some)
            owed.require_slots(wanted)
        missing = [slot for slot in wanted if slot not in settled]
        assert (list(owed.slots), owed.unanswered_count) == (wanted, len(missing))
        assert owed.ranges("x") == to_ranges(missing, "x")


# --- plans and blocks


@given(st.integers(1, 60), st.integers(0, 1000), st.data())
def test_repeats_are_drawn_anew_in_slot_order(size: int, seed: int, data: st.DataObject) -> None:
    plan = GenerationPlan(seed, 3, size, 2, 1, "pair", 0.25)
    drawn = np.array(
        data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size)), np.int64
    )
    expected, taken = drawn.copy(), set[int]()
    for slot, value in enumerate(drawn.tolist()):
        fresh = plan._redraw_candidates(1, slot, size)
        while value in taken:
            value = next(fresh)
        expected[slot] = value
        taken.add(value)
    plan._redraw(1, drawn, size)
    assert drawn.tolist() == expected.tolist()


def test_blocks_beyond_the_first_follow_the_publication_and_all_slots_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "FIRST_BLOCKS", 2)
    monkeypatch.setattr(collector, "BLOCKS_PER_SCRIPT", 1)
    bench, published, real = Bench(block=1), [], block_scheduler.BlockScheduler.iterate_blocks
    monkeypatch.setattr(
        bench.channel,
        "publish",
        lambda token, what, publish=bench.channel.publish: (
            published.append(len(what.blocks)) or publish(token, what)
        ),
    )
    bench.open()
    todo = [Block.decode(entry) for entry in bench.server.todo]
    assert published == [2] and todo == list(
        real(bench.scheduler, bench.ledger.publication, bench.ledger.unanswered_ranges(), 1)
    )
    assert {block.kind for block in todo} == {messages.CENTRE, messages.TRAIN} and len(todo) == 7


def test_what_a_master_had_no_time_to_add_after_publishing_is_owed_to_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector, "FIRST_BLOCKS", 2)
    bench = Bench(block=1)
    monkeypatch.setattr(bench.channel, "extend", lambda *_, **__: True)  # it ended there
    bench.open()
    assert len(bench.server.todo) == 2
    bench.tick()
    assert sorted(
        slot
        for entry in bench.server.todo
        for slot in [Block.decode(entry).start]
        if " train " in entry
    ) == list(range(6))


# --- what follows the publish


def test_a_stop_in_the_final_episodes_leaves_the_chosen_policy_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tiny(generations=3, eval_every=1, final_episodes=4), saved=Checkpoints(tmp_path))
    loop, collect = run.loop(), Collector.collect

    def stopped(collector: Collector, ledger: Ledger, is_over: Callable[[], bool]) -> bool:
        if messages.FINAL in ledger.required:
            raise Interrupted
        return collect(collector, ledger, is_over)

    monkeypatch.setattr(Collector, "collect", stopped)
    with workers(run.server, run.setup.config, TABLE, 1), pytest.raises(Interrupted):
        loop.run(run.setup.initial_state(), None)
    best = loop.current.state.best
    assert best is not None and Checkpoints(tmp_path).is_best_stored(best)


def test_a_best_policy_that_could_not_be_written_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, real = [0], Checkpoints.save_best

    def full(self: Checkpoints, data: bytes) -> Path:
        tries[0] += 1
        if tries[0] == 1:
            raise RunFolderError("the disk is full")
        return real(self, data)

    monkeypatch.setattr(Checkpoints, "save_best", full)
    run = Run(
        tiny(generations=4, eval_every=100), saved=Checkpoints(tmp_path)
    )  # generation 0 alone is evaluated while it trains
    loop = run.loop()
    seen: list[bool] = []
    collect = Collector.collect

    def looked(collector: Collector, ledger: Ledger, is_over: Callable[[], bool]) -> bool:
        is_complete = collect(collector, ledger, is_over)
        best = loop.current.state.best
        seen.append(best is not None and Checkpoints(tmp_path).is_best_stored(best))
        return is_complete

    monkeypatch.setattr(Collector, "collect", looked)
    with workers(run.server, run.setup.config, TABLE, 1):
        loop.run(run.setup.initial_state(), None)
    assert seen[:3] == [False, False, True]


def test_the_best_policys_file_follows_the_publish_and_is_written_again_only_where_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    run = Run(tiny(generations=3, eval_every=1), saved=Checkpoints(tmp_path))
    real_publish, real_save = MemoryMasterChannel.publish, Checkpoints.save_best
    monkeypatch.setattr(
        MemoryMasterChannel,
        "publish",
        lambda self, token, what: (
            order.append(what.publication.partition(".")[0]) or real_publish(self, token, what)
        ),
    )
    monkeypatch.setattr(
        Checkpoints, "save_best", lambda self, data: order.append("best") or real_save(self, data)
    )
    best = run.play().best
    assert order[:3] == ["0", "1", "best"], (
        "generation 0 is evaluated, published after, and only then written"
    )
    assert Checkpoints(tmp_path).is_best_stored(best) and not Checkpoints(tmp_path).is_best_stored(
        replace(best, generation=best.generation + 1)
    )
    assert not Checkpoints(tmp_path / "none").is_best_stored(best)
    state = checkpoint.decode(run.server.checkpoint or b"")[1]
    assert state.best is not None
    order.clear()
    state, writer = replace(state, stage=TRAINING), CheckpointWriter(run.saved, "memory")
    opened = OpenGeneration(state, run.setup.learner, Any, Any, Any, "", b"", 0.0)
    writer.on_published(opened)
    assert order == [], "the file is of these parameters already"
    better = replace(state, best=replace(state.best, eval_mean=9.0))
    writer.on_published(replace(opened, state=better))
    assert order == ["best"]
