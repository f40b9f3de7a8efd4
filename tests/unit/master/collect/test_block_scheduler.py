"""How a generation is cut into blocks."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis
import hypothesis.strategies as st

from es_queue.protocol.messages import CENTRE, ELITE, EVAL, TRAIN, Block
from master.collect.blocks.block_scheduler import (
    BLOCK_SECONDS,
    BatchLimits,
    BlockScheduler,
    make_scheduler,
)
from tests.cases import each_case
from tests.ring import quick_config

PUBLICATION = "3.1-00000000"


def cut_blocks(
    scheduler: BlockScheduler, missing: Sequence[tuple[str, int, int]], workers: int
) -> list[Block]:
    return list(scheduler.iterate_blocks(PUBLICATION, missing, workers))


def sizes(blocks: list[Block], kind: str = TRAIN) -> list[int]:
    return [block.stop - block.start for block in blocks if block.kind == kind]


def slots_of(blocks: list[Block]) -> list[tuple[str, int]]:
    return sorted((block.kind, slot) for block in blocks for slot in range(block.start, block.stop))


def everything(*ranges: tuple[str, int, int]) -> list[tuple[str, int]]:
    return sorted((kind, slot) for kind, start, stop in ranges for slot in range(start, stop))


def test_blocks_are_about_half_a_second_and_shrink_towards_the_end() -> None:
    cut = cut_blocks(BlockScheduler(seconds={TRAIN: 0.1}), [(TRAIN, 0, 40)], 2)
    assert sizes(cut)[0] == round(BLOCK_SECONDS / 0.1) and sizes(cut)[-1] == 1
    assert sizes(cut) == sorted(sizes(cut), reverse=True)
    assert slots_of(cut) == everything((TRAIN, 0, 40))


@each_case("workers", [1, 3, 50])
def test_no_block_holds_more_than_its_share_of_what_is_left_when_it_is_claimed(
    workers: int,
) -> None:
    cut = cut_blocks(BlockScheduler(seconds={TRAIN: 0.001}), [(TRAIN, 0, 300)], workers)
    left = 300
    for size in sizes(cut):
        assert size <= max(1, left / workers)
        left -= size
    assert left == 0


def test_a_slot_that_nobody_has_measured_is_a_block_of_its_own() -> None:
    assert sizes(cut_blocks(BlockScheduler(), [(TRAIN, 0, 5)], 1)) == [1] * 5


def test_the_longest_slots_come_first_and_the_shortest_fill_the_end() -> None:
    seconds = {TRAIN: 0.3, EVAL: 0.2, CENTRE: 0.1}
    cut = cut_blocks(
        BlockScheduler(seconds=seconds), [(CENTRE, 0, 1), (EVAL, 0, 4), (TRAIN, 0, 9)], 3
    )
    assert [block.kind for block in cut] == [TRAIN] * 9 + [EVAL] * 4 + [CENTRE]


def test_a_kind_that_nobody_has_measured_is_cut_by_its_episodes() -> None:
    """A slot evaluated again has many episodes where training's have two."""
    cutter = BlockScheduler(per_slot=2, episodes_per_slot={ELITE: 20}, seconds={TRAIN: 0.02})
    assert max(sizes(cut_blocks(cutter, [(ELITE, 0, 110)], 2), ELITE)) == 2  # 0.2 s each
    assert max(sizes(cut_blocks(cutter, [(TRAIN, 0, 110)], 2))) == 25
    assert cutter.reissue_size(ELITE, 110, 2) == 2
    measured = BlockScheduler(
        per_slot=2, episodes_per_slot={ELITE: 20}, seconds={TRAIN: 0.02, ELITE: 0.05}
    )
    assert max(sizes(cut_blocks(measured, [(ELITE, 0, 100)], 2), ELITE)) == 10


def test_episodes_of_elites_that_are_played_together_fill_batches() -> None:
    cutter = BlockScheduler(
        batch_limits=BatchLimits(12, 64), per_slot=2, episodes_per_slot={ELITE: 30}
    )
    cut = cut_blocks(cutter, [(ELITE, 0, 10)], 2)
    assert sizes(cut, ELITE) == [2, 2, 2, 2, 1, 1] and slots_of(cut) == everything((ELITE, 0, 10))


def test_the_cutter_of_a_run_knows_how_many_episodes_each_kind_has() -> None:
    made = make_scheduler(
        quick_config(strategy="random_search", elite_episodes=7, episodes=3), 1, 8
    )
    assert (made.per_slot, made.episodes_per_slot[ELITE], made.episodes_per_slot[CENTRE]) == (
        3,
        7,
        3,
    )


