"""WorkerRegistry: the workers of a run, their arithmetic, and the workers that are excluded."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nsmallest

from es_queue.protocol.channel import MAX_QUARANTINED, parse_quarantined
from master.fleet.idle_monitor import some_of

LOGGER = logging.getLogger("es_queue.fleet")
WorkerInfo = Mapping[str, Mapping[str, str]]
MOST_REMEMBERED = 20_000
GROUPS_NAMED = 5
#: A question to Redis lasts, and nobody is asked for again before so many times as long: names that
#: nobody has, sent without end, cost the master a fifth of its time at the most.
QUERY_PAUSE_FACTOR, LEAST_QUERY_PAUSE = 4, 0.005
LONGEST_NAME = 120


@dataclass(frozen=True, order=True)
class WorkerIdentity:
    """A worker over all its seats: its host and RQ name. Both are self-reported, so a forger can
    have any number.
    """

    host: str
    name: str

    def __str__(self) -> str:
        return f"{self.name or 'a worker'} on {self.host}"


@dataclass(frozen=True)
class RegisteredWorker:
    """One seat's worker. numerics: its fingerprint, empty before it has joined"""

    identity: WorkerIdentity
    numerics: str


class WorkerRegistry:
    """The master's record of what workers report about themselves each second.

    numerics: the run's first fingerprint, empty before there is one; is_uniform: whether every
    worker since had the same; quarantined: workers whose answers no longer count; suspended:
    workers whose answers do not count in the open publication
    """

    def __init__(
        self,
        read_workers: Callable[[], WorkerInfo],
        strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``read_workers``: reads living workers' information; called again, at intervals, for an
        unknown worker.
        """
        self._read_workers, self.strict, self._clock = read_workers, strict, clock
        self._registered: OrderedDict[str, RegisteredWorker] = OrderedDict()
        self._present: dict[str, RegisteredWorker] = {}
        self._next_query = float("-inf")
        self.numerics, self.is_uniform = "", True
        self._fixed = ""
        self.quarantined: set[WorkerIdentity] = set()
        self.suspended: set[WorkerIdentity] = set()

    def restore(self, numerics: str, quarantined: str | None) -> None:
        """Restore a former master's knowledge, from the checkpoint and from progress."""
        if self._fixed and numerics not in ("", self._fixed):
            self.is_uniform = False
            LOGGER.warning(
                f"the run began with fingerprint {numerics[:8]} and continues with the master's "
                f"{self._fixed[:8]}: equal bits are not guaranteed"
            )
        self.numerics = self._fixed or numerics
        self.quarantined |= {
            WorkerIdentity(host, name) for host, name in parse_quarantined(quarantined)
        }

    def fix(self, numerics: str) -> None:
        self._fixed = self.numerics = numerics

    def update(self, workers: WorkerInfo) -> None:
        """``workers``: present and willing ones, by id.

        Any worker can write another's information, so the first value of each counts.
        """
        self._present = {name: self._first_seen(name, about) for name, about in workers.items()}
        for name, member in self._present.items():
            self._registered[name] = member
            self._registered.move_to_end(name)
        while len(self._registered) > MOST_REMEMBERED:
            self._registered.popitem(last=False)
        prints = [member.numerics for member in self._present.values() if member.numerics]
        if prints and not self.numerics:  # the most common, of two equally common ones the lesser
            counts = Counter(prints)
            self.numerics = max(sorted(counts), key=counts.__getitem__)
        if self.is_uniform and not self.strict and set(prints) - {self.numerics}:
            self.is_uniform = False
            LOGGER.warning(
                f"mixed fleet: the run began with fingerprint {self.numerics[:8]}, so equal "
                f"bits are not guaranteed: {format_fingerprints(workers)}"
            )

    def _first_seen(self, name: str, about: Mapping[str, str]) -> RegisteredWorker:
        known, fresh = self._registered.get(name), parse_worker(about)
        if known is None:
            return fresh
        return known if known.numerics else RegisteredWorker(known.identity, fresh.numerics)

    def registered_worker(self, worker: str) -> RegisteredWorker | None:
        """A joined worker; None if unknown."""
        registered = self._registered.get(worker)
        began = self._clock()
        if (registered is None or not registered.numerics) and began >= self._next_query:
            self.update(
                {
                    name: about
                    for name, about in self._read_workers().items()
                    if "refuses" not in about or name in self._present
                }
            )
            now = self._clock()
            self._next_query = now + max(LEAST_QUERY_PAUSE, QUERY_PAUSE_FACTOR * (now - began))
            registered = self._registered.get(worker)
        return registered if registered is not None and registered.numerics else None

    def refusal(self, worker: str) -> str:
        """Why a result of ``worker`` does not count, as a word for the counts; empty if it does."""
        member = self.registered_worker(worker)
        if member is None:
            return "unknown-worker"
        if member.identity in self.quarantined | self.suspended:
            return "quarantined"
        return "other-numerics" if self.strict and member.numerics != self.numerics else ""

    def has_joined(self, worker: str) -> bool:
        """Whether this master has ever seen the worker; a lapsed beat does not matter."""
        return worker in self._registered or self.identity(worker) is not None

    def dismissed_workers(self) -> list[str]:
        """Workers that must leave, and whose claims are ignored."""
        return sorted(
            name
            for name, member in self._present.items()
            if member.identity in self.quarantined or self._has_other_numerics(member)
        )

    def _has_other_numerics(self, member: RegisteredWorker) -> bool:
        return self.strict and bool(member.numerics) and member.numerics != self.numerics

    @property
    def present(self) -> set[WorkerIdentity]:
        return {member.identity for member in self._present.values()}

    def peers(self, numerics: str) -> set[WorkerIdentity]:
        """Present workers with this arithmetic whose results count."""
        return {
            member.identity for member in self._present.values() if member.numerics == numerics
        } - (self.quarantined | self.suspended)

    def identity(self, worker: str) -> WorkerIdentity | None:
        """A worker's identity, also before it has joined; None if unknown."""
        if worker not in self._registered:
            self.registered_worker(worker)
        registered = self._registered.get(worker)
        return registered.identity if registered is not None else None

    def quarantine(self, identity: WorkerIdentity) -> bool:
        """Quarantine a worker: its results no longer count. False if more would be in quarantine
        than remain: a majority is never expelled, because any client with the workers' password can
        return results under each name.
        """
        expelled = self.quarantined | {identity}
        staying = self.present - expelled
        if len(expelled) > min(len(staying), MAX_QUARANTINED):
            return False
        self.quarantined = expelled
        return True

    def suspend(self, identity: WorkerIdentity) -> bool:
        """Suspend a worker: its results do not count in the open publication. It stays, and a
        majority of the present workers is never suspended.
        """
        suspended = self.suspended | {identity}
        staying = self.present - self.quarantined - suspended
        if len(suspended & self.present) > len(staying):
            return False
        self.suspended = suspended
        return True

    def end_suspensions(self) -> None:
        self.suspended = set()

    def progress_fields(self) -> dict[str, str]:
        """Fields of progress, which workers read when they join."""
        names = [[identity.host, identity.name] for identity in sorted(self.quarantined)][
            :MAX_QUARANTINED
        ]
        return {"numerics": self.numerics, "quarantined": json.dumps(names) if names else ""}


def parse_worker(about: Mapping[str, str]) -> RegisteredWorker:
    host, name = (about.get(key, "")[:LONGEST_NAME] for key in ("host", "rq_name"))
    return RegisteredWorker(WorkerIdentity(host, name), about.get("numerics", "")[:LONGEST_NAME])


def format_fingerprints(workers: WorkerInfo) -> str:
    """Each fingerprint's beginning with its hosts, a few of many: those that most hosts have."""
    groups: dict[str, set[str]] = {}
    for about in workers.values():
        groups.setdefault(about.get("numerics", "")[:8], set()).add(about.get("host", "?")[:60])
    common = sorted(
        nsmallest(GROUPS_NAMED, groups, key=lambda print_: (-len(groups[print_]), print_))
    )
    named = [f"{print_}: {some_of(list(groups[print_]))}" for print_ in common]
    return "; ".join(
        named + ([f"and {len(groups) - len(common)} others"] if len(groups) > len(common) else [])
    )
