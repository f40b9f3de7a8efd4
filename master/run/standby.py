"""``--standby RUN``: waits while another master leads the run, and takes over when its lease
lapses.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from es_queue.protocol.channel import ACTIVE_STATES, MasterChannel
from es_queue.protocol.timing import Clocks
from master.display.notes import TERMINAL
from master.run.lease import format_host


class Standby:
    """Looks at the lease, once each renewal. ``is_interrupted``: a person asked to stop."""

    def __init__(
        self,
        channel: MasterChannel,
        clocks: Clocks,
        is_interrupted: Callable[[], bool],
    ) -> None:
        self._channel, self._clocks, self._is_interrupted = channel, clocks, is_interrupted
        self._holder, self._left = "", 0.0
        self._free_since: float | None = None
        # (outages so far, whether Redis knows nothing of the run): as it was when the lease was
        # last renewed, and now
        self._state_when_renewed = self._current_state = (channel.outages, False)

    def wait(self) -> bool:
        """True when the run has no master any more and wants one; False when it has ended, or a
        person asked to stop.

        A lease that lapsed while Redis was away, or was lost with all of the run, says nothing: its
        holder gets a whole lease to renew it (rule 7).
        """
        while not self._is_interrupted():
            state = self._channel.state()
            if state is not None and state not in ACTIVE_STATES:
                TERMINAL.info(f"run {self._channel.run} is {state}: there is nothing to take over")
                return False
            if self._is_lapsed(time.monotonic(), lost=state is None):
                return True
            time.sleep(self._clocks.renew)
        return False

    def _is_lapsed(self, now: float, lost: bool) -> bool:
        holder, left = self._channel.lease_holder()
        if holder is not None:
            self._update_holder(holder, left)
            return False
        observed = (self._channel.outages, lost)
        if self._free_since is None or observed != self._current_state:
            self._free_since, self._current_state = now, observed
        patience = (
            self._clocks.renew
            if observed == self._state_when_renewed
            else self._clocks.lease + self._clocks.renew
        )
        return now - self._free_since >= patience

    def _update_holder(self, holder: str, left: float) -> None:
        """Somebody drives the run; ``left``: seconds until the lease lapses."""
        if holder != self._holder:
            self._holder = holder
            TERMINAL.info(f"standing by: {format_host(holder)} leads run {self._channel.run}")
        elif left > self._left:
            self._state_when_renewed = (self._channel.outages, False)
        self._left, self._free_since = left, None
