"""Channel: the contract between master and worker, one method per step of the ring.

``redis_channel`` and the tests' ``memory_channel`` implement it and pass one contract suite.
Comments name the fourteen rules of the protocol. Workers' methods need no script; the master has
five.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from es_queue.protocol.messages import MAX_ANSWER, Block

RUNNING, PAUSED, STOPPING, STOPPED = "running", "paused", "stopping", "stopped"
FINISHED, FAILED = "finished", "failed"
#: A run in one of these states goes on, and wants a master.
ACTIVE_STATES = (RUNNING, PAUSED, STOPPING)


@dataclass(frozen=True)
class PublishRequest:
    """What a publication atomically sets when it opens.

    keep: older publications that stay open; all others close
    """

    publication: str
    task: bytes
    blocks: Sequence[Block]
    config: str
    progress: Mapping[str, str]
    history: Mapping[str, str] | None = None
    checkpoint: bytes | None = None
    keep: Sequence[str] = ()


@dataclass(frozen=True)
class PublishResult:
    """The outcome of publish.

    previous: the publication that was stored, or None; succeeded: False if the parameters are gone,
    and nothing was opened: stage them again
    """

    previous: str | None
    succeeded: bool = True


@dataclass(frozen=True)
class ReconcileRequest:
    """The slots without an accepted answer, with which reconcile compares todo and claims.

    ranges: (kind, start, stop) of unanswered slots; block_size: most slots in a re-issued block
    suspects: (kind, slot) that are issued singly; grace: no worker is declared dead
    give_way: workers that are asked to leave
    only: ranges whose slots are issued again; None: all
    """

    publication: str
    ranges: Sequence[tuple[str, int, int]]
    block_size: int = 1
    suspects: frozenset[tuple[str, int]] = frozenset()
    grace: bool = False
    give_way: Sequence[str] = ()
    only: Sequence[tuple[str, int, int]] | None = None


@dataclass(frozen=True)
class ReconcileReport:
    """What reconcile found and did.

    requeued: slots that no worker held and that are in todo again; todo: blocks waiting; claims:
    blocks by living worker
    dead: (worker, blocks it held); late: late answers of each worker, by its own count
    unclaimed: (kind, start, stop) of slots that no worker held, in todo again or not
    """

    requeued: int
    todo: int
    claims: Mapping[str, tuple[Block, ...]]
    dead: Sequence[tuple[str, tuple[Block, ...]]] = ()
    late: Mapping[str, int] = field(default_factory=dict)
    unclaimed: Sequence[tuple[str, int, int]] = ()


@dataclass(frozen=True)
class RenewResult:
    """The outcome of renew: the stored publication, and whether its task, parameters and stream
    exist.
    """

    publication: str | None
    is_complete: bool


@dataclass(frozen=True)
class WorkerFlags:
    """What a worker polls: the run's state, whether to leave, RQ's own flags.

    has_master: whether a master holds the run's lease; closed: whether the given publication was
    replaced
    """

    state: str | None
    give_way: bool = False
    shutdown: bool = False
    suspended: bool = False
    has_master: bool = True
    closed: bool = False


@dataclass(frozen=True)
class StreamEntry:
    id: str
    payload: bytes = field(repr=False)


WorkerInfos = Mapping[str, dict[str, str]]
NO_WORKERS: WorkerInfos = MappingProxyType({})
NONE_REFUSED: Mapping[str, int] = MappingProxyType({})


class MasterChannel(ABC):
    """The master's side. Scripts raise FencedError when another token holds the run (rule 3)."""

    run: str

    @property
    def outages(self) -> int:
        """How often the server did not respond; after a change, heartbeats may have lapsed (rule
        7).
        """
        return 0

    def ended_outages(self) -> list[float]:
        """Seconds of each outage that ended since the last call."""
        return []

    def record_failure(self, error: Exception) -> None:
        """Record a failure of another command on the same connection, which is part of the same
        outage.
        """
        return

    @abstractmethod
    def epoch(self) -> str | None:
        """The stored fencing token."""

    @abstractmethod
    def lease_holder(self) -> tuple[str | None, float]:
        """(the lease's holder, seconds until it expires)."""

    def state(self) -> str | None:
        """The run's state as its master last wrote it; None for an unknown run."""
        return self.progress_field("state")

    @abstractmethod
    def progress_field(self, name: str) -> str | None:
        """A field of the run's progress as a master last wrote it; None if missing or too long."""

    @abstractmethod
    def stage(self, publication: str, parameters: bytes) -> None:
        """Store parameters under their own name, with a TTL that publish removes (rule 3)."""

    @abstractmethod
    def publish(self, token: str, request: PublishRequest) -> PublishResult:
        """Open a publication, and close the stored one and older ones except those to keep (rule
        4). No effect if it is stored already.
        """

    @abstractmethod
    def extend(
        self,
        token: str,
        publication: str,
        blocks: Iterable[Block],
        *,
        new: bool = False,
    ) -> bool:
        """Append blocks to the tail of todo. False if another publication is stored.

        Blocks that already wait there are not appended again. ``new`` skips that check: after a
        lost reply, a block can then be there twice, and its first result counts, as always.
        """

    @abstractmethod
    def reconcile(self, token: str, request: ReconcileRequest) -> ReconcileReport | None:
        """Put slots that no worker holds at the head of todo (rule 8). None if another publication
        is stored.
        """

    @abstractmethod
    def renew(
        self,
        token: str,
        holder: str,
        lease: float,
        progress: Mapping[str, str],
        refused: Mapping[str, int],
    ) -> RenewResult:
        """Renew the lease, write progress, report what is stored (rules 10, 11). A higher token
        takes over the run.
        """

    @abstractmethod
    def finish(
        self,
        token: str,
        progress: Mapping[str, str],
        seconds: int,
        checkpoint: bytes | None,
        refused: Mapping[str, int] = NONE_REFUSED,
    ) -> None:
        """Close the open publications, write the last state and the counts of refused results, let
        all keys expire after ``seconds``.
        """

    def collect(self, publication: str, cursor: str, count: int, wait: float) -> list[StreamEntry]:
        """Entries after the cursor ("0" from the start), at most ``count``; waits up to ``wait``
        seconds for one.
        """
        return self.collect_each({publication: cursor}, count, wait).get(publication, [])

    @abstractmethod
    def collect_each(
        self, cursors: Mapping[str, str], count: int, wait: float, largest: int = MAX_ANSWER
    ) -> dict[str, list[StreamEntry]]:
        """``collect`` for several publications at once, at most ``count`` entries of each.

        Those without any are left out. An entry of more than ``largest`` bytes has an empty
        payload.
        """

    @property
    def is_cut(self) -> bool:
        """Whether the last ``collect_each`` left out entries because of their size: read again."""
        return False

    @abstractmethod
    def discard(self, publication: str, ids: Sequence[str]) -> None:
        """Delete refused entries, so that a flood does not stay (rule 6)."""

    @abstractmethod
    def stored_run(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """(config, task, checkpoint) from Redis, for resume (rule 11)."""

    @abstractmethod
    def workers(self, known: WorkerInfos = NO_WORKERS) -> dict[str, dict[str, str]]:
        """Information from living workers, by worker id; it is not read again for those in
        ``known``.
        """

    @abstractmethod
    def deaths(self) -> dict[tuple[str, int], int]:
        """Deaths of workers that held (kind, slot) of the open publication; kept for the next
        master (rule 12).
        """

    @abstractmethod
    def errors(self) -> list[str]:
        """The newest reports of workers."""

    @abstractmethod
    def requests(self) -> list[bytes]:
        """Requests from other terminals, oldest first, unchecked; a bounded number."""

    @abstractmethod
    def forget_requests(self, requests: Sequence[bytes]) -> None:
        """Remove requests that were answered."""

    @abstractmethod
    def other_workers(self, run: str) -> int | None:
        """Number of another run's workers, None if it does not run or has no master."""


class WorkerChannel(ABC):
    """A worker's side."""

    run: str
    worker: str

    @property
    def outages(self) -> int:
        return 0

    @abstractmethod
    def config(self) -> bytes | None:
        """The run's configuration, None when there is no such run."""

    @abstractmethod
    def progress_field(self, name: str) -> str | None:
        """A field of the run's progress as its master last wrote it; None if missing or too
        long.
        """

    @abstractmethod
    def task(self) -> bytes | None:
        """The header of the open publication."""

    @abstractmethod
    def parameters(self, publication: str, size: int) -> bytes | None:
        """The published bytes, None when the publication has closed."""

    @abstractmethod
    def arrive(self, about: Mapping[str, str], ttl: float) -> None:
        """The first beat, before the first claim (rule 7)."""

    @abstractmethod
    def beat(self, about: Mapping[str, str], ttl: float) -> None:
        """Heartbeat. Works when the server is out of memory, unless the key is gone."""

    @abstractmethod
    def poll_flags(self, publication: str = "") -> WorkerFlags:
        """The leave flags, and whether ``publication`` has closed, in one round trip."""

    @abstractmethod
    def held_blocks(self) -> list[Block]:
        """The worker's claims (rule 5); entries that are not blocks are dropped."""

    @abstractmethod
    def claim(self, wait: float) -> Block | None:
        """Move a block from todo to the worker's claims, waiting up to ``wait`` seconds. Never sent
        twice (rule 5).
        """

    @abstractmethod
    def answer(self, block: Block, payload: bytes) -> bool:
        """Push a result and drop the claim, atomically (rule 6). False if the publication has
        closed.
        """

    @abstractmethod
    def drop(self, block: Block) -> None:
        """Forget a claim whose publication has closed."""

    @abstractmethod
    def give_back(self, blocks: Sequence[Block]) -> None:
        """Return unfinished blocks to the head of todo, atomically (rule 13)."""

    @abstractmethod
    def report(self, text: str) -> None:
        """Add to the run's errors; nothing is written for a run that is gone."""

    @abstractmethod
    def depart(self) -> None:
        """Remove the worker's heartbeat."""
