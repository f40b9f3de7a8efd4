"""The asynchronous schedule (--schedule async): nobody waits for the last episode of a generation.

The newest publication always has blocks. A batch is as many answers as a population has slots, of
whatever open publication, in the order in which they came; it is ranked and learnt from, and the
next parameters are published at once. Replaced publications stay open while somebody plays a block
of them, up to ``max_lag`` generations. A generation that is to be evaluated closes with its
evaluation in hand, as in the synchronous schedule; training goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from es_queue.config.run_config import ASYNC, RunConfig
from es_queue.errors import EnvironmentFailure
from es_queue.protocol import messages
from es_queue.protocol.channel import ReconcileReport
from es_queue.protocol.messages import Block, publication_generation
from master.collect.async_ledger import AsyncLedger, PriorPublication, UnusedResult, slots_of_ranges
from master.collect.block_scheduler import list_equal_blocks
from master.collect.collector import Collector
from master.collect.ledger import Ledger
from master.loop.learner import ClosedGeneration
from master.loop.state import RunState
from master.loop.synchronous import Loop, Outcome

#: Blocks for each living worker: the one that it plays and one that waits; half as many again are
#: issued when there are fewer. What waits when parameters change is not played, so it makes no
#: answer late; more would, where the master is slow.
BLOCKS_PER_WORKER = 2
ASYNC_LABEL = "async: not bit-reproducible, --replay repeats it from its log"


class AsyncCollector(Collector):
    """Keeps the newest publication in blocks, and reads the older ones too. A plain ledger is
    collected as ever.
    """

    def collect(self, ledger: Ledger) -> None:
        """As ever; a batch that is there already does not keep the lease waiting."""
        if time.monotonic() >= self._next_tick:
            self.tick(ledger)
        super().collect(ledger)

    def drain(self, ledger: Ledger, wait: float) -> bool:
        """Drain what is there, and issue slots in its place."""
        drained = super().drain(ledger, wait)
        if isinstance(ledger, AsyncLedger) and not self.inbox.paused_by:
            self._issue_more(ledger)
        return drained

    def _issue_more(self, ledger: AsyncLedger) -> None:
        size, issued = self._block_size(ledger), ledger.required[messages.TRAIN]
        more = ledger.slots_to_issue(BLOCKS_PER_WORKER * size * max(1, len(self._workers)))
        if more:
            ledger.require(messages.TRAIN, issued + more)
            self._channel.extend(
                self._token,
                ledger.publication,
                self._training_blocks(ledger, [(messages.TRAIN, issued, issued + more)]),
            )

    def _block_size(self, ledger: AsyncLedger) -> int:
        """Slots of a training block: of half a second, but a batch has four for each worker; enough
        to be played together.
        """
        workers = max(1, len(self._workers))
        size, together = (
            self.scheduler.reissue_size(messages.TRAIN, -(-ledger.batch // 2), workers),
            self.scheduler.batch_limits,
        )
        if (
            self.scheduler.fixed
            or together is None
            or ledger.batch * self.scheduler.per_slot < together.fewest * workers
        ):
            return size
        return max(size, -(-together.fewest // self.scheduler.per_slot))

    def _training_blocks(
        self, ledger: AsyncLedger, missing: Sequence[tuple[str, int, int]]
    ) -> list[Block]:
        return list_equal_blocks(
            ledger.publication, missing, {messages.TRAIN: self._block_size(ledger)}
        )

    def _schedule_blocks(self, ledger: Ledger) -> Iterable[Block]:
        """Evaluation and centre first; training blocks all alike, for there is no end towards which
        they would shrink.
        """
        if not isinstance(ledger, AsyncLedger):
            return super()._schedule_blocks(ledger)
        missing = ledger.unanswered_ranges()
        first = [slot_range for slot_range in missing if slot_range[0] != messages.TRAIN]
        blocks = self.scheduler.list_blocks(ledger.publication, first, max(1, len(self._workers)))
        return blocks + self._training_blocks(
            ledger, [slot_range for slot_range in missing if slot_range[0] == messages.TRAIN]
        )

    def extend(self, ledger: Ledger) -> None:
        """Issue what was asked for besides training, which has its blocks already."""
        blocks = self._schedule_blocks(ledger)
        if isinstance(ledger, AsyncLedger):
            blocks = [
                block
                for block in blocks
                if block.kind not in (messages.TRAIN, messages.CENTRE, messages.ELITE)
            ]
        self._channel.extend(self._token, ledger.publication, blocks)

    def _reissue_size(self, ledger: Ledger) -> int:
        return (
            self._block_size(ledger)
            if isinstance(ledger, AsyncLedger)
            else super()._reissue_size(ledger)
        )

    def _apply_reconciliation(self, ledger: Ledger, report: ReconcileReport) -> None:
        super()._apply_reconciliation(ledger, report)
        if isinstance(ledger, AsyncLedger) and self._drain_fully(
            ledger
        ):  # who has answered before that look holds nothing any more
            ledger.update_held(
                {block.publication for blocks in report.claims.values() for block in blocks}
            )


class AsyncLoop(Loop):
    """The loop of ``Loop``, where a generation closes on a batch of any open publications."""

    _carried_over: tuple[list[PriorPublication], list[UnusedResult]] | None = None
    _failed_in_a_row = 0

    def run(self, state: RunState, adopted: str | None = None) -> Outcome:
        """As ``Loop.run``; who came first decides what is learnt, so no bits are promised."""
        return super().run(replace(state, reproducible=False), adopted)

    def _progress_fields(self, state: RunState, digest: str) -> Mapping[str, str]:
        return {**super()._progress_fields(state, digest), "schedule": ASYNC_LABEL}

    def _make_ledger(
        self, state: RunState, publication: str, required: dict[str, int], opened_at: float
    ) -> Ledger:
        if messages.TRAIN not in required:
            return super()._make_ledger(state, publication, required, opened_at)
        older, fresh = self._carried_over or (self._restore_open_publications(state), [])
        strategy, most = self._learner.strategy, required[messages.TRAIN]
        batch = strategy.batch_slots()
        required = {**required, messages.TRAIN: max(1, batch - len(fresh))}
        ledger = AsyncLedger(
            publication,
            self._make_checker(state, required),
            required,
            batch,
            state.step_limit,
            strategy.spread(state.strategy),
            older,
            fresh,
            most,
            self._collector.context,
            opened_at,
        )
        ledger.require_slots(
            messages.ELITE, range(strategy.elite_slot_count(state.strategy, state.generation))
        )
        return ledger

    def _restore_open_publications(self, state: RunState) -> list[PriorPublication]:
        """The older publications that a checkpoint names; what Redis has lost of them is gone."""
        return [
            PriorPublication(
                publication.publication,
                self._make_checker(
                    replace(
                        state, generation=publication.generation, step_limit=publication.step_limit
                    ),
                    {messages.TRAIN: 0},
                ),
                publication.step_limit,
                publication.spread,
                slots_of_ranges(publication.counted),
            )
            for publication in state.open
        ]

    def _close_ledger(self, state: RunState, ledger: Ledger) -> ClosedGeneration:
        closed = super()._close_ledger(state, ledger)
        if not isinstance(ledger, AsyncLedger):
            return closed
        (batch, used), (reevaluations, tried) = ledger.take_batch(), ledger.take_reevaluated()
        self._failed_in_a_row = 0 if any(batch) else self._failed_in_a_row + len(batch)
        if self._failed_in_a_row >= ledger.most:
            raise EnvironmentFailure(
                f"every episode of a batch failed; the last was {ledger.last_reason}"
            )
        kept = ledger.take_still_open(state.generation + 1, self._config.max_lag)
        self._carried_over = kept, ledger.unused
        lags = [
            state.generation - publication_generation(part.publication)
            for part in used
            for _ in part.slots
        ]
        self._record |= {"lag_mean": sum(lags) / len(lags), "lag_max": max(lags)}
        return replace(
            closed,
            counted=batch,
            surplus=(),
            used=used,
            reevaluations=reevaluations,
            tried=tried,
            open=tuple(ledger.to_open_publication(publication) for publication in kept),
        )


def schedule_classes(config: RunConfig) -> tuple[type[Collector], type[Loop]]:
    """What collects and what decides under a run's schedule."""
    return (AsyncCollector, AsyncLoop) if config.schedule == ASYNC else (Collector, Loop)
