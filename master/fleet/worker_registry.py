"""WorkerRegistry: the workers of a run, and their arithmetic."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import nsmallest

from master.fleet.idle_monitor import some_of

LOGGER = logging.getLogger("es_queue.fleet")
WorkerInfo = Mapping[str, Mapping[str, str]]
MOST_REMEMBERED = 20_000
GROUPS_NAMED = 5
LONGEST_NAME = 120


@dataclass(frozen=True, order=True)
class WorkerIdentity:
    """A worker over all its seats: its host and RQ name."""

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
    worker since had the same
    """

    def __init__(self, read_workers: Callable[[], WorkerInfo], strict: bool = False) -> None:
        """``read_workers``: reads living workers' information, for a worker that has just come."""
        self._read_workers, self._strict = read_workers, strict
        self._registered: OrderedDict[str, RegisteredWorker] = OrderedDict()
        self._present: WorkerInfo = {}
        self.numerics, self.is_uniform = "", True

    def update(self, workers: WorkerInfo) -> None:
        """``workers``: present and willing ones, by id."""
        self._present = workers
        for name, about in workers.items():
            self._registered[name] = parse_worker(about)
            self._registered.move_to_end(name)
        while len(self._registered) > MOST_REMEMBERED:
            self._registered.popitem(last=False)
        prints = [print_ for name in workers if (print_ := self._registered[name].numerics)]
        if prints and not self.numerics:  # the most common, of two equally common ones the lesser
            counts = Counter(prints)
            self.numerics = max(sorted(counts), key=counts.__getitem__)
        if self.is_uniform and not self._strict and set(prints) - {self.numerics}:
            self.is_uniform = False
            LOGGER.warning(
                f"mixed fleet: the run began with fingerprint {self.numerics[:8]}, so equal "
                f"bits are not guaranteed: {format_fingerprints(workers)}"
            )

    def identity(self, worker: str) -> WorkerIdentity | None:
        """A worker's identity over all its seats; None if unknown."""
        if worker not in self._registered:
            workers = self._read_workers()
            self.update({name: workers[name] for name in workers if "refuses" not in workers[name]})
        registered = self._registered.get(worker)
        return registered.identity if registered is not None else None

    def has_other_numerics(self, worker: str) -> bool:
        """Whether --strict refuses this worker's results."""
        registered = self._registered.get(worker) if self._strict else None
        return registered is not None and registered.numerics not in ("", self.numerics)

    def dismissed_workers(self) -> list[str]:
        """Present workers that --strict asks to leave."""
        return sorted(filter(self.has_other_numerics, self._present))

    def progress_fields(self) -> dict[str, str]:
        """Fields of progress, which workers read when they join."""
        return {"numerics": self.numerics}


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
