"""Audit: a sampled fraction of the slots is played again by another worker, and who stands alone with its result is out.

An episode is a pure function of its slot, so on equal arithmetic a difference is proof that one of the two is wrong;
a third says which. It finds broken machines and careless liars. It is no defence against somebody who forges
identities: host and name are a worker's own word.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from es_queue.protocol.messages import SlotResult
from master.fleet import Fleet, Identity, Member

Slot = tuple[str, int]
TRIES = 16  # answers of the very worker whose result is in question, before the question is dropped
OPINIONS = 3


@dataclass
class Question:
    """A slot that is played again. opinions: what each identity answered, the first the one that was taken."""

    numerics: str
    opinions: dict[Identity, SlotResult]
    tries: int = 0


@dataclass(frozen=True)
class Verdict:
    """What a question came to: the result that stands and who gave it; wrong: who gave another."""

    slot: Slot
    result: SlotResult
    right: frozenset[Identity]
    wrong: frozenset[Identity]


@dataclass
class Audit:
    """Asked by the ledger, answer by answer; nothing here touches Redis. One for a master's life.

    fraction: of the slots that are played again; the draw is the operating system's, for a worker knows the run's seed.
    open: questions of the open publication; checked: slots that two agreed on; disputed: that nobody could decide
    """

    fleet: Fleet
    fraction: float
    note: Callable[[str], None]
    draw: Callable[[], float] = secrets.SystemRandom().random
    open: dict[Slot, Question] = field(default_factory=dict)
    confirmed: dict[Slot, frozenset[Identity]] = field(default_factory=dict)
    checked: int = 0
    disputed: int = 0
    undecided: bool = False

    def begin(self) -> None:
        """Another publication is open."""
        self.open.clear()
        self.confirmed.clear()

    def taken(self, slot: Slot, worker: str, result: SlotResult) -> None:
        """A result was taken for the first time: perhaps it is played again, if there is somebody to do it."""
        member = self.fleet.member(worker)
        if member is None or self.draw() >= self.fraction or not self.fleet.others([member.identity], member.numerics):
            return
        self.open[slot] = Question(member.numerics, {member.identity: result})

    def heard(self, slot: Slot, worker: str, result: SlotResult, first: str, former: SlotResult) -> Verdict | None:
        """Another answer for a slot that has one, of ``first``; asked for or not, it is compared. A verdict where it decides."""
        member, before = self.fleet.member(worker), self.fleet.member(first)
        if member is None or before is None or member.numerics != before.numerics:
            self.in_vain(slot)
            return None
        question = self.open.get(slot) or Question(before.numerics, {before.identity: former})
        if member.identity in question.opinions:
            self.in_vain(slot)
            return None
        question.opinions[member.identity] = result
        return self._decided(slot, question, member)

    def in_vain(self, slot: Slot) -> None:
        """Whoever played it again was the same worker, computes otherwise, or failed; not for ever."""
        question = self.open.get(slot)
        if question is not None:
            question.tries += 1
            if question.tries >= TRIES:
                self._drop(slot)

    def _decided(self, slot: Slot, question: Question, latest: Member) -> Verdict | None:
        mine = question.opinions[latest.identity]
        agreeing = frozenset(one for one, opinion in question.opinions.items() if opinion == mine)
        if len(agreeing) >= 2:
            self.open.pop(slot, None)
            self.checked += 1
            self.confirmed[slot] = agreeing
            return Verdict(slot, mine, agreeing, frozenset(question.opinions) - agreeing)
        if len(question.opinions) >= OPINIONS:
            self._drop(slot, "all differ: the environment, or a package of it, does not repeat itself")
        else:
            self.open[slot] = question  # two differ: a third must say
        return None

    def review(self) -> None:
        """Once a second: a question that nobody who is there can answer is dropped."""
        for slot, question in list(self.open.items()):
            if not self.fleet.others(question.opinions, question.numerics):
                self._drop(slot, "there is no third worker of equal arithmetic to say who is wrong")

    def _drop(self, slot: Slot, why: str = "nobody else played it again") -> None:
        question = self.open.pop(slot)
        if len(question.opinions) < 2:
            return
        self.disputed += 1
        self.undecided = True
        if self.disputed <= 10:  # each is counted, not each is said
            self.note(f"audit: {' and '.join(map(str, question.opinions))} gave different results for {slot[0]} slot {slot[1]}, and {why}; the first one counts, and bits are not promised")

    def shown(self) -> dict[str, str]:
        """For progress."""
        return {"audited": str(self.checked), "audit_disputes": str(self.disputed)} if self.fraction else {}
