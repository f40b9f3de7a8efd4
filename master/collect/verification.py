"""Verification: the master plays an evaluation again before it uses it for a decision.

The same seeds are played, so on equal arithmetic a valid result repeats to the bit, and a false one
does not. For a long evaluation, some slots are enough: those that favour the decision most, and
others drawn by the operating system, because workers know the run's seed. If one differs, the
master plays the whole evaluation, and its own results count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from es_queue.errors import EsQueueError
from es_queue.numerics.return_statistics import ReturnStatistics, return_statistics
from es_queue.protocol import messages
from es_queue.protocol.messages import SlotResult
from master.collect.audit import RANDOM
from master.collect.ledger import Ledger
from master.collect.verifier import Slot, Verifier, VerifierReply

VERIFIED = (messages.EVAL, messages.CONFIRM, messages.FINAL, messages.CENTRE)
#: Slots of one evaluation that are played again, as long as none differs.
EXTREME, DRAWN = 8, 8
#: A final evaluation is all played again if the rest of it takes the master no longer than this.
WHOLE_SECONDS = 120.0
MOST_NOTES = 5

LOGGER = logging.getLogger("es_queue.collect")
Draw = Callable[[Sequence[int], int], list[int]]
#: (kind, figures) -> 1 if high returns decide something, -1 if low ones do, 0 if nothing does.
DecisiveSign = Callable[[str, ReturnStatistics], int]


@dataclass
class Recheck:
    """Slots of one evaluation that the master plays again.

    is_last: whether their results settle it; began: on the monotonic clock
    """

    slots: list[int]
    is_last: bool
    outcome: Future[VerifierReply]
    began: float = field(default_factory=time.monotonic)

    def seconds_for(self, slots: int) -> float:
        return (time.monotonic() - self.began) * slots / len(self.slots)


class Verification:
    """Called by the collector at each read of the results; it never waits."""

    def __init__(self, verifier: Verifier, draw: Draw = RANDOM.sample) -> None:
        self._verifier, self._draw = verifier, draw
        self._note_count = 0
        self.begin(b"", b"", lambda *_: 0)

    def begin(self, task: bytes, parameters: bytes, decisive_sign: DecisiveSign) -> None:
        self._task, self._parameters, self._decisive_sign = task, parameters, decisive_sign
        self._checks: dict[str, Recheck] = {}
        self._settled_kinds: set[str] = set()
        self._void_kinds: set[str] = set()
        # the results that a check, or the settlement, is about
        self._checked_results: dict[str, dict[int, SlotResult]] = {}

    def play(self, slots: Sequence[Slot]) -> Future[VerifierReply]:
        """Slots of the open publication, by the master's own process."""
        return self._verifier.play(self._task, self._parameters, slots)

    def is_pending(self, ledger: Ledger) -> bool:
        """Whether a decision waits for the master's episodes."""
        kinds = [kind for kind in VERIFIED if kind in ledger.required]
        # All are looked at, for each look may begin a check.
        return bool([kind for kind in kinds if self._is_kind_pending(ledger, kind)])

    def _is_kind_pending(self, ledger: Ledger, kind: str) -> bool:
        is_incomplete = ledger.left(kind) > 0
        # Between two looks the audit may take results back, and others may replace them.
        if is_incomplete or ledger.results[kind] != self._checked_results.get(kind):
            self._checks.pop(kind, None)
            self._settled_kinds.discard(kind)
            ledger.unverified.discard(kind)
        if is_incomplete or kind in self._settled_kinds:
            return False
        check = self._checks.get(kind)
        if check is None:
            return self._start_check(ledger, kind)
        return not check.outcome.done() or self._compare_results(ledger, kind, check)

    def _start_check(self, ledger: Ledger, kind: str) -> bool:
        """Choose slots and ask for them, if anything depends on them."""
        self._checked_results[kind] = dict(ledger.results[kind])
        returns = {
            result.slot: result.returns[0]
            for result in ledger.results_in_order(kind)
            if result is not None
        }
        figures = return_statistics(list(returns.values()))
        sign = 0 if figures is None else self._decisive_sign(kind, figures)
        if not sign:
            self._settled_kinds.add(kind)
            return False
        slots = sorted(returns, key=lambda slot: (-sign * returns[slot], slot))
        if kind not in self._void_kinds:
            rest = slots[EXTREME:]
            slots = slots[:EXTREME] + self._draw(rest, min(DRAWN, len(rest)))
        self._begin_check(kind, slots, is_last=len(slots) == len(returns))
        return True

    def _begin_check(self, kind: str, slots: list[int], *, is_last: bool) -> None:
        outcome = self.play([(kind, slot) for slot in slots])
        self._checks[kind] = Recheck(slots, is_last, outcome)

    def _compare_results(self, ledger: Ledger, kind: str, check: Recheck) -> bool:
        """Whether more slots must be played."""
        try:
            played = check.outcome.result().results
            results = {
                slot: ledger.checker.counted_result(kind, played[(kind, slot)])
                for slot in check.slots
            }
        except (EsQueueError, KeyError) as error:
            self._mark_unverified(ledger, kind, error)
            return False
        wrong = [
            slot for slot, result in results.items() if ledger.results[kind].get(slot) != result
        ]
        if wrong and kind not in self._void_kinds:
            self._note_limited(
                format_difference(ledger, kind, wrong[0], results[wrong[0]].returns[0])
            )
        for slot in wrong:
            ledger.refute((kind, slot), results[slot])
            self._checked_results[kind][slot] = results[slot]
            self._void_kinds.add(kind)
        rest = sorted(set(range(ledger.required[kind])) - set(check.slots))
        is_quick = kind == messages.FINAL and check.seconds_for(len(rest)) <= WHOLE_SECONDS
        if not check.is_last and (wrong or is_quick):
            self._begin_check(kind, rest, is_last=True)
            return True
        self._settled_kinds.add(kind)
        return False

    def _mark_unverified(self, ledger: Ledger, kind: str, error: Exception) -> None:
        """Unverified results decide nothing, except a centre that the search needs and the run's
        final figure.
        """
        self._settled_kinds.add(kind)
        ledger.unverified.add(kind)
        effect = (
            "count as the workers returned them"
            if kind in (messages.CENTRE, messages.FINAL)
            else "decide nothing"
        )
        self._note_limited(
            f"the {kind} episodes of generation {ledger.checker.generation} {effect}: "
            f"the master cannot verify them ({' '.join(str(error).split())}); "
            "make the environment work on the master's host"
        )

    def _note_limited(self, text: str) -> None:
        """Note only the first few of a run; all are counted."""
        self._note_count += 1
        if self._note_count <= MOST_NOTES:
            LOGGER.warning(text)


def format_difference(ledger: Ledger, kind: str, slot: int, true_return: float) -> str:
    worker = ledger.answerer(kind, slot) or "a worker"
    returned = ledger.results[kind][slot].returns[0]
    return (
        f"{worker} returned {returned:g} for {ledger.checker.format_slot(kind, slot)}, "
        f"but the master's own episode returned {true_return:g}: the master's results count for "
        "this evaluation (an honest worker's differ too if its arithmetic differs)"
    )
