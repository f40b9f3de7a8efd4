"""A worker's life beside its episodes: beats, leave flags, the wall limit, and a line for its terminal."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from es_queue.protocol.channel import PAUSED, RUNNING, WorkerChannel
from es_queue.protocol.clocks import Clocks
from workers.rollout import Leaving, Watch

SPEAK_SECONDS = 10.0
ORPHANED = "its RQ worker is gone"
GONE_SECONDS = 10.0


def orphaned(parent: int | None, guardian: int | None) -> str:
    """Why this process has nobody left to work for; empty while it has.

    parent: process that must stay our parent; guardian: one that must live; None where that means nothing
    """
    if parent is not None and os.getppid() != parent:
        return ORPHANED
    if guardian is not None and not lives(guardian):
        return "the guardian that started this worker is gone"
    return ""


def lives(pid: int) -> bool:
    """Whether a process runs; one that is dead and that nobody has waited for does not (seen where there is a /proc)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return not Path("/proc/self/stat").exists()


def leave_in_outage(watch: Watch, parent: int | None, guardian: int | None = None) -> Callable[[float], None]:
    """For a channel's ``on_outage``: whoever must leave does not wait until Redis is back. It raises Leaving."""

    def look(seconds: float) -> None:
        watch.leaving = watch.leaving or orphaned(parent, guardian)
        if watch.leaving:
            raise Leaving

    return look


class Pace:
    """Environment steps a second, over the last second or more."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._at, self._steps = time.monotonic(), watch.steps
        self._rate = 0.0

    def rate(self) -> float:
        now = time.monotonic()
        if now - self._at >= 1.0:
            self._rate = (self._watch.steps - self._steps) / (now - self._at)
            self._at, self._steps = now, self._watch.steps
        return self._rate


class Life(threading.Thread):
    """A daemon thread with a channel of its own (rule 7): the episodes' thread may be in an episode for minutes.

    about:      what the worker's hash says of it, read at each beat
    parent, guardian: see ``orphaned``; an orphan leaves
    wall_limit: seconds that an episode may last; ``expire`` is called when one lasts longer
    memory:     bytes that the process may hold, 0 for any number; ``outgrown`` is called when it holds more
    elsewhere:  whether another run's seat waits; asked when the run has no master
    run_ended:  whether the run was seen to have ended, or to be gone
    """

    def __init__(
        self, channel: WorkerChannel, watch: Watch, about: Callable[[], dict[str, str]], clocks: Clocks,
        *, wall_limit: float, expire: Callable[[], None], parent: int | None = None, guardian: int | None = None,
        memory: int = 0, outgrown: Callable[[str], None] = lambda why: None, speak: Callable[[str], None] | None = None,
        elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        super().__init__(name="es-queue-life", daemon=True)
        self._channel, self._watch, self._about, self._clocks = channel, watch, about, clocks
        self._guardian, self._memory, self._outgrown = guardian, memory, outgrown
        self._wall_limit, self._expire, self._parent, self._speak, self._elsewhere = wall_limit, expire, parent, speak, elsewhere
        self._ends = time.monotonic() + clocks.seat_lease
        self._over = threading.Event()
        self._seen = time.monotonic()
        self._expired: float | None = None
        self._unled: float | None = None
        self._asked = 0.0
        self.run_ended = False

    def run(self) -> None:
        beaten, spoken, steps = 0.0, time.monotonic(), 0
        while not self._over.wait(self._poll()):
            now = time.monotonic()
            try:
                self._check_wall(now)
                if now - beaten + self._poll() > self._beat():  # at the next look it would be too late
                    beaten = now
                    self._channel.beat(self._about(), self._clocks.beat_ttl)
                self._check_memory()
                reason = "" if self._watch.leaving else self._reason(now)
                if reason:  # never write "" here: SIGTERM may have come while Redis was asked
                    self._watch.leaving = self._watch.leaving or reason
            except Leaving:
                continue
            except Exception as error:  # a thread that dies silently would leave a worker that nobody can tell to go
                self._watch.leaving = self._watch.leaving or f"{type(error).__name__}: {error}"
            if self._speak is not None and now - spoken >= SPEAK_SECONDS:
                self._speak(f"{(self._watch.steps - steps) / (now - spoken):,.0f} steps/s")
                spoken, steps = now, self._watch.steps

    def end(self) -> None:
        """Stop the thread; what it is doing it may finish."""
        self._over.set()
        self.join(timeout=self._clocks.beat_ttl)

    def _poll(self) -> float:
        """Seconds until the next look: what the master asks for, but never so long that a beat would lapse."""
        return min(self._watch.poll or self._clocks.leave_poll, self._clocks.beat_ttl / 2)

    def _beat(self) -> float:
        """Seconds between beats: rarer on a large fleet, as the looks are, but never so rare that one would lapse."""
        return min(max(self._clocks.beat, 2.5 * (self._watch.poll or 0.0)), self._clocks.beat_ttl / 2)

    def _reason(self, now: float) -> str:
        """Why the worker must leave now; empty while it may stay."""
        if alone := orphaned(self._parent, self._guardian):
            return alone
        serving = self._watch.serving
        orders = self._channel.orders(serving)
        if orders.closed:
            self._watch.close(serving)
        if orders.state is not None:
            self._seen = now
        gone = orders.state is None and now - self._seen > GONE_SECONDS
        ended = orders.state not in (None, RUNNING, PAUSED)
        self.run_ended = gone or ended
        reasons = (
            (orders.shutdown, "its RQ worker is stopping"),
            (orders.suspended, "RQ is suspended"),
            (orders.give_way, "another run needs workers"),
            (gone, "the run is gone"),
            (ended, f"the run is {orders.state}"),
            (self._masterless(now, orders.led), "the run has no master"),
            (self._lease_over(now), "its lease is over"),
        )
        return next((reason for true, reason in reasons if true), "")

    def _lease_over(self, now: float) -> bool:
        """Between episodes at once; an episode is played to its end, for it may be longer than any lease."""
        if now <= self._ends:
            return False
        if self._watch.began is not None:
            self._watch.full = self._watch.full or "its lease is over"
        return self._watch.began is None

    def _masterless(self, now: float, led: bool) -> bool:
        """Whether the run has had no lease for two leases while another run's seat waits, or for the whole grace in any case."""
        if led or time.monotonic() - now > self._clocks.beat_ttl:  # while Redis was away nobody could renew a lease
            self._unled = None
            return False
        self._unled = now if self._unled is None else self._unled
        if now - self._unled > self._clocks.grace:
            return True
        if now - self._unled <= 2 * self._clocks.lease or now - self._asked < self._clocks.beat:
            return False
        self._asked = now
        return self._elsewhere()

    def _check_memory(self) -> None:
        """Once: the worker leaves when its episode is over, and a fresh process takes its place."""
        if not self._memory or self._watch.full:
            return
        held = resident_memory()
        if held > self._memory:
            self._watch.full = f"its process holds {held / 2**20:.0f} MB, more than --worker-memory {self._memory / 2**20:.0f}"
            self._outgrown(self._watch.full)

    def _check_wall(self, now: float) -> None:
        """Once an episode: where the process is not ours to end, the episode may go on for long."""
        began = self._watch.began
        if began is not None and began != self._expired and now - began > self._wall_limit:
            self._expired = began
            self._watch.leaving = self._watch.leaving or "an episode outlasted the wall limit"
            self._expire()


def resident_memory() -> int:
    """Bytes of memory that this process holds, 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def end_this_process() -> None:
    """What a hung episode leaves: nothing but to end its process; the report is written before."""
    os.kill(os.getpid(), signal.SIGKILL)
