"""``--standby RUN``: wait beside a run that another master drives, and take it over when that one's lease lapses."""

from __future__ import annotations

import time
from collections.abc import Callable

from es_queue.protocol.channel import NEEDS_A_MASTER, MasterChannel
from es_queue.protocol.clocks import Clocks
from master.lease import host_of
from master.wording import printable


class Standby:
    """Looks at the lease, once each renewal. ``interrupted``: a person asked to stop."""

    def __init__(self, channel: MasterChannel, clocks: Clocks, note: Callable[[str], None], interrupted: Callable[[], bool]) -> None:
        self._channel, self._clocks, self._note, self._interrupted = channel, clocks, note, interrupted
        self._holder, self._left = "", 0.0
        self._free: float | None = None
        # (outages so far, whether Redis knows nothing of the run): as it was when the lease was last renewed, and now
        self._calm = self._now = (channel.outages, False)

    def wait(self) -> bool:
        """True when the run has no master any more and wants one; False when it has ended, or a person asked to stop.

        A lease that lapsed while Redis was away, or was lost with all of the run, says nothing: its holder gets a
        whole lease to renew it (rule 7).
        """
        while not self._interrupted():
            state = self._channel.state()
            if state is not None and state not in NEEDS_A_MASTER:
                self._note(f"run {self._channel.run} is {printable(state)}: there is nothing to take over")
                return False
            if self._lapsed(time.monotonic(), lost=state is None):
                return True
            time.sleep(self._clocks.renew)
        return False

    def _lapsed(self, now: float, lost: bool) -> bool:
        holder, left = self._channel.lease_holder()
        if holder is not None:
            self._held(holder, left)
            return False
        seen = (self._channel.outages, lost)
        if self._free is None or seen != self._now:
            self._free, self._now = now, seen
        patience = self._clocks.renew if seen == self._calm else self._clocks.lease + self._clocks.renew
        return now - self._free >= patience

    def _held(self, holder: str, left: float) -> None:
        """Somebody drives the run; ``left``: seconds until the lease lapses."""
        if holder != self._holder:
            self._holder = holder
            self._note(f"standing by: {host_of(holder)} drives run {self._channel.run}")
        elif left > self._left:
            self._calm = (self._channel.outages, False)
        self._left, self._free = left, None