def test_blocks_of_a_fixed_size_keep_it_and_the_order_given() -> None:
    cut = cut_blocks(
        BlockScheduler(fixed=3, seconds={TRAIN: 1.0, EVAL: 0.1}), [(EVAL, 2, 4), (TRAIN, 0, 7)], 9
    )
    assert [(block.kind, block.start, block.stop) for block in cut] == [
        (EVAL, 2, 4),
        (TRAIN, 0, 3),
        (TRAIN, 3, 6),
        (TRAIN, 6, 7),
    ]


def test_episodes_played_together_make_equal_batches_and_end_with_a_slot_per_worker() -> None:
    pool = BlockScheduler(batch_limits=BatchLimits(12, 64), per_slot=2, seconds={TRAIN: 0.1})
    assert sizes(cut_blocks(pool, [(TRAIN, 0, 64)], 2)) == [31, 31, 1, 1]
    assert sizes(cut_blocks(pool, [(TRAIN, 0, 128)], 2)) == [32, 32, 31, 31, 1, 1]
    assert slots_of(cut_blocks(pool, [(TRAIN, 3, 130)], 2)) == everything((TRAIN, 3, 130))


def test_a_batch_for_each_worker_does_not_shrink_at_the_end_and_is_never_too_small() -> None:
    pool = BlockScheduler(batch_limits=BatchLimits(12, 64), per_slot=2, seconds={TRAIN: 0.1})
    assert sizes(cut_blocks(pool, [(TRAIN, 0, 20)], 2)) == [10, 10]
    assert max(sizes(cut_blocks(pool, [(TRAIN, 0, 32)], 8))) < 6
    cut = cut_blocks(pool, [(EVAL, 0, 20), (TRAIN, 0, 64)], 2)
    assert max(sizes(cut, EVAL)) < 12 and sizes(cut) == [31, 31, 1, 1]


@hypothesis.given(
    st.integers(1, 400),
    st.integers(1, 30),
    st.integers(1, 70),
    st.integers(1, 64),
    st.integers(1, 600),
    st.floats(1e-5, 10),
    st.booleans(),
)
def test_every_slot_is_in_one_block_and_every_block_has_a_slot(
    slots: int, workers: int, per_slot: int, fewest: int, most: int, seconds: float, measured: bool
) -> None:
    pool = BlockScheduler(
        batch_limits=BatchLimits(min(fewest, most), most),
        per_slot=per_slot,
        seconds={TRAIN: seconds} if measured else {},
    )
    cut = cut_blocks(pool, [(EVAL, 0, 3), (TRAIN, 5, 5 + slots)], workers)
    assert slots_of(cut) == everything((EVAL, 0, 3), (TRAIN, 5, 5 + slots))
    assert all(block.start < block.stop for block in cut)


def test_of_very_many_slots_that_nobody_has_measured_some_make_a_block() -> None:
    assert max(sizes(cut_blocks(BlockScheduler(), [(TRAIN, 0, 5000)], 100))) == 5
    assert max(sizes(cut_blocks(BlockScheduler(), [(TRAIN, 0, 900000)], 100))) == 16


def test_blocks_that_are_issued_again_have_at_most_a_workers_share() -> None:
    assert BlockScheduler(seconds={TRAIN: 0.01}).reissue_size(TRAIN, 1000, 1) == 50
    assert BlockScheduler(seconds={TRAIN: 0.01}).reissue_size(TRAIN, 40, 4) == 6
    assert BlockScheduler(fixed=7).reissue_size(TRAIN, 40, 4) == 7


def test_only_back_ends_that_play_many_episodes_at_once_have_batches() -> None:
    assert (
        make_scheduler(quick_config(env="BipedalWalker-v3", backend="lean"), 2, 100).batch_limits
        is None
    )
    batch = make_scheduler(quick_config(env="BipedalWalker-v3", backend="any", episodes=3), 2, 100)
    assert batch.batch_limits is not None and batch.per_slot == 6


def test_policies_that_no_cache_holds_are_played_one_by_one_where_that_gives_the_same_bits() -> (
    None
):
    walker = quick_config(env="BipedalWalker-v3", backend="any")
    assert make_scheduler(walker, 2, 100_000).batch_limits == BatchLimits(12, 20)
    assert make_scheduler(walker, 2, 1_000_000).batch_limits is None
