"""Audit: a second worker plays a sampled fraction of the slots again, and results are compared.

An episode is a pure function of its slot, so on equal arithmetic a difference proves that one
result is wrong. The master plays the slot itself to decide which one. If it has no process for that
(on a private server, to which only its own workers have the password), a third worker decides. The
audit finds broken machines and careless liars. It does not stop an attacker who forges identities:
workers report their own host and name, so two names can agree on a lie.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache

from es_queue.errors import EsQueueError
from es_queue.protocol.messages import SlotResult
from master.collect.verifier import Slot, VerifierReply
from master.display.notes import LimitedNotes
from master.fleet.silent_workers import ResponsiveWorkers
from master.fleet.worker_registry import WorkerIdentity, WorkerRegistry

LOGGER = logging.getLogger("es_queue.collect")
Play = Callable[[Sequence[Slot]], Future[VerifierReply]]
CountedResult = Callable[[str, SlotResult], SlotResult]
RANDOM = secrets.SystemRandom()
# looks at which those who played a slot again had nothing new to say, before the question is
# dropped; before workers of one host, who agree, are believed; and before the master plays the slot
MOST_TRIES, MOST_TRIES_AGREED, TRIES_BEFORE_PLAYING = 16, 4, 2
NONDETERMINISTIC_RESULTS = 3  # results of one slot that say that it does not repeat itself
MOST_OPINIONS = 8
# slots of one publication that the master plays itself: false opinions must not keep it busy
PROVEN_AT_MOST = 32


@dataclass
class Question:
    """A slot that is played again. opinions: what each identity answered, the first being the
    accepted result; workers: the ids; inconclusive: whether a replay since the last look added
    nothing; tries: number of such looks; proof: the master's own result, if two differ.
    """

    numerics: str
    opinions: dict[WorkerIdentity, SlotResult]
    workers: dict[WorkerIdentity, str] = field(default_factory=dict)
    inconclusive: bool = False
    tries: int = 0
    proof: Future[VerifierReply] | None = None

    def ask_master(self, proof: Future[VerifierReply]) -> None:
        self.proof = proof

    def mark_inconclusive(self) -> None:
        self.inconclusive = True

    def count_try(self) -> bool:
        """Count another look. Returns whether a replay was inconclusive since the last."""
        was_tried, self.inconclusive = self.inconclusive, False
        self.tries += was_tried
        return was_tried

    def distinct_results(self) -> list[SlotResult]:
        distinct: list[SlotResult] = []
        for result in self.opinions.values():
            distinct += [] if result in distinct else [result]
        return distinct


@dataclass(frozen=True)
class Verdict:
    """The outcome of a question: the result that counts, and its authors.

    wrong: authors of another result
    author: id of a worker that gave it, empty if only the master did; proven: whether the master
    played it
    """

    slot: Slot
    result: SlotResult
    right: frozenset[WorkerIdentity]
    wrong: frozenset[WorkerIdentity]
    author: str = ""
    proven: bool = False

    @property
    def others(self) -> str:
        """The authors of the right result, as text."""
        return " and ".join(
            [*["the master's own episode"] * self.proven, *map(str, sorted(self.right))]
        )


class MasterPlayer:
    """Slots that the master plays for the audit, a bounded number per publication.

    play: None if it cannot; share: of the sampled slots, those that it plays if no second worker
    can be asked
    """

    def __init__(self, play: Play | None, draw: Callable[[], float]) -> None:
        self.play, self._draw = play, draw
        self.begin(1.0)

    def begin(self, share: float) -> None:
        self.share, self._proven, self._alone = share, 0, 0

    def prove(self, slot: Slot) -> Future[VerifierReply] | None:
        """Play a slot that workers cannot decide; None if the limit is reached."""
        if self.play is None or self._proven >= PROVEN_AT_MOST:
            return None
        self._proven += 1
        return self.play([slot])

    def play_alone(self, slot: Slot) -> Future[VerifierReply] | None:
        """Play a slot that no second worker can; None if the limit is reached."""
        if self.play is None or self._alone >= PROVEN_AT_MOST or self._draw() >= self.share:
            return None
        self._alone += 1
        return self.play([slot])


class Audit:
    """The ledger asks it about each answer; it does not use Redis. One per master.

    player: what the master plays itself
    questions: those of the open publication; confirmed: identities that agreed on a slot of it
    checked: slots on which two agreed; disputed: slots that could not be decided
    responsive: the workers that can be asked, unless all are the master's own
    """

    def __init__(
        self,
        fleet: WorkerRegistry,
        fraction: float,
        draw: Callable[[], float] = RANDOM.random,
        play: Play | None = None,
        responsive: ResponsiveWorkers | None = None,
    ) -> None:
        """``fraction``: of slots to play again; ``draw``: from the operating system, because a
        worker knows the run's seed.
        """
        self.fleet, self._fraction, self._draw = fleet, fraction, draw
        self.player = MasterPlayer(play, draw)
        self.responsive = responsive or ResponsiveWorkers()
        self.questions: dict[Slot, Question] = {}
        self.confirmed: dict[Slot, frozenset[WorkerIdentity]] = {}
        # slots whose first result nobody confirmed: sampled again they would never close
        self._withdrawn: set[Slot] = set()
        self.checked = self.disputed = 0
        self._excluded, self._is_gap_noted = LimitedNotes(LOGGER), False

    @property
    def undecided(self) -> bool:
        return self.disputed > 0

    def begin(self, slots: int = 0) -> None:
        self.questions.clear()
        self.confirmed.clear()
        self._withdrawn.clear()
        self.fleet.end_suspensions()
        self.responsive.begin(self.fleet.present)
        self.player.begin(min(1.0, PROVEN_AT_MOST / max(1.0, self._fraction * slots)))

    def sample_slot(self, slot: Slot, worker: str, result: SlotResult) -> None:
        """Called with an accepted first result: sample the slot, if another worker can play it."""
        member = self.fleet.registered_worker(worker)
        if member is None:
            return
        self.responsive.record_answer(member.identity)
        if slot in self._withdrawn or self._draw() >= self._fraction:
            return
        question = Question(member.numerics, {member.identity: result}, {member.identity: worker})
        if self._askable(member.numerics) - {member.identity}:
            self.questions[slot] = question
        else:
            self._play_alone(slot, question)

    def _askable(self, numerics: str) -> set[WorkerIdentity]:
        """The workers that can be asked. The master always waits for its own."""
        peers = self.fleet.peers(numerics)
        return peers if self.player.play is None else peers & self.responsive.identities

    def _play_alone(self, slot: Slot, question: Question) -> None:
        """No second worker can be asked: the master plays the slot, up to its limit per
        publication.
        """
        if proof := self.player.play_alone(slot):
            question.ask_master(proof)
            self.questions[slot] = question
        elif self.player.play is None:
            self._note_gap("no second worker with the same arithmetic returns results")

    def _note_gap(self, why: str) -> None:
        """Once: some results are not audited."""
        if not self._is_gap_noted:
            self._is_gap_noted = True
            LOGGER.warning(f"audit: some results are not audited: {why}")

    def add_result(self, slot: Slot, worker: str, result: SlotResult) -> Verdict | None:
        """Add another result for a slot. Compared only if it was requested. Returns a verdict if it
        decides.
        """
        question, member = self.questions.get(slot), self.fleet.registered_worker(worker)
        if question is None or question.proof is not None:
            return None
        if member is None or member.numerics != question.numerics:
            self.mark_inconclusive(slot)
            return None
        if member.identity in question.opinions:
            if len(question.distinct_results()) == 1:
                self.mark_inconclusive(slot)
            return None
        self.responsive.record_answer(member.identity)
        question.opinions[member.identity] = result
        question.workers[member.identity] = worker
        if self.player.play is None or len(question.distinct_results()) == 1:
            return self._decide(slot, question, result)
        if proof := self.player.prove(slot):  # nobody else has to play it
            question.ask_master(proof)
        else:
            self._dispute(
                slot,
                f"the master has already audited {PROVEN_AT_MOST} slots of this generation",
            )
        return None

    def poll_verdicts(self, counted_result: CountedResult) -> list[Verdict]:
        """Verdicts of questions that the master has played since the last call. Its results are
        compared in the form that counts.
        """
        done = [
            (slot, question)
            for slot, question in self.questions.items()
            if question.proof is not None and question.proof.done()
        ]
        return [
            verdict
            for slot, question in done
            if (verdict := self._prove_verdict(slot, question, counted_result)) is not None
        ]

    def _prove_verdict(
        self, slot: Slot, question: Question, counted_result: CountedResult
    ) -> Verdict | None:
        assert question.proof is not None, "it is done"
        try:
            played = question.proof.result()
            true_result = counted_result(slot[0], played.results[slot])
        except (EsQueueError, KeyError) as error:
            why = f"the master cannot play the slot ({' '.join(str(error).split())})"
            return self._leave_undecided(slot, question, why)
        if played.numerics != question.numerics:
            why = (
                "the master's arithmetic differs from the workers', so its result proves "
                "nothing; run it on a host of the same kind"
            )
            return self._leave_undecided(slot, question, why)
        agreeing = frozenset(
            identity for identity, opinion in question.opinions.items() if opinion == true_result
        )
        if not agreeing and len(question.opinions) > 1:
            self._dispute(
                slot,
                "the master's own episode differs from all of them: the environment, or a "
                "package of it, may not be reproducible",
                first=False,
            )
            return Verdict(slot, true_result, agreeing, frozenset(), proven=True)
        return self._settle(slot, question, true_result, agreeing, proven=True)

    def _leave_undecided(self, slot: Slot, question: Question, why: str) -> Verdict | None:
        """The master's own episode does not help: believe the workers that agree."""
        results = question.distinct_results()
        if len(results) > 1:
            self._dispute(slot, why)
        elif len(question.opinions) > 1:
            return self._settle(slot, question, results[0], frozenset(question.opinions))
        else:
            del self.questions[slot]
            self._note_gap(f"no second worker with the same arithmetic returns results, and {why}")
        return None

    def mark_inconclusive(self, slot: Slot) -> None:
        """The replay came from the same worker or other arithmetic, or failed. Counts once per
        look.
        """
        if slot in self.questions:
            self.questions[slot].mark_inconclusive()

    def _decide(self, slot: Slot, question: Question, result: SlotResult) -> Verdict | None:
        agreeing = frozenset(
            identity for identity, opinion in question.opinions.items() if opinion == result
        )
        different = len(question.distinct_results())
        if self._has_quorum(agreeing, question) or (
            len(question.opinions) >= MOST_OPINIONS and different == 1
        ):
            return self._settle(slot, question, result, agreeing)
        self.questions[slot] = question
        if different >= NONDETERMINISTIC_RESULTS:
            self._dispute(
                slot, "all differ: the environment, or a package of it, is not reproducible"
            )
        elif len(question.opinions) >= MOST_OPINIONS:
            self._dispute(slot, "no two hosts agree")
        return None  # somebody else must say

    def _has_quorum(self, agreeing: frozenset[WorkerIdentity], question: Question) -> bool:
        """Whether two agree, of two hosts if there are two: workers of one host fail together."""
        return len(agreeing) >= 2 and (
            len({identity.host for identity in agreeing}) >= 2
            or len({identity.host for identity in self._askable(question.numerics)}) < 2
        )

    def _settle(
        self,
        slot: Slot,
        question: Question,
        result: SlotResult,
        agreeing: frozenset[WorkerIdentity],
        *,
        proven: bool = False,
    ) -> Verdict:
        self.questions.pop(slot, None)
        self.checked += 1
        self.confirmed[slot] = agreeing
        author = next(
            (name for identity, name in question.workers.items() if identity in agreeing), ""
        )
        return Verdict(
            slot, result, agreeing, frozenset(question.opinions) - agreeing, author, proven
        )

    def review(self) -> list[Slot]:
        """Close questions that no present worker can answer; called once per second. Returns slots
        to evaluate again, because no worker confirmed the result although some could.
        """
        to_replay = []
        if any(question.proof is None for question in self.questions.values()):
            self.responsive.expire()
        askable = cache(self._askable)
        for slot, question in list(self.questions.items()):
            was_tried = question.count_try()
            if question.proof is not None:
                continue
            if not askable(question.numerics) - set(question.opinions):
                self._close(slot, question)
            elif len(question.opinions) == 1:
                if was_tried and question.tries == TRIES_BEFORE_PLAYING and self.player.play:
                    self._play_alone(slot, question)
                elif question.tries >= MOST_TRIES:
                    del self.questions[slot]
                    self._withdrawn.add(slot)
                    to_replay.append(slot)
            elif len(results := question.distinct_results()) == 1:
                self._hurry(slot, question, results[0])
            elif question.tries >= MOST_TRIES:
                self._dispute(slot, "no other worker can play it")
        return to_replay

    def _hurry(self, slot: Slot, question: Question, result: SlotResult) -> None:
        """If workers of one host agree and other hosts stay silent, the master plays the slot. If
        it cannot, their result stands after a while: a silent worker must not hold up the
        generation.
        """
        if question.tries and (proof := self.player.prove(slot)):
            question.ask_master(proof)
        elif question.tries >= MOST_TRIES_AGREED:
            self._settle(slot, question, result, frozenset(question.opinions))

    def _close(self, slot: Slot, question: Question) -> None:
        if len(question.opinions) == 1:
            del self.questions[slot]
            self._play_alone(slot, question)
        elif len(results := question.distinct_results()) == 1:
            self._settle(slot, question, results[0], frozenset(question.opinions))
        else:
            self._dispute(
                slot,
                "there is no third worker with equal arithmetic (on another host, if there "
                "are several) to decide which is wrong",
            )

    def _dispute(self, slot: Slot, why: str, *, first: bool = True) -> None:
        question, counts = self.questions.pop(slot), "the first" if first else "the master's own"
        self.disputed += 1
        if self.disputed <= 10:  # each is counted, not each is said
            LOGGER.warning(
                f"audit: {' and '.join(map(str, question.opinions))} gave different results "
                f"for {slot[0]} slot {slot[1]}, and {why}; {counts} result counts, and equal "
                f"bits are not guaranteed"
            )

    def exclude(
        self, wrong: WorkerIdentity, verdict: Verdict, slot_name: str, withdrawn: int
    ) -> bool:
        """Whether a worker with a wrong result is excluded, and its other results withdrawn. If the
        quarantine is full, a worker proven wrong by the master is excluded for this publication.
        """
        if wrong in self.fleet.suspended:
            return False
        cause = f"audit: {wrong} gave a different result for {slot_name} from {verdict.others}"
        rest = f"its other results of this generation ({withdrawn} slots) are evaluated again"
        if self.fleet.quarantine(wrong):
            LOGGER.warning(
                f"{cause}: it is quarantined, and {rest}; check that host's memory, packages "
                f"and versions"
            )
            return True
        cause += ", but more workers cannot be quarantined than remain"
        is_suspended = verdict.proven and self.fleet.suspend(wrong)
        self._excluded.warning(
            f"{cause}: none of its results counts in this generation, and {rest}"
            if is_suspended
            else cause
        )
        return is_suspended

    def remove_opinions(self, identity: WorkerIdentity) -> None:
        for slot, question in list(self.questions.items()):
            question.opinions.pop(identity, None)
            question.workers.pop(identity, None)
            if not question.opinions:
                del self.questions[slot]

    def progress_fields(self) -> dict[str, str]:
        if self._fraction:
            return {"audited": str(self.checked), "audit_disputes": str(self.disputed)}
        return {}
