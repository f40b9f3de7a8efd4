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
from master.fleet import Fleet, Identity

Slot = tuple[str, int]
TRIES = 16  # looks at which those who played a slot again had nothing new to say, before the question is dropped
DIFFERENT = 3  # results of one slot that say that it does not repeat itself
OPINIONS = 8


@dataclass
class Question:
    """A slot that is played again. opinions: what each identity answered, the first the one that was taken;
    vain: since the last look somebody played it again and had nothing new to say; tries: looks at which that was so."""

    numerics: str
    opinions: dict[Identity, SlotResult]
    vain: bool = False
    tries: int = 0

    def results(self) -> list[SlotResult]:
        """The different ones among the opinions."""
        found: list[SlotResult] = []
        for one in self.opinions.values():
            found += [] if one in found else [one]
        return found


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
        question = self.open.get(slot)
        if member is None or before is None or member.numerics != before.numerics:
            self.in_vain(slot)
            return None
        question = question or Question(before.numerics, {before.identity: former})
        if member.identity in question.opinions:
            if len(question.opinions) == 1:
                self.in_vain(slot)
            return None
        question.opinions[member.identity] = result
        return self._decided(slot, question, result)

    def in_vain(self, slot: Slot) -> None:
        """Whoever played it again was the same worker, computes otherwise, or failed; however often since the last look."""
        if slot in self.open:
            self.open[slot].vain = True

    def _decided(self, slot: Slot, question: Question, result: SlotResult) -> Verdict | None:
        agreeing = frozenset(one for one, opinion in question.opinions.items() if opinion == result)
        different = len(question.results())
        if self._enough(agreeing, question) or (len(question.opinions) >= OPINIONS and different == 1):
            return self._settled(slot, question, result, agreeing)
        self.open[slot] = question
        if different >= DIFFERENT:
            self._dispute(slot, "all differ: the environment, or a package of it, does not repeat itself")
        elif len(question.opinions) >= OPINIONS:
            self._dispute(slot, "no two hosts agree")
        return None  # somebody else must say

    def _enough(self, agreeing: frozenset[Identity], question: Question) -> bool:
        """Two that agree, of two hosts where there are two: the workers of one machine are wrong together."""
        return len(agreeing) >= 2 and (len({one.host for one in agreeing}) >= 2 or not self.fleet.several_hosts(question.numerics))

    def _settled(self, slot: Slot, question: Question, result: SlotResult, agreeing: frozenset[Identity]) -> Verdict:
        self.open.pop(slot, None)
        self.checked += 1
        self.confirmed[slot] = agreeing
        return Verdict(slot, result, agreeing, frozenset(question.opinions) - agreeing)

    def review(self) -> list[Slot]:
        """Once a second: questions that nobody who is there can answer are closed. Returns slots whose result nobody else
        would confirm although there was somebody: they are to be evaluated anew."""
        anew = []
        for slot, question in list(self.open.items()):
            question.tries += question.vain
            question.vain = False
            if not self.fleet.others(question.opinions, question.numerics):
                self._close(slot, question)
            elif question.tries >= TRIES and len(question.opinions) == 1:
                del self.open[slot]
                anew.append(slot)
            elif question.tries >= TRIES:
                self._dispute(slot, "nobody else can play it")
        return anew

    def _close(self, slot: Slot, question: Question) -> None:
        if len(question.opinions) == 1:
            del self.open[slot]
        elif len(found := question.results()) == 1:
            self._settled(slot, question, found[0], frozenset(question.opinions))
        else:
            self._dispute(slot, "there is no third worker of equal arithmetic, on another host where there are several, to say who is wrong")

    def _dispute(self, slot: Slot, why: str) -> None:
        question = self.open.pop(slot)
        self.disputed += 1
        self.undecided = True
        if self.disputed <= 10:  # each is counted, not each is said
            self.note(f"audit: {' and '.join(map(str, question.opinions))} gave different results for {slot[0]} slot {slot[1]}, and {why}; the first one counts, and bits are not promised")

    def forget(self, identity: Identity) -> None:
        """Somebody is in quarantine: what it said has no weight in what is still open."""
        for slot, question in list(self.open.items()):
            question.opinions.pop(identity, None)
            if not question.opinions:
                del self.open[slot]

    def shown(self) -> dict[str, str]:
        """For progress."""
        return {"audited": str(self.checked), "audit_disputes": str(self.disputed)} if self.fraction else {}
