"""The discrete-event simulation of the asynchronous schedule: as ``master.loop.schedule`` and
``master.collect.publication.closing`` have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from es_queue.config.run_config import RunConfig
from es_queue.protocol.messages import TRAIN, Block
from master.collect.blocks.block_scheduler import iterate_equal_blocks
from master.collect.publication.closing import BLOCKS_PER_WORKER
from tools.benchmarks.cluster.simulation.discrete_events import Cluster, Member
from tools.benchmarks.cluster.simulation.durations import Seconds


class AsyncCluster(Cluster):
    """A batch is as many answered slots as a generation has, of whatever publication. plays:
    (began, seconds) of what counted.
    """

    def __init__(self, *given: Any, max_lag: int = RunConfig.max_lag, **more: Any) -> None:
        super().__init__(*given, **more)
        self._max_lag, self._most = max_lag, self._slots * (max_lag + 2)
        self._fresh = self._issued = 0
        self._of: dict[int, Seconds] = {}
        self.plays: list[tuple[float, float]] = []
        self.stale = 0
        self._size_of_block = self._scheduler.reissue_size(
            TRAIN, -(-self._slots // 2), len(self._members)
        )

    def busy_seconds(self, start: float, stop: float) -> float:
        return sum(
            max(0.0, min(stop, began + seconds) - max(start, began))
            for began, seconds in self.plays
        )

    # --- master

    def _schedule_blocks(self) -> list[Block]:
        """What the next batch lacks."""
        self._of[self._generation] = self._durations.slots(self._generation, self._most)
        self._of.pop(self._generation - self._max_lag - 2, None)
        self._issued = max(1, self._slots - self._fresh)
        return self._training_blocks(0, self._issued)

    def _training_blocks(self, start: int, stop: int) -> list[Block]:
        missing = [(TRAIN, start, stop)]
        return list(iterate_equal_blocks(self._publication, missing, {TRAIN: self._size_of_block}))

    def _ledger(self) -> None:
        """What waited of the former publication goes; its answers count on."""
        unread = self._stream[self._cursor :] if self._generation else []
        super()._ledger()
        self._known_workers, self._missing_ranges = bytearray(self._most), self._issued
        self._stream.extend(unread)
        self._todo.clear()

    def _close_older(self) -> None:
        """Whoever plays what is too old leaves it at the next look."""
        for member in self._members:
            if (
                member.block is not None
                and self._generation - int(member.block.publication) > self._max_lag
            ):
                self._at(
                    self.now + self._random.random() * self._poll,
                    self._leave,
                    member,
                    member.turn,
                )

    def _complete(self) -> bool:
        return self._fresh >= self._slots

    def _accept(self, entries: list[Block], then: Callable[[], None]) -> None:
        for block in entries:
            if block.publication != self._publication:
                self._fresh += block.stop - block.start
                continue
            for slot in range(block.start, block.stop):
                self._fresh += not self._known_workers[slot]
                self._missing_ranges -= not self._known_workers[slot]
                self._known_workers[slot] = 1
        self._issue_more(then)

    def _issue_more(self, then: Callable[[], None]) -> None:
        """Two blocks for each worker, and half as many again where there are fewer."""
        least = BLOCKS_PER_WORKER * self._size_of_block * len(self._members)
        more = min(self._most - self._issued, least + least // 2 - self._missing_ranges)
        if self._missing_ranges >= least or more <= 0:
            then()
            return
        blocks = self._training_blocks(self._issued, self._issued + more)
        self._issued, self._missing_ranges = self._issued + more, self._missing_ranges + more
        fixed, each = self._services.extend
        self._at(self._redis(fixed + each * len(blocks)), self._extended, blocks, then)

    def _extended(self, blocks: list[Block], then: Callable[[], None]) -> None:
        self._todo.extend(blocks)
        self._serve_waiting()
        then()

    def _apply_reconciliation(self) -> None:
        """There is no end towards which blocks would be copied."""
        self._issue_unread()
        self._serve_waiting()
        self._read()

    def _closing(self) -> tuple[float, ...]:
        return self._services.close_async

    def _close(self) -> None:
        self._fresh -= self._slots
        super()._close()

    # --- workers

    def _begin(self, member: Member, turn: int) -> None:
        assert member.block is not None
        number, ready = int(member.block.publication), self.now
        if member.generation != number:
            if (
                number != self._generation
            ):  # it was claimed before the parameters changed, and looked at after
                member.block = None
                self._redis(self._services.claimed)
                self._look(member)
                return
            member.generation = number
            ready = self._fetched(member)
        self.spans[number][0] = min(self.spans[number][0], ready)
        seconds = float(self._of[number][member.block.start : member.block.stop].sum())
        self._at(
            ready + seconds + self._services.worker, self._play_kind, member, turn, ready, seconds
        )

    def _play_kind(self, member: Member, turn: int, began: float, seconds: float) -> None:
        if member.turn == turn:
            member.turn += 1
            self._at(
                self._redis(self._services.answer), self._accept_answer, member, began, seconds
            )

    def _accept_answer(self, member: Member, began: float, seconds: float) -> None:
        block, member.block = member.block, None
        assert block is not None
        if self._generation - int(block.publication) > self._max_lag or (
            block.publication == self._publication and self._known_workers[block.start]
        ):
            self.stale += 1
        else:
            self.answers += 1
            self.plays.append((began, seconds))
            self._stream.append(block)
            self.spans[int(block.publication)][1] = self.now
            if self._asleep:
                self._asleep = False
                self._read()
        self._claim(member)
