"""Verification: no decision is taken on workers' word. What hangs on an evaluation is played again
by the master first.

The same seeds are played, so on equal arithmetic an honest result is repeated to the bit, and a
false one is refuted, however small the lie. Of a long evaluation some slots are enough: those
that speak most for the decision, and others that the operating system draws, for a worker knows
the run's seed. One that differs voids all: the master then plays the whole evaluation, and its
own results count.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from es_queue.errors import EsQueueError
from es_queue.numerics.return_statistics import ReturnStatistics, return_statistics
from es_queue.protocol import messages
from master.collect.audit import Slot
from master.collect.ledger import Ledger
from master.collect.verifier import Played, Verifier

VERIFIED = (messages.EVAL, messages.CONFIRM, messages.FINAL)
#: Slots of one evaluation that are played again, as long as none differs.
EXTREME, DRAWN = 8, 8
TOLD_AT_MOST = 5

RANDOM = secrets.SystemRandom()
Draw = Callable[[Sequence[int], int], list[int]]
#: (kind, figures) -> 1 if high returns decide something, -1 if low ones do, 0 if nothing does.
Weighs = Callable[[str, ReturnStatistics], int]


@dataclass
class Check:
    """Slots of one evaluation that the master plays again.

    last: whether their results settle it; void: whether others differed before
    """

    slots: list[int]
    last: bool
    played: Future[Played]
    void: bool = False


class Verification:
    """Asked by the collector at each look at the results; it never waits."""

    def __init__(
        self, verifier: Verifier, note: Callable[[str], None], draw: Draw = RANDOM.sample
    ) -> None:
        self._verifier, self._note, self._draw = verifier, note, draw
        self._told = 0
        self.begin(b"", b"", lambda *_: 0)

    def begin(self, task: bytes, parameters: bytes, weighs: Weighs) -> None:
        """Another publication is open."""
        self._task, self._parameters, self._weighs = task, parameters, weighs
        self._checks: dict[str, Check] = {}
        self._settled: set[str] = set()

    def play(self, slots: Sequence[Slot]) -> Future[Played]:
        """Slots of the open publication, by the master's own process."""
        return self._verifier.play(self._task, self._parameters, slots)

    def pending(self, ledger: Ledger) -> bool:
        """Whether a decision waits for what the master plays."""
        waiting = [
            kind for kind in VERIFIED if kind in ledger.required and self._pending(ledger, kind)
        ]
        return bool(waiting)

    def _pending(self, ledger: Ledger, kind: str) -> bool:
        if ledger.left(kind):  # not answered yet, or taken back by the audit
            self._checks.pop(kind, None)
            self._settled.discard(kind)
            ledger.unverified.discard(kind)
            return False
        if kind in self._settled:
            return False
        check = self._checks.get(kind)
        if check is None:
            return self._begin(ledger, kind)
        return not check.played.done() or self._compare(ledger, kind, check)

    def _begin(self, ledger: Ledger, kind: str) -> bool:
        """Choose slots and ask, where anything depends on them."""
        returns = {
            result.slot: result.returns[0]
            for result in ledger.results_in_order(kind)
            if result is not None
        }
        figures = return_statistics(list(returns.values()))
        sign = 0 if figures is None else self._weighs(kind, figures)
        if not sign:
            self._settled.add(kind)
            return False
        first = sorted(returns, key=lambda slot: (-sign * returns[slot], slot))
        rest = first[EXTREME:]
        slots = first[:EXTREME] + self._draw(rest, min(DRAWN, len(rest)))
        self._checks[kind] = Check(slots, len(slots) == len(returns), self._played(kind, slots))
        return True

    def _played(self, kind: str, slots: list[int]) -> Future[Played]:
        return self.play([(kind, slot) for slot in slots])

    def _compare(self, ledger: Ledger, kind: str, check: Check) -> bool:
        """Whether more has to be played."""
        try:
            played = check.played.result().results
            results = {slot: played[(kind, slot)] for slot in check.slots}
        except (EsQueueError, KeyError) as error:
            self._fail(ledger, kind, error)
            return False
        wrong = [
            slot for slot, result in results.items() if ledger.results[kind].get(slot) != result
        ]
        if wrong and not check.void:
            self._tell(differs(ledger, kind, wrong[0], results[wrong[0]].returns[0]))
        for slot in wrong:
            ledger.refute((kind, slot), results[slot])
        if wrong and not check.last:
            rest = sorted(set(range(ledger.required[kind])) - set(check.slots))
            self._checks[kind] = Check(rest, True, self._played(kind, rest), void=True)
            return True
        self._settled.add(kind)
        return False

    def _fail(self, ledger: Ledger, kind: str, error: Exception) -> None:
        """Nothing is decided by what cannot be verified."""
        self._settled.add(kind)
        ledger.unverified.add(kind)
        self._tell(
            f"the {kind} episodes of generation {ledger.checker.generation} decide nothing: "
            f"the master cannot verify them ({' '.join(str(error).split())}); "
            "make the environment play on the master's host"
        )

    def _tell(self, text: str) -> None:
        """The first few of a run: each is counted, not each is told."""
        self._told += 1
        if self._told <= TOLD_AT_MOST:
            self._note(text)


def differs(ledger: Ledger, kind: str, slot: int, own: float) -> str:
    """What people read of a result that the master does not get."""
    worker, returned = (
        ledger.answerer(kind, slot) or "a worker",
        ledger.results[kind][slot].returns[0],
    )
    return (
        f"{worker} returned {returned:g} for {ledger.checker.format_slot(kind, slot)}, "
        f"and the master's own episode returned {own:g}: "
        "the master's results count for this evaluation "
        "(honest results differ too, where a worker's arithmetic is not the master's)"
    )
