"""Fleet: who works for the run, on what arithmetic, and who may not any more."""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest

from es_queue.protocol.channel import QUARANTINED_AT_MOST, quarantined_in
from master.company import some_of

About = Mapping[str, Mapping[str, str]]
REMEMBERED = 20_000
GROUPS_NAMED = 5
#: A question to Redis lasts, and nobody is asked for again before so many times as long: names that nobody has, sent
#: without end, cost the master a fifth of its time at the most.
ASK_PAUSE, LEAST_PAUSE = 4, 0.005
LONGEST_NAME = 120


@dataclass(frozen=True, order=True)
class Identity:
    """A worker over all its seats: its host and its RQ name. Both are its own word; a forger has as many as it likes."""

    host: str
    name: str

    def __str__(self) -> str:
        return f"{self.name or 'a worker'} on {self.host}"


@dataclass(frozen=True)
class Member:
    """One seat's worker. numerics: fingerprint of its arithmetic, empty before it has joined."""

    identity: Identity
    numerics: str


class Fleet:
    """Kept by the master from what workers say of themselves each second.

    numerics: the fingerprint that the run began with, empty before there is one; uniform: whether every worker
    since had the same; quarantined: whose answers do not count any more
    """

    def __init__(self, note: Callable[[str], None], ask: Callable[[], About], strict: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """``ask``: what living workers say now; it is asked again, now and then, for a worker that nobody knows."""
        self._note, self._ask, self.strict, self._clock = note, ask, strict, clock
        self._members: OrderedDict[str, Member] = OrderedDict()
        self._there: dict[str, Member] = {}
        self._next_question = float("-inf")
        self.numerics, self.uniform = "", True
        self._fixed = ""
        self.quarantined: set[Identity] = set()

    def remember(self, numerics: str, quarantined: str | None) -> None:
        """What a former master knew: from the checkpoint, and from the progress that it left."""
        if self._fixed and numerics not in ("", self._fixed):
            self.uniform = False
            self._note(f"the run began with fingerprint {numerics[:8]} and goes on with the master's {self._fixed[:8]}: bits are not promised")
        self.numerics = self._fixed or numerics
        self.quarantined |= {Identity(host, name) for host, name in quarantined_in(quarantined)}

    def fix(self, numerics: str) -> None:
        """The run's fingerprint is the master's own, and no worker's word."""
        self._fixed = self.numerics = numerics

    def look(self, workers: About) -> None:
        """``workers``: those that are there and do not refuse to work, by id.

        Any worker can write what another one says, so the first words of each are the ones that count.
        """
        self._there = {name: self._first_seen(name, about) for name, about in workers.items()}
        for name, member in self._there.items():
            self._members[name] = member
            self._members.move_to_end(name)
        while len(self._members) > REMEMBERED:
            self._members.popitem(last=False)
        prints = [member.numerics for member in self._there.values() if member.numerics]
        if prints and not self.numerics:  # most of those who are there; the lesser of two that are as many
            counts = Counter(prints)
            self.numerics = max(sorted(counts), key=counts.__getitem__)
        if self.uniform and not self.strict and set(prints) - {self.numerics}:
            self.uniform = False
            self._note(f"mixed fleet: the run began with fingerprint {self.numerics[:8]}, so bits are not promised: {hosts_of(workers)}")

    def _first_seen(self, name: str, about: Mapping[str, str]) -> Member:
        known, fresh = self._members.get(name), member_of(about)
        if known is None:
            return fresh
        return known if known.numerics else Member(known.identity, fresh.numerics)

    def member(self, worker: str) -> Member | None:
        """What is known of a worker that has joined; None where nobody has heard of it."""
        found = self._members.get(worker)
        began = self._clock()
        if (found is None or not found.numerics) and began >= self._next_question:
            self.look({name: about for name, about in self._ask().items() if "refuses" not in about or name in self._there})
            now = self._clock()
            self._next_question = now + max(LEAST_PAUSE, ASK_PAUSE * (now - began))
            found = self._members.get(worker)
        return found if found is not None and found.numerics else None

    def refusal(self, worker: str) -> str:
        """Why an answer of ``worker`` does not count, a word that is counted; empty where it does."""
        member = self.member(worker)
        if member is None:
            return "unknown-worker"
        if member.identity in self.quarantined:
            return "quarantined"
        return "other-numerics" if self.strict and member.numerics != self.numerics else ""

    def enrolled(self, worker: str) -> bool:
        """Whether this master has ever seen what the worker says of itself. A beat that has lapsed since voids nothing."""
        return worker in self._members or self.identity(worker) is not None

    def dismissed(self) -> list[str]:
        """Workers that are to leave, and whose claims hold nothing up."""
        return sorted(name for name, member in self._there.items() if member.identity in self.quarantined or self._differs(member))

    def _differs(self, member: Member) -> bool:
        return self.strict and bool(member.numerics) and member.numerics != self.numerics

    def others(self, known: Iterable[Identity], numerics: str) -> bool:
        """Whether somebody else is there, on the same arithmetic, who may be asked."""
        had = set(known) | self.quarantined
        return any(member.numerics == numerics and member.identity not in had for member in self._there.values())

    def several_hosts(self, numerics: str) -> bool:
        """Whether workers of this arithmetic are there on more hosts than one."""
        return len({member.identity.host for member in self._there.values() if member.numerics == numerics and member.identity not in self.quarantined}) > 1

    def identity(self, worker: str) -> Identity | None:
        """Who a worker is, also one that has not joined yet; None where nobody has heard of it."""
        if worker not in self._members:
            self.member(worker)
        found = self._members.get(worker)
        return found.identity if found is not None else None

    def quarantine(self, identity: Identity) -> bool:
        """Nothing that it returns counts any more. False where more would be in quarantine than stay: a majority is never expelled,
        for whoever has the workers' password can answer in the name of each of them."""
        expelled = self.quarantined | {identity}
        staying = {member.identity for member in self._there.values()} - expelled
        if len(expelled) > min(len(staying), QUARANTINED_AT_MOST):
            return False
        self.quarantined = expelled
        return True

    def shown(self) -> dict[str, str]:
        """For progress, where workers read it when they join."""
        names = [[one.host, one.name] for one in sorted(self.quarantined)][:QUARANTINED_AT_MOST]
        return {"numerics": self.numerics, "quarantined": json.dumps(names) if names else ""}


def member_of(about: Mapping[str, str]) -> Member:
    host, name = (about.get(key, "")[:LONGEST_NAME] for key in ("host", "rq_name"))
    return Member(Identity(host, name), about.get("numerics", "")[:LONGEST_NAME])


def hosts_of(workers: About) -> str:
    """Each fingerprint's beginning with its hosts, a few of many: those that most hosts have."""
    groups: dict[str, set[str]] = {}
    for about in workers.values():
        groups.setdefault(about.get("numerics", "")[:8], set()).add(about.get("host", "?")[:60])
    common = sorted(nsmallest(GROUPS_NAMED, groups, key=lambda print_: (-len(groups[print_]), print_)))
    named = [f"{print_}: {some_of(list(groups[print_]))}" for print_ in common]
    return "; ".join(named + ([f"and {len(groups) - len(common)} others"] if len(groups) > len(common) else []))
