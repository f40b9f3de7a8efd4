"""Publishing a generation's parameters and issuing its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from es_queue.errors import RedisError
from es_queue.protocol.channel import MasterChannel, PublishRequest, PublishResult
from es_queue.protocol.messages import Block
from es_queue.protocol.timing import Clocks
from master.collect.blocks.block_scheduler import BlockScheduler
from master.collect.blocks.stragglers import DirectIssue
from master.collect.ledger import Ledger
from master.collect.worker_watch import WorkerWatch

#: Blocks that are published with the parameters, in all and for each worker; the others follow, so
#: many in one script.
FIRST_BLOCKS, FIRST_BLOCKS_PER_WORKER, BLOCKS_PER_SCRIPT = 1024, 4, 8192
MOST_STAGING_ATTEMPTS = 10


@dataclass(frozen=True)
class MasterLease:
    """The channel of the master that holds a run's lease. holder: its name; token: fences every
    write
    """

    channel: MasterChannel
    token: str
    holder: str
    clocks: Clocks


class BlockPublisher:
    """Publishes a ledger's slots in the scheduler's blocks."""

    def __init__(
        self,
        lease: MasterLease,
        scheduler: BlockScheduler,
        workers: WorkerWatch,
        direct: DirectIssue,
    ) -> None:
        """``direct``: whether blocks go to workers by name."""
        self._lease, self._scheduler, self._workers = lease, scheduler, workers
        self._direct = direct
        self._request = PublishRequest("", b"", (), "", {})
        self._parameters = b""

    def open(
        self, ledger: Ledger, request: PublishRequest, parameters: bytes, *, adopted: bool
    ) -> bool:
        """Publish, unless a former master has left it open. False if Redis had another
        publication open than this master's last.
        """
        before = self._request.publication
        self._request, self._parameters = request, parameters
        if adopted:
            return True
        opened = self.publish(ledger)
        # ours: sent again after a lost reply
        return not before or opened.previous in (before, ledger.publication)

    def publish(self, ledger: Ledger) -> PublishResult:
        """Stage, then publish the unanswered slots (rules 3, 4).

        Nobody waits for blocks that come late in the generation: they follow at once. Of a master
        that ends between the two its successor finds them owed, for todo is a hint (rules 1, 8).
        """
        issue = ledger.block_issue(self._scheduler)
        blocks = iter(issue.blocks(self._workers.expected_count()))
        most = max(FIRST_BLOCKS, FIRST_BLOCKS_PER_WORKER * len(self._workers.present))
        first = [] if self._direct.is_on else list(islice(blocks, most))
        request = replace(self._request, blocks=first, keep=ledger.closing.prior_publications)
        for _ in range(MOST_STAGING_ATTEMPTS):
            self._lease.channel.stage(ledger.publication, self._parameters)
            opened = self._lease.channel.publish(self._lease.token, request)
            if opened.succeeded:
                self._issue(ledger, blocks, new=True)
                return opened
        raise RedisError(
            f"the parameters of publication {ledger.publication} disappeared from Redis "
            f"{MOST_STAGING_ATTEMPTS} times before they were published: find out what removes "
            f"keys there"
        )

    def extend(self, ledger: Ledger) -> None:
        """Issue the slots that the ledger has come to want."""
        issue = ledger.block_issue(self._scheduler)
        self._issue(ledger, issue.more_blocks(self._workers.expected_count()))

    def refill(self, ledger: Ledger) -> None:
        """Issue new slots in place of answered ones, if the ledger needs more."""
        blocks = ledger.block_issue(self._scheduler).refill(self._workers.live_count())
        self._issue(ledger, blocks)

    def learn_durations(self, ledger: Ledger) -> None:
        """The next blocks are cut by what this generation's slots took."""
        for kind in ledger.required:
            seconds = ledger.tally.seconds_per_slot(kind)
            if seconds is not None:
                self._scheduler.seconds[kind] = seconds

    def _issue(self, ledger: Ledger, blocks: Iterable[Block], *, new: bool = False) -> None:
        """``new``: the publication has just been opened."""
        extend = partial(self._lease.channel.extend, self._lease.token, ledger.publication)
        rest, present = iter(blocks), self._workers.present
        shares = self._direct.share_blocks(rest, present)
        copies = self._direct.share_copies(shares, present) if new else {}
        for worker, share in [*shares.items(), *((name, [copies[name]]) for name in copies)]:
            extend(share, to=worker)
        while chunk := list(islice(rest, BLOCKS_PER_SCRIPT)):
            extend(chunk, new=new)
