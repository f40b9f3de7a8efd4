"""The asynchronous schedule (--schedule async): nobody waits for the last episode of a generation.

The newest publication always has blocks. A batch is as many answers as a population has slots, of whatever open
publication, in the order in which they came; it is ranked and learnt from, and the next parameters are published at once.
Replaced publications stay open while somebody plays a block of them, up to ``max_lag`` generations. A generation that
is to be evaluated closes with its evaluation in hand, as in the synchronous schedule; training goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from es_queue.config import ASYNC, RunConfig
from es_queue.errors import EnvironmentFailure
from es_queue.protocol import messages
from es_queue.protocol.channel import Reconciled
from es_queue.protocol.messages import Block, publication_generation
from master.blocks import blocks_of
from master.collect import Ledger
from master.collector import Collector
from master.learn import Closed
from master.loop import Loop, Outcome
from master.state import RunState
from master.window import Fresh, Older, Window, slots_in

#: Blocks for each living worker: the one that it plays and one that waits; half as many again are issued when there are
#: fewer. What waits when parameters change is not played, so it makes no answer late; more would, where the master is slow.
BLOCKS_EACH = 2
ASYNC_LABEL = "async: not bit-reproducible, --replay repeats it from its log"


class AsyncCollector(Collector):
    """Keeps the newest publication in blocks, and reads the older ones too. A plain ledger is collected as ever."""

    def collect(self, ledger: Ledger) -> None:
        """As ever; a batch that is there already does not keep the lease waiting."""
        if time.monotonic() >= self._next:
            self.tick(ledger)
        super().collect(ledger)

    def read(self, ledger: Ledger, wait: float) -> bool:
        """Drain what is there, and issue slots in its place."""
        drained = super().read(ledger, wait)
        if isinstance(ledger, Window) and not self.requests.paused:
            self._top_up(ledger)
        return drained

    def _top_up(self, ledger: Window) -> None:
        size, issued = self._size(ledger), ledger.wanted[messages.TRAIN]
        more = ledger.room(BLOCKS_EACH * size * max(1, len(self._workers)))
        if more:
            ledger.want(messages.TRAIN, issued + more)
            self._channel.extend(self._token, ledger.publication, self._pieces(ledger, [(messages.TRAIN, issued, issued + more)]))

    def _size(self, ledger: Window) -> int:
        """Slots of a training block: of half a second, but a batch has four for each worker; enough to be played together."""
        workers = max(1, len(self._workers))
        size, together = self.cutter.most(messages.TRAIN, -(-ledger.batch // 2), workers), self.cutter.together
        if self.cutter.fixed or together is None or ledger.batch * self.cutter.per_slot < together.fewest * workers:
            return size
        return max(size, -(-together.fewest // self.cutter.per_slot))

    def _pieces(self, ledger: Window, missing: Sequence[tuple[str, int, int]]) -> list[Block]:
        return blocks_of(ledger.publication, missing, {messages.TRAIN: self._size(ledger)})

    def _cut(self, ledger: Ledger) -> Iterable[Block]:
        """Evaluation and centre first; training blocks all alike, for there is no end towards which they would shrink."""
        if not isinstance(ledger, Window):
            return super()._cut(ledger)
        missing = ledger.unanswered()
        first = [one for one in missing if one[0] != messages.TRAIN]
        blocks = self.cutter.cut(ledger.publication, first, max(1, len(self._workers)))
        return blocks + self._pieces(ledger, [one for one in missing if one[0] == messages.TRAIN])

    def extend(self, ledger: Ledger) -> None:
        """Issue what was asked for besides training, which has its blocks already."""
        blocks = self._cut(ledger)
        if isinstance(ledger, Window):
            blocks = [block for block in blocks if block.kind not in (messages.TRAIN, messages.CENTRE, messages.ELITE)]
        self._channel.extend(self._token, ledger.publication, blocks)

    def _most(self, ledger: Ledger) -> int:
        return self._size(ledger) if isinstance(ledger, Window) else super()._most(ledger)

    def _reconciled(self, ledger: Ledger, seen: Reconciled) -> None:
        super()._reconciled(ledger, seen)
        if isinstance(ledger, Window) and self._drained(ledger):  # who has answered before that look holds nothing any more
            ledger.hold({block.publication for blocks in seen.claims.values() for block in blocks})


class AsyncLoop(Loop):
    """The loop of ``Loop``, where a generation closes on a batch of any open publications."""

    _next_window: tuple[list[Older], list[Fresh]] | None = None
    _failed = 0

    def run(self, state: RunState, adopted: str | None = None) -> Outcome:
        """As ``Loop.run``; who came first decides what is learnt, so no bits are promised."""
        return super().run(replace(state, reproducible=False), adopted)

    def _progress(self, state: RunState, digest: str) -> Mapping[str, str]:
        return {**super()._progress(state, digest), "schedule": ASYNC_LABEL}

    def _ledger(self, state: RunState, publication: str, wanted: dict[str, int]) -> Ledger:
        if messages.TRAIN not in wanted:
            return super()._ledger(state, publication, wanted)
        older, fresh = self._next_window or (self._reopened(state), [])
        strategy, most = self._learner.strategy, wanted[messages.TRAIN]
        batch = strategy.batch_slots()
        wanted = {**wanted, messages.TRAIN: max(1, batch - len(fresh))}
        window = Window(publication, self._expectations(state, wanted), wanted, batch, state.step_limit, strategy.spread(state.strategy), older, fresh, most)
        window.choose(messages.ELITE, range(strategy.contenders(state.strategy, state.generation)))
        return window

    def _reopened(self, state: RunState) -> list[Older]:
        """The older publications that a checkpoint names; what Redis has lost of them is gone."""
        return [
            Older(
                one.publication, self._expectations(replace(state, generation=one.generation, step_limit=one.step_limit), {messages.TRAIN: 0}),
                one.step_limit, one.spread, slots_in(one.counted),
            )
            for one in state.open
        ]  # fmt: skip

    def _closed(self, state: RunState, ledger: Ledger) -> Closed:
        done = super()._closed(state, ledger)
        if not isinstance(ledger, Window):
            return done
        (batch, used), (again, tried) = ledger.take_batch(), ledger.take_tried()
        self._failed = 0 if any(batch) else self._failed + len(batch)
        if self._failed >= ledger.most:
            raise EnvironmentFailure(f"every episode of a batch failed; the last was {ledger.last_reason}")
        kept = ledger.succeeded(state.generation + 1, self._config.max_lag)
        self._next_window = kept, ledger.fresh
        lags = [state.generation - publication_generation(one.publication) for one in used for _ in one.slots]
        self._record |= {"lag_mean": sum(lags) / len(lags), "lag_max": max(lags)}
        return replace(done, counted=batch, surplus=(), used=used, again=again, tried=tried, open=tuple(ledger.recorded(one) for one in kept))


def classes(config: RunConfig) -> tuple[type[Collector], type[Loop]]:
    """What collects and what decides under a run's schedule."""
    return (AsyncCollector, AsyncLoop) if config.schedule == ASYNC else (Collector, Loop)
