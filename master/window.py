"""The ledger of the asynchronous schedule: answers of every open publication, in the order in which they came.

A batch is the first of them that are as many as a population. What it leaves is first in the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, SlotResult, publication_generation
from master.collect import Expectations, Ledger, ranges
from master.learn import Used
from master.state import Floats, OpenPublication

#: While an evaluation is waited for, training goes on, but for no more than so many batches.
BATCHES_AHEAD = 2


class Fresh(NamedTuple):
    """An answered training slot that no batch has used yet. result: None where it failed everywhere."""

    publication: str
    slot: int
    result: SlotResult | None


@dataclass
class Older:
    """A replaced publication that is open still. answered: its training slots that count, used or fresh.

    tried: its answered slots of kind elite; held: whether a living worker was last seen with a block of it, or may have one
    """

    publication: str
    expectations: Expectations
    step_limit: int
    spread: Floats
    answered: set[int] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)
    held: bool = True


class Window(Ledger):
    """Which slots of the newest publication are owed, and what counts of older ones.

    batch: training slots that close it, besides its evaluation; most: of which a batch has no more, ``batch`` itself where it is 0
    """

    def __init__(
        self, publication: str, expectations: Expectations, wanted: dict[str, int], batch: int, step_limit: int, spread: Floats,
        older: Sequence[Older] = (), fresh: Iterable[Fresh] = (), most: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(publication, expectations, wanted)
        self.batch, self.most = batch, most or batch
        self.tried: list[Fresh] = []
        self.older = {one.publication: one for one in older}
        self.fresh = list(fresh)
        self.keep = tuple(self.older)
        self._own = Older(publication, expectations, step_limit, spread)

    # --- what comes in

    @property
    def largest_answer(self) -> int:
        older = [one.expectations.bytes for one in self.older.values()]
        return max([self.expectations.bytes, *older])

    def _take(self, answer: Answer, result: SlotResult) -> bool:
        if answer.kind == messages.ELITE:
            return super()._take(answer, result) and self._try(self._own, result.slot, result)
        if answer.kind != messages.TRAIN:
            return super()._take(answer, result)
        if (answer.kind, result.slot) in self.hopeless:  # it counts as failed already
            self.refused["duplicate"] += 1
            return False
        return super()._take(answer, result) and self._add(self._own, result.slot, self.results[answer.kind][result.slot])

    def _add(self, of: Older, slot: int, result: SlotResult | None) -> bool:
        of.answered.add(slot)
        if of is self._own:  # a former master may have issued it
            self.want(messages.TRAIN, max(self.wanted[messages.TRAIN], slot + 1))
        self.fresh.append(Fresh(of.publication, slot, result))
        return True

    def _try(self, of: Older, slot: int, result: SlotResult | None) -> bool:
        of.tried.add(slot)
        self.tried.append(Fresh(of.publication, slot, result))
        return True

    def _give_up(self, slot: tuple[str, int], times: int, reason: str) -> None:
        known = slot in self.hopeless
        super()._give_up(slot, times, reason)
        if slot[0] == messages.TRAIN and not known:
            self._add(self._own, slot[1], None)
        if slot[0] == messages.ELITE and not known:
            self._try(self._own, slot[1], None)

    def _of_another(self, answer: Answer) -> bool:
        """Training slots and elites of an older publication count as long as it is open; nothing else of it does, and nothing of it is owed."""
        of = self.older.get(answer.publication)
        if of is None:
            return super()._of_another(answer)
        if self._strange(answer):
            return False
        self.refused.update(["late-failure"] * len(answer.failures))
        taken = [self._take_older(of, answer, result) for result in answer.results]
        self._credit(answer, any(taken))
        return any(taken)

    def _take_older(self, of: Older, answer: Answer, result: SlotResult) -> bool:
        kind = answer.kind
        known = {messages.TRAIN: of.answered, messages.ELITE: of.tried}.get(kind)
        refusal, counted = self._accepted(of.expectations, answer, result)
        refusal = refusal or ("stale" if known is None else "duplicate" if result.slot in known else "")
        if refusal:
            self.refused[refusal] += 1
            self.lost_steps += sum(result.steps) if refusal in ("stale", "duplicate") else 0
            return False
        self._note_left_out(answer, result, counted)
        return self._add(of, result.slot, counted) if kind == messages.TRAIN else self._try(of, result.slot, counted)

    # --- what is owed

    def complete(self) -> bool:
        """A batch is there, and the evaluation that the newest publication closes on. Neither centre nor elites are waited for.

        But elites have to be claimed, for nobody claims a block of an older publication: theirs stand before the training blocks.
        """
        whole = (kind for kind in self.wanted if kind not in (messages.TRAIN, messages.CENTRE, messages.ELITE))
        claimed = bool(self._own.answered) or not self.wanted.get(messages.ELITE)
        return len(self.fresh) >= self.batch and claimed and not any(map(self.left, whole))

    def answered(self) -> tuple[int, int]:
        """(slots of the batch that are there, slots of a batch)."""
        return min(len(self.fresh), self.batch), self.batch

    def room(self, least: int) -> int:
        """How many more training slots to issue, that ``least`` and half as many again are owed when fewer are."""
        if len(self.fresh) >= BATCHES_AHEAD * self.most or messages.CONFIRM in self.wanted:
            return 0
        issued, most = self.wanted[messages.TRAIN], self.expectations.most[messages.TRAIN]
        owed = issued - len(self._own.answered)
        return max(0, min(most - issued, least + least // 2 - owed)) if owed < least else 0

    def hold(self, held: set[str]) -> None:
        """``held``: publications of which living workers have blocks."""
        for one in self.older.values():
            one.held = one.publication in held

    # --- closing

    def take_batch(self) -> tuple[list[SlotResult | None], list[Used]]:
        """The batch, by publication and slot, and whose slots they are; the fresh ones are fewer by it."""
        batch, self.fresh = sorted(self.fresh[: self.most], key=order), self.fresh[self.most :]
        spreads = {one.publication: one.spread for one in (*self.older.values(), self._own)}
        names = list(dict.fromkeys(one.publication for one in batch))
        slots = {name: np.array([one.slot for one in batch if one.publication == name], np.int64) for name in names}
        return [one.result for one in batch], [Used(name, slots[name], spreads[name]) for name in names]

    def take_tried(self) -> tuple[list[SlotResult | None], list[tuple[str, NDArray[np.int64]]]]:
        """The elites that were answered since the last batch, by publication and slot, and whose slots they are."""
        tried, self.tried = sorted(self.tried, key=order), []
        names = dict.fromkeys(one.publication for one in tried)
        return [one.result for one in tried], [(name, np.array([one.slot for one in tried if one.publication == name], np.int64)) for name in names]

    def succeeded(self, generation: int, max_lag: int) -> list[Older]:
        """What stays open when ``generation`` is published; the fresh slots of what closes go, counted as stale."""
        waiting = {one.publication for one in self.fresh}
        kept = [
            one for one in (*self.older.values(), self._own)
            if generation - publication_generation(one.publication) <= max_lag and (one.held or one.publication in waiting)
        ]  # fmt: skip
        names = {one.publication for one in kept}
        stale = [one for one in self.fresh if one.publication not in names]
        self.refused.update(["stale"] * len(stale))
        self.lost_steps += sum(sum(one.result.steps) for one in stale if one.result is not None)
        self.fresh = [one for one in self.fresh if one.publication in names]
        return kept

    def recorded(self, of: Older) -> OpenPublication:
        """What a checkpoint says of a publication: fresh slots are read from its stream again."""
        fresh = {one.slot for one in self.fresh if one.publication == of.publication}
        counted = [(start, stop) for _, start, stop in ranges(iter(sorted(of.answered - fresh)), messages.TRAIN)]
        return OpenPublication(of.publication, of.step_limit, of.spread, np.array(counted, np.int64).reshape(-1, 2))


def order(one: Fresh) -> tuple[int, str, int]:
    return publication_generation(one.publication), one.publication, one.slot


def slots_in(counted: NDArray[np.int64]) -> set[int]:
    """The slots of ranges."""
    return {slot for start, stop in counted.tolist() for slot in range(start, stop)}
