"""``--standby RUN``: wait beside a run that another master drives, and take it over when that one's lease lapses."""

from __future__ import annotations

import time
from collections.abc import Callable

from es_queue.protocol.channel import PAUSED, RUNNING, STOPPING, MasterChannel
from es_queue.protocol.clocks import Clocks
from master.lease import host_of

WANTS_A_MASTER = (RUNNING, PAUSED, STOPPING)


class Standby:
    """Looks at the lease, once each renewal. ``interrupted``: a person asked to stop."""

    def __init__(self, channel: MasterChannel, clocks: Clocks, note: Callable[[str], None], interrupted: Callable[[], bool]) -> None:
        self._channel, self._clocks, self._note, self._interrupted = channel, clocks, note, interrupted
        self._outages = channel.outages
        self._free: float | None = None
        self._patience = clocks.renew
        self._holder = ""

    def wait(self) -> bool:
        """True when the run has no master any more and wants one; False when it has ended, or a person asked to stop.

        A lease that lapsed while Redis was away says nothing: its holder gets a whole lease to renew it (rule 7).
        """
        while not self._interrupted():
            state = self._channel.state()
            if state is not None and state not in WANTS_A_MASTER:
                self._note(f"run {self._channel.run} is {state}: there is nothing to take over")
                return False
            if self._lapsed(time.monotonic()):
                return True
            time.sleep(self._clocks.renew)
        return False

    def _lapsed(self, now: float) -> bool:
        holder, _ = self._channel.lease_holder()
        if holder is not None and holder != self._holder:
            self._holder = holder
            self._note(f"standing by: {host_of(holder)} drives run {self._channel.run}")
        if holder is not None:
            self._free = None
            return False
        away = self._channel.outages != self._outages
        if self._free is None or away:
            self._free, self._outages = now, self._channel.outages
            self._patience = self._clocks.lease + self._clocks.renew if away else self._clocks.renew
        return now - self._free >= self._patience
