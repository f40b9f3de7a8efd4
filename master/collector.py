"""Collecting answers, and all that must happen each second meanwhile: renew, reconcile, seats, supervision, display."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from es_queue.errors import RedisError
from es_queue.protocol import messages
from es_queue.protocol.bounded import MAX_WORKERS
from es_queue.protocol.channel import Entry, MasterChannel, Opened, Publish, Reconciled
from es_queue.protocol.clocks import Clocks
from es_queue.protocol.messages import Block, publication_generation
from master.audit import Audit
from master.blocks import Cutter, blocks_of_slots
from master.collect import Ledger, Slot
from master.company import Company
from master.fleet import Fleet
from master.learn import Record
from master.limited_notes import LimitedNotes
from master.observation_limits import implausible
from master.overdue import BLOCKS_GIVEN, HURRY_SECONDS, IdleWorkers, Overdue, slots_of
from master.recoveries import OVERDUE, REDIS_AWAY, REDIS_LOST, Recoveries
from master.requests import Requests
from master.roll_call import RollCall
from master.roster import Roster
from master.silent_workers import SilentWorkers
from master.verification import Verification

READ_AT_ONCE, READ_AT_FIRST = 1000, 4
#: Entries a second that are read again at the most, and how many seconds a flood may keep reconcile waiting.
READ_AGAIN_A_SECOND, PUT_OFF_AT_MOST = 5000, 10
READ_BYTES = 4 * 2**20  # of one reply, as far as its size can be told from the one before
#: Blocks that are published with the parameters, in all and for each worker; the others follow, so many in one script.
FIRST_BLOCKS, FIRST_BLOCKS_EACH, BLOCKS_AT_ONCE = 1024, 4, 8192
STAGED_AT_MOST, MOST_DEAD = 10, 1000
MOST_LATE = 10  # late answers of a worker that are believed, for each of its answers that counted
#: So often in one publication what nobody holds goes to todo alone; from then on idle workers are given some of it by name.
ISSUES_TO_ALL = 2
#: Between two looks at what the master plays itself.
VERIFYING_SECONDS = 0.02
LOST = "Redis has lost this generation: it is published again"
LOST_BEFORE = "Redis has lost the generation before this one, or holds another: this one is published over it"


class Interrupted(Exception):  # noqa: N818 - it is no error: a person asked to stop
    """Somebody asked the master to stop; it happens between two looks at the results."""


@dataclass
class Tail:
    """How far the stream of an open publication was read; the cursor may go back, and what was ``seen`` does not count twice."""

    cursor: str = "0"
    seen: set[str] = field(default_factory=set)


class Housekeeper(Protocol):
    """What else must be looked after each second while the master waits."""

    def tick(self, channel: MasterChannel, workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool) -> list[str]: ...


class Collector:
    """Reads answers of the open publication into its ledger and keeps the publication alive.

    contributors: workers whose answers counted; fleet: who works, and on what arithmetic; about: what else progress
    says of the run; ahead: work of the next generation that is done in idle moments, or not at all.
    """

    def __init__(
        self, channel: MasterChannel, token: str, holder: str, clocks: Clocks, block: int, housekeeper: Housekeeper | None,
        live: Callable[[Record], None], note: Callable[[str], None], interrupted: Callable[[], bool] = lambda: False,
        requests: Requests | None = None, audit: float = 0.0, strict: bool = False, verification: Verification | None = None,
    ) -> None:  # fmt: skip
        """``verification``: what plays again the evaluations that decide something; None where only the master's own workers can answer."""
        self.requests = requests or Requests(channel, note)
        self.fleet = Fleet(note, channel.workers, strict, lambda: time.monotonic())
        self.audit = Audit(self.fleet, audit, note, play=None if verification is None else verification.play)
        self.verification = verification
        self.recoveries = Recoveries()
        self.about: dict[str, str] = {}
        self.ahead: deque[Callable[[], object]] = deque()
        self.cutter = Cutter(fixed=block)
        self._paused_at: float | None = None
        self._paused_for = 0.0
        self._answered_at = time.time()
        self._channel, self._token, self._holder, self._clocks = channel, token, holder, clocks
        self._housekeeper, self._live, self._note, self._interrupted = housekeeper, live, note, interrupted
        self._what = Publish("", b"", (), "", {})
        self._parameters = b""
        self._tails: dict[str, Tail] = {}
        self._at_once = READ_AT_FIRST
        self._outages = channel.outages
        self._put_off = 0
        self._read_again_from = 0.0
        self._open = ""
        self._roster = Roster()
        self._roll = RollCall(clocks.lease + clocks.beat_ttl, note)
        self._next = 0.0
        self._grace = 0.0
        self._overdue = Overdue(self.cutter, clocks.overdue)
        self._idle, self._silent = IdleWorkers(), SilentWorkers(LimitedNotes(note))
        self._answers: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._workers: dict[str, dict[str, str]] = {}
        self._late = self._late_before = self._issues = 0
        self._company = Company(note)
        self._give_way: list[str] = []
        self._served = False
        self._implausible = ""  # the first worker whose moments were left out
        self._ledger: Ledger | None = None
        self.contributors: set[str] = set()

    # --- opening

    def poll(self) -> float:
        """Seconds between a worker's looks at the leave flags: 2,500 looks a second of all workers together at the most."""
        return max(self._clocks.leave_poll, len(self._workers) / 2500)

    def open(self, ledger: Ledger, what: Publish, parameters: bytes, *, adopted: bool) -> None:
        """Publish what the ledger wants, unless a former master has left it open."""
        self._what, self._parameters, self._issues = what, parameters, 0
        self.ahead.clear()
        self._overdue.begin()
        self._refused += self._ledger.refused if self._ledger is not None else Counter()
        self._ledger = ledger
        ledger.recoveries, ledger.answers = self.recoveries, self._answers
        # Of what a former master published it is unknown when it was; its answers are bounded all the same.
        since = time.monotonic() - (self._clocks.grace if adopted else 0.0)
        ledger.longest = lambda: time.monotonic() - since
        self.audit.begin(sum(ledger.wanted.values()))
        ledger.fleet, ledger.guarded = self.fleet, bool(self.audit.fraction or self.fleet.strict or self.fleet.quarantined)
        ledger.audit = self.audit if self.audit.fraction else None
        self.contributors = ledger.contributors
        before, self._open = self._open, ledger.publication
        self._tails = {one: self._tails.get(one, Tail()) for one in ledger.keep}
        if adopted:
            self._tails[ledger.publication], self._next = Tail(), 0.0
            ledger.remember_deaths(self._channel.deaths())
        else:
            began, found = time.monotonic(), self._publish(ledger)
            if before and found.before not in (before, ledger.publication):  # ours: sent again after a lost reply
                self._lost(LOST_BEFORE, began)

    def _publish(self, ledger: Ledger) -> Opened:
        """Stage, then publish the unanswered slots; reading starts again at 0 (rules 3, 4, 9).

        Nobody waits for blocks that come late in the generation: they follow at once. Of a master that ends between the
        two its successor finds them owed, for todo is a hint (rules 1, 8).
        """
        blocks = iter(self._cut(ledger))
        first = list(islice(blocks, max(FIRST_BLOCKS, FIRST_BLOCKS_EACH * len(self._workers))))
        self._tails[ledger.publication] = Tail()
        for _ in range(STAGED_AT_MOST):
            self._channel.stage(ledger.publication, self._parameters)
            found = self._channel.publish(self._token, replace(self._what, blocks=first, keep=ledger.keep))
            if found.done:
                self._extend(ledger, blocks, new=True)
                return found
        raise RedisError(
            f"the parameters of publication {ledger.publication} went from Redis {STAGED_AT_MOST} times before they were published: "
            "find out what removes keys there"
        )

    def _lost(self, what: str, began: float) -> None:
        """Redis had forgotten something and was told again; it took from ``began`` on."""
        self._note(what)
        self._tails = {one: Tail() for one in self._tails}  # what is there again may have ids that others had
        self._overdue.begin()  # copies are gone, too
        self.recoveries.note(REDIS_LOST, time.monotonic() - began)
        self._grace = time.monotonic() + self._clocks.beat_ttl

    def extend(self, ledger: Ledger) -> None:
        """Issue the slots that the ledger has come to want."""
        self._extend(ledger, iter(self._cut(ledger)))

    def _extend(self, ledger: Ledger, blocks: Iterator[Block], *, new: bool = False) -> None:
        while some := list(islice(blocks, BLOCKS_AT_ONCE)):
            self._channel.extend(self._token, ledger.publication, some, new=new)

    def _cut(self, ledger: Ledger) -> Iterable[Block]:
        workers = self._workers or self._roster.look(self._channel)  # a new master has not looked yet
        return self.cutter.each(ledger.publication, ledger.unanswered(), max(1, len(workers)))

    # --- reading

    def collect(self, ledger: Ledger) -> None:
        """Until the ledger is complete and the run not paused. Raises Interrupted, FencedError, RedisError, EnvironmentFailure."""
        while (verifying := self._verifying(ledger)) or self.requests.paused or not ledger.complete():
            longest = VERIFYING_SECONDS if verifying else self._clocks.collect_wait
            wait = min(longest, max(0.001, self._next - time.monotonic()))
            if self.read(ledger, wait):
                self._meanwhile(ledger)
            if self._interrupted() or self.requests.stop:
                raise Interrupted
            if time.monotonic() >= self._next or ledger.needs_reconcile:
                self.tick(ledger)
        if ledger.implausible and not self._implausible:
            self._implausible = ledger.implausible
            self._note(implausible(self._implausible, publication_generation(ledger.publication)))
        for kind in ledger.wanted:
            seconds = ledger.seconds_per_slot(kind)
            if seconds is not None:
                self.cutter.seconds[kind] = seconds

    def _verifying(self, ledger: Ledger) -> bool:
        return self.verification is not None and self.verification.pending(ledger)

    def _meanwhile(self, ledger: Ledger) -> None:
        """With nothing left to read, what can be done before the last answer is there."""
        ledger.gather()
        if self.ahead and not ledger.complete():
            self.ahead.popleft()()

    def read(self, ledger: Ledger, wait: float) -> bool:
        """Drain what is there, in bulk, but no flood for ever: a thousand entries, or 32 MiB, and the other duties come first.

        Whether nothing is left.
        """
        number = size = 0
        self._tails.setdefault(ledger.publication, Tail())
        while number < READ_AT_ONCE and size < 8 * READ_BYTES:
            asked = self._at_once
            cursors = {publication: tail.cursor for publication, tail in self._tails.items()}
            found = self._channel.collect_each(
                cursors, asked, 0.0 if number else wait, ledger.largest_answer
            )
            length = sum(len(entry.payload) for entries in found.values() for entry in entries)
            number, size = number + sum(map(len, found.values())), size + length
            for publication, entries in found.items():
                self._take_in(ledger, publication, entries)
            if self._channel.is_cut:  # what was read, its length says nothing of what was asked for
                asked = max(1, sum(map(len, found.values())))
            elif all(len(entries) < asked for entries in found.values()):
                self._at_once = READ_AT_FIRST
                return True
            # Large entries are read one by one: a reply of a thousand of them would fill this process.
            self._at_once = max(1, min(READ_AT_ONCE, 4 * asked, READ_BYTES * asked // (length + 1)))
        return False

    def _drained(self, ledger: Ledger) -> bool:
        """Read to the end: what is unread would look as if nobody held it. A flood that does not end puts reconcile off for a while only."""
        until = time.monotonic() + self._clocks.reconcile
        while not self.read(ledger, 0.0):
            if time.monotonic() > until:
                self._put_off += 1
                return self._put_off > PUT_OFF_AT_MOST
        self._put_off = 0
        return True

    def _take_in(self, ledger: Ledger, publication: str, entries: Sequence[Entry]) -> None:
        """What did not count is deleted, so that a flood does not stay (rule 6)."""
        tail = self._tails[publication]
        if not tail.seen and not entries[0].payload:  # the header; any other entry without an answer is refused
            tail.seen.add(entries[0].id)
        fresh = [entry for entry in entries if entry.id not in tail.seen]
        tail.seen.update(entry.id for entry in fresh)
        refused = [entry.id for entry in fresh if not ledger.accept(entry.payload, len(self._workers))]
        self._channel.discard(publication, refused)
        tail.seen.difference_update(refused)  # they are gone: a flood is not remembered either
        tail.cursor = entries[-1].id
        self._served = self._served or bool(ledger.contributors)
        if len(refused) < len(fresh):
            self._answered_at = time.time()

    # --- each second

    def tick(self, ledger: Ledger) -> None:
        """Take up requests, renew, notice loss, reconcile, look after workers, show."""
        began = time.monotonic()
        self._next = began + min(self._clocks.renew, self._clocks.reconcile)
        ledger.needs_reconcile = False
        self._take_up(publication_generation(ledger.publication))
        stored = self._channel.renew(self._token, self._holder, self._clocks.lease, self._shown(ledger), self._refused + ledger.refused)
        if stored.publication != ledger.publication or not stored.whole:
            self._publish(ledger)
            self._lost(LOST, began)
        ended = self._channel.ended_outages()
        if ended:  # what failed one after the other within a second failed by one cause
            self.recoveries.note(REDIS_AWAY, sum(ended))
        self._notice_outage(ledger)
        self._look_after(ledger)
        if not self._drained(ledger):
            return
        seen = self._reconcile(ledger, ())
        if seen is not None:
            self._reconciled(ledger, seen)
            self._issue_again(ledger, seen)

    def _notice_outage(self, ledger: Ledger) -> None:
        """Redis was away, and with it every beat: nobody is declared dead for a while (rule 7)."""
        if self._channel.outages != self._outages:
            self._outages = self._channel.outages
            self._grace = time.monotonic() + self._clocks.beat_ttl
            self._rewind()
            ledger.remember_deaths(self._channel.deaths())

    def _reconcile(self, ledger: Ledger, only: Sequence[tuple[str, int, int]]) -> Reconciled | None:
        self._notice_outage(ledger)  # it may have been away since the tick began
        dismissed = sorted({*self.fleet.dismissed(), *self._silent.names})
        owed = replace(ledger.owed(self._most(ledger), time.monotonic() < self._grace, self._give_way, dismissed), only=only)
        # What is owed to nobody leaves todo: the workers of a paused run finish what they hold and wait.
        return self._channel.reconcile(self._token, replace(owed, ranges=()) if self.requests.paused else owed)

    def _issue_again(self, ledger: Ledger, seen: Reconciled) -> None:
        """What nobody held at that look, and what is not among the answers that were there by then either.

        An answer and the end of its claim are one: whoever was seen without one has answered before, or never will.
        """
        if not seen.nobody or not self._drained(ledger):
            return
        self._issues += 1
        by_name = self._issues > ISSUES_TO_ALL and not self.requests.paused  # somebody takes it from todo again and again
        given = len(self._give(ledger, slots_of(seen.nobody))) if by_name else 0
        again = self._reconcile(ledger, seen.nobody)
        for _, blocks in again.dead[:MOST_DEAD] if again is not None else ():
            ledger.died(blocks)
        if again is not None and given + again.owed:
            self._read_again()
            ledger.reissued += max(0, given + again.owed - len(self.audit.open))  # what the audit asks for was not lost

    def _take_up(self, generation: int) -> None:
        """What people ask; the time that a pause takes is no time of the run."""
        self.requests.look(generation)
        now = time.monotonic()
        if self._paused_at is not None:
            self._paused_for += now - self._paused_at
            if not self.requests.paused:
                self._answered_at = time.time()  # a pause is no stall
                self._overdue.begin()  # it took the copies out of todo
        self._paused_at = now if self.requests.paused else None

    def paused_since(self) -> float:
        """Seconds of pause since the last call."""
        paused, self._paused_for = self._paused_for, 0.0
        return paused

    def _most(self, ledger: Ledger) -> int:
        """Slots of a block that is issued again; it may be of any kind that is owed, and of some a slot has many episodes."""
        owed = {kind for kind, _, _ in ledger.unanswered()} or {messages.TRAIN}
        return min(self.cutter.most(kind, ledger.wanted.get(kind, 1), max(1, len(self._workers))) for kind in owed)

    def _reconciled(self, ledger: Ledger, seen: Reconciled) -> None:
        for _, blocks in seen.dead[:MOST_DEAD]:
            ledger.died(blocks)
        late = (min(count, MOST_LATE * self._answers[name]) for name, count in seen.late.items())
        self._late = max(self._late, sum(late))
        self._copy_overdue(ledger, seen)

    def _rewind(self) -> None:
        """All streams are read from their beginning again (rule 9)."""
        for tail in self._tails.values():
            tail.cursor = "0"

    def _read_again(self) -> None:
        """From the beginning (rule 9), in case something stands where nobody looks; of many entries seldom, for that takes its time."""
        now = time.monotonic()
        if now >= self._read_again_from:
            self._rewind()
            self._read_again_from = now + sum(len(tail.seen) for tail in self._tails.values()) / READ_AGAIN_A_SECOND

    def _copy_overdue(self, ledger: Ledger, seen: Reconciled) -> None:
        now = time.monotonic()
        self._overdue.look(ledger.publication, seen, now)
        self._silent.look(seen.claims, self._workers, self._answers, self.cutter.patience, now)
        joined = [worker for worker in self._workers if worker not in self._silent.names]
        if not self._idle.look(seen.claims, joined, self._answers) or seen.todo or self.requests.paused:
            return
        self._next = min(self._next, now + HURRY_SECONDS)
        first, more = self._overdue.due(ledger, now)
        if first:
            self._channel.extend(self._token, ledger.publication, [Block(ledger.publication, kind, slot, slot + 1) for kind, slot in first])
            self.recoveries.begin(OVERDUE, first)
        first += self._give(ledger, more)
        self._overdue.copied(ledger, first, now)
        ledger.reissued += len(first)

    def _give(self, ledger: Ledger, slots: Iterable[Slot]) -> list[Slot]:
        """Put slots into the claims of idle workers, a little for each; those that found one."""
        most, singles = self._most(ledger), ledger.singles()

        def send(worker: str, some: Sequence[Slot]) -> bool:
            blocks = blocks_of_slots(ledger.publication, some, most, singles)
            return self._channel.extend(self._token, ledger.publication, blocks, to=worker)

        missing = (slot for slot in slots if not ledger.has(slot[0], slot[1], slot[1] + 1))
        return self._idle.give(missing, BLOCKS_GIVEN * most, send)

    def _look_after(self, ledger: Ledger) -> None:
        """Who is there, who refuses, who should give way; and the display."""
        workers = self._roster.look(self._channel, self._answers)
        self._workers = {name: about for name, about in workers.items() if "refuses" not in about}
        self._company.look(workers)
        self._roll.look(workers, self._channel.outages, self._give_way)
        self.fleet.look(self._workers)
        if len(self._answers) > MAX_WORKERS:  # whoever answers names itself
            self._answers = ledger.answers = Counter({name: count for name, count in self._answers.items() if name in workers})
        ledger.decide()
        for slot in self.audit.review():
            ledger.withdraw(slot)
        if self._housekeeper is not None:
            self._give_way = self._housekeeper.tick(self._channel, self._workers, self._served, bool(self.requests.paused))
        done, total = ledger.answered()
        waiting = {"waiting": f"paused by {self.requests.paused}"} if self.requests.paused else {}
        self._live({"workers": len(self._workers), "answered": done, "slots": total, **waiting})

    def _shown(self, ledger: Ledger) -> dict[str, str]:
        done, total = ledger.answered()
        moments = {"updated": f"{time.time():.3f}", "answered_at": f"{self._answered_at:.3f}"}
        recoveries = {"recoveries": self.recoveries.text()}
        return {"workers": str(len(self._workers)), "answered": f"{done}/{total}", **moments, **self.requests.progress(), **recoveries, **self.fleet.shown(), **self.audit.shown(), **self.about}

    def late_since(self) -> int:
        """Answers that came too late since the last call, as living workers count them."""
        fresh = max(0, self._late - self._late_before)
        self._late_before = self._late
        return fresh
