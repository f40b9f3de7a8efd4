"""OrphanTimer: whether a run has been without a master for so long that its server and workers
should end.
"""

from __future__ import annotations

from es_queue.protocol.timing import Clocks


class OrphanTimer:
    """Asked again and again by a supervisor, with its own monotonic clock (seconds)."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._owner = 0
        self._has_led = False
        self._orphaned_since: float | None = None

    def is_expired(self, now: float, lease: str | None, owner: int) -> bool:
        """Whether it is time to end.

        lease: who holds it, as the lease says; empty for nobody, None when Redis did not answer
        owner: pid of the living master on this host, 0 when none lives

        A master that lives may take minutes to its first lease, and waits for a Redis that is away.
        One that lives and has let its lease lapse is stopped (Ctrl-Z): it counts as gone.
        """
        if owner != self._owner:
            self._owner, self._has_led = owner, False
        self._has_led = self._has_led or bool(owner and lease and f" pid {owner} " in lease)
        if lease or (owner and (lease is None or not self._has_led)):
            self._orphaned_since = None
            return False
        if self._orphaned_since is None:
            self._orphaned_since = now
        patience = self._clocks.grace + (self._clocks.lease if lease is None else 0.0)
        return now - self._orphaned_since > patience
