"""The master's lease. The token fences every write; other masters try when it has lapsed."""

from __future__ import annotations

import logging
import math
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from es_queue.errors import FencedError, RedisError, RunBusyError
from es_queue.protocol.keys import ACTIVE_STATES, Clocks
from es_queue.protocol.messages import token_number
from es_queue.protocol.store import MasterStore
from master.display.notes import TERMINAL

LOGGER = logging.getLogger("es_queue.run")


def holder_name() -> str:
    return f"{platform.node()} pid {os.getpid()} {secrets.token_hex(3)}"


def format_host(holder: str) -> str:
    """The host in a lease's text, which is untrusted."""
    return "".join(letter for letter in holder[:100] if letter.isprintable()).rpartition(" ")[0]


def take_lease(
    channel: MasterStore,
    holder: str,
    clocks: Clocks,
    *,
    wait: bool,
    floor: int = 0,
) -> str:
    """Become the run's master and return the fencing token: raise it first, read afterwards (rule
    11).

    ``floor``: the number in this master's checkpoint, for a Redis that has lost its epoch.

    ``wait``: a dead master's lease may still run, so wait one lease for it to lapse. Raises
    RunBusyError if another master lives, FencedError if another came first.
    """
    validate_lease_free(channel, clocks, wait=wait)
    stored = channel.epoch()
    # A master that came before this one read the token holds the lease. Of those that come from now
    # on, all with the same number, the first is accepted and the others are fenced.
    validate_lease_free(channel, clocks, wait=False)
    number = 1 + max(floor, token_number(stored) if stored else 0)
    token = f"{number}-{secrets.token_hex(4)}"
    channel.renew(token, holder, clocks.lease)
    return token


def validate_lease_free(channel: MasterStore, clocks: Clocks, *, wait: bool) -> None:
    """Return once the lease is free. Raises RunBusyError if it is renewed, or at once without
    ``wait``.
    """
    holder, left = channel.lease_holder()
    if holder is None:
        return
    live = (
        f"run {channel.run} is live: {format_host(holder)} leads it; stop that es-master first, "
        "or start another run"
    )
    if not wait:
        raise RunBusyError(live)
    LOGGER.info(
        f"waiting up to {clocks.lease:.0f} s: {format_host(holder)} may still lead run "
        f"{channel.run}"
    )
    deadline = time.monotonic() + clocks.lease + clocks.renew
    while holder is not None and time.monotonic() < deadline:
        time.sleep(min(0.1, clocks.renew))
        before = left
        holder, left = channel.lease_holder()
        if left > before:
            raise RunBusyError(live)
    if holder is not None:
        raise RunBusyError(live)


class LeaseRenewal(threading.Thread):
    """Renews the lease from a thread with its own channel, independent of the master's thread.

    It stops if the master shows no sign of life for ``grace`` seconds, because a hung master must
    not keep a run, and if another master holds the run.
    """

    def __init__(
        self,
        channel: MasterStore,
        token: str,
        holder: str,
        clocks: Clocks,
        beat: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``beat``: called at each renewal."""
        super().__init__(name="es-queue-lease", daemon=True)
        self._beat = beat
        self._channel, self._token, self._holder = channel, token, holder
        self._clocks, self._clock = clocks, clock
        self._over = threading.Event()
        self._sign = clock()

    def show_sign(self) -> None:
        self._sign = self._clock()

    def run(self) -> None:
        while not self._over.wait(self._clocks.renew):
            if self._clock() - self._sign > self._clocks.grace:
                continue
            self._beat()
            try:
                with suppress(RedisError):  # the master's own thread says what is wrong with Redis
                    self._channel.renew(self._token, self._holder, self._clocks.lease)
            except FencedError:
                return

    def end(self, seconds: float) -> None:
        """End renewals; waits at most ``seconds`` for the current one."""
        self._over.set()
        if self.is_alive():
            self.join(seconds)


def wait_for_free_run(
    channel: MasterStore, clocks: Clocks, is_interrupted: Callable[[], bool]
) -> bool:
    """Poll the lease once per renewal. True if the run needs a master and has none; False if it has
    ended, or if a person asked to stop.

    A lease that lapsed during an outage, or was lost with the whole run, proves nothing: its
    holder gets a whole lease to renew it (rule 7).
    """
    holder, left, free_since = "", 0.0, math.inf
    # (outages so far, whether Redis has lost the run): as it was when the lease was last renewed,
    # and now
    renewed = current = (channel.outages, False)
    while not is_interrupted():
        state, now = channel.progress_field("state"), time.monotonic()
        if state is not None and state not in ACTIVE_STATES:
            TERMINAL.info(f"run {channel.run} is {state}: there is nothing to take over")
            return False
        leader, remaining = channel.lease_holder()
        if leader is None:
            observed = (channel.outages, state is None)
            if free_since == math.inf or observed != current:
                free_since, current = now, observed
            patience = clocks.renew if observed == renewed else clocks.lease + clocks.renew
            if now - free_since >= patience:
                return True
        else:
            if leader != holder:
                TERMINAL.info(f"standing by: {format_host(leader)} leads run {channel.run}")
            elif remaining > left:
                renewed = (channel.outages, False)
            holder, left, free_since = leader, remaining, math.inf
        time.sleep(clocks.renew)
    return False
