"""The heartbeat thread of a worker: beats, leave flags, the wall limit, and its status line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from es_queue import host
from es_queue.protocol.keys import PAUSED, RUNNING, Clocks
from es_queue.protocol.store import WorkerStore
from workers.episode import EpisodeControl, Leaving
from workers.metrics import resident_memory

REPORT_SECONDS = 10.0
#: A busy share is of the time since one of two marks, this far apart, and of no less than that.
SHARE_SECONDS, LEAST_SHARE_SECONDS = 30.0, 10.0
WORKER_GONE = "its RQ worker is gone"
GONE_SECONDS = 10.0
MAX_TEXT = 400


def orphan_reason(parent: int | None) -> str:
    """Why this process has lost the one that must still be its parent; None: no check."""
    return WORKER_GONE if parent is not None and os.getppid() != parent else ""


def leave_in_outage(control: EpisodeControl, parent: int | None) -> Callable[[float], None]:
    """For a store's ``on_outage``: raises Leaving, so that a worker that must leave does not wait
    for Redis.
    """

    def check(seconds: float) -> None:
        control.leave(orphan_reason(parent))
        if control.leave_reason:
            raise Leaving

    return check


class Pace:
    """Environment steps per second, over the last second or more; and the share of its last half
    minute or minute that a worker spent on blocks.
    """

    def __init__(self, control: EpisodeControl) -> None:
        self._control = control
        self._at, self._steps, self._rate = time.monotonic(), control.steps, 0.0
        self._older = self._newer = self._at, control.busy_seconds()

    def figures(self) -> dict[str, str]:
        """Texts for the worker's hash; the share is empty before enough time has passed."""
        now, control = time.monotonic(), self._control
        if now - self._at >= 1.0:
            self._rate = (control.steps - self._steps) / (now - self._at)
            self._at, self._steps = now, control.steps
        busy = control.busy_seconds()
        if now - self._newer[0] >= SHARE_SECONDS:
            self._older, self._newer = self._newer, (now, busy)
        since, before = self._older
        is_known = now - since >= LEAST_SHARE_SECONDS
        return {
            "steps": str(control.steps),
            "steps_per_second": f"{self._rate:.0f}",
            "busy": f"{(busy - before) / (now - since):.3f}" if is_known else "",
        }


class Heartbeat(threading.Thread):
    """A daemon thread with its own store (rule 7), because an episode can take minutes.

    about: the fields of the worker's hash, read at each beat
    wall_limit: seconds that an episode may last; ``on_wall_limit`` is called when one lasts longer
    parent: see ``orphan_reason``; an orphan leaves
    memory: bytes that the process may hold, 0 for no limit; ``on_memory_limit`` is called above it
    has_other_work: whether another run's seat waits; called when the run has no master
    report: called from time to time with a line about the worker's speed
    has_run_ended: whether the run has ended, or no longer exists
    """

    def __init__(
        self,
        store: WorkerStore,
        control: EpisodeControl,
        about: Callable[[], dict[str, str]],
        clocks: Clocks,
        wall_limit: float,
        on_wall_limit: Callable[[], None] = lambda: None,
        *,
        parent: int | None = None,
        memory: int = 0,
        on_memory_limit: Callable[[str], None] = lambda why: None,
        has_other_work: Callable[[], bool] = lambda: False,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(name="es-queue-life", daemon=True)
        self._store, self._control, self._about, self._clocks = store, control, about, clocks
        self._wall_limit, self._on_wall_limit = wall_limit, on_wall_limit
        self._parent = parent
        self._memory, self._on_memory_limit = memory, on_memory_limit
        self._has_other_work, self._report = has_other_work, report
        self._stopping = threading.Event()
        self._state_seen = time.monotonic()
        self._ends = self._state_seen + clocks.seat_lease
        self._masterless_since: float | None = None
        self._other_work_checked = 0.0
        self._expired_episode: float | None = None
        self.has_run_ended = False

    def run(self) -> None:
        last_beat, reported, steps = 0.0, time.monotonic(), 0
        while not self._stopping.wait(self._poll()):
            now = time.monotonic()
            try:
                self._check_wall(now)
                # The next poll would be too late.
                if now - last_beat + self._poll() > self._beat():
                    last_beat = now
                    self._store.beat(self._about(), self._clocks.beat_ttl)
                self._check_memory()
                if not self._control.leave_reason:
                    self._control.leave(self._leave_reason(now))
            except Leaving:
                continue
            except Exception as error:  # without this thread a worker would never leave
                self._control.leave(f"{type(error).__name__}: {error}")
            if self._control.steps > 0 and now - reported >= REPORT_SECONDS:
                self._report(f"{(self._control.steps - steps) / (now - reported):,.0f} steps/s")
                reported, steps = now, self._control.steps

    def stop(self) -> None:
        """Stop the thread after its current step."""
        self._stopping.set()
        self.join(timeout=self._clocks.beat_ttl)

    def _poll(self) -> float:
        """Seconds until the next poll: the master's value, but at most the time of a beat."""
        return min(self._control.poll or self._clocks.leave_poll, self._clocks.beat_ttl / 2)

    def _beat(self) -> float:
        """Seconds between beats: longer in a large fleet, like polls, but short enough that none
        lapses.
        """
        return min(
            max(self._clocks.beat, 2.5 * (self._control.poll or 0.0)), self._clocks.beat_ttl / 2
        )

    def _leave_reason(self, now: float) -> str:
        """Why the worker must leave now; empty while it may stay."""
        if orphan := orphan_reason(self._parent):
            return orphan
        serving = self._control.serving
        flags = self._store.poll_flags(serving)
        if flags.closed:
            self._control.closed = serving  # its episodes stop, those of another one do not
        if flags.state is not None:
            self._state_seen = now
        is_gone = flags.state is None and now - self._state_seen > GONE_SECONDS
        has_ended = flags.state not in (None, RUNNING, PAUSED)
        self.has_run_ended = is_gone or has_ended
        reasons = (
            (flags.shutdown, "its RQ worker is stopping"),
            (flags.suspended, "RQ is suspended"),
            (flags.has_jobs, "jobs wait on a queue that its RQ worker serves first"),
            (flags.is_leaving, "another run needs workers"),
            (is_gone, "the run is gone"),
            (has_ended, f"the run is {flags.state}"),
            (self._is_masterless(now, flags.has_master), "the run has no master"),
            (self._is_lease_over(now), "its lease has expired"),
        )
        return next((reason for true, reason in reasons if true), "")

    def _is_masterless(self, now: float, has_master: bool) -> bool:
        """Whether the run has had no lease for too long: for two leases if another run's seat
        waits, and otherwise for the whole grace.
        """
        clocks = self._clocks
        # While Redis was away, no master could renew its lease.
        if has_master or time.monotonic() - now > clocks.beat_ttl:
            self._masterless_since = None
            return False
        since = self._masterless_since = now if (at := self._masterless_since) is None else at
        if now - since > clocks.grace:
            return True
        if now - since <= 2 * clocks.lease or now - self._other_work_checked < clocks.beat:
            return False
        self._other_work_checked = now
        return self._has_other_work()

    def _is_lease_over(self, now: float) -> bool:
        """Whether the lease is over, checked between episodes, because an episode can outlast any
        lease.
        """
        if now <= self._ends:
            return False
        if self._control.episode_began is not None:
            self._control.finish("its lease has expired")
        return self._control.episode_began is None

    def _check_memory(self) -> None:
        """Once: leave after the episode, so that a new process follows."""
        if not self._memory or self._control.finish_reason:
            return
        held = resident_memory()
        if held > self._memory:
            self._control.finish(
                f"its process holds {held / 2**20:.0f} MB, more than --worker-memory "
                f"{self._memory / 2**20:.0f}"
            )
            self._on_memory_limit(self._control.finish_reason)

    def _check_wall(self, now: float) -> None:
        """Once per episode, because a process that must not be ended may play on for long."""
        began = self._control.episode_began
        if began is not None and began != self._expired_episode and now - began > self._wall_limit:
            self._expired_episode = began
            self._control.leave("an episode outlasted the wall limit")
            self._on_wall_limit()


# --- what people read about it


def worker_info(clocks: Clocks) -> dict[str, str]:
    """Texts for the worker's hash, by name; computed once per seat, takes milliseconds, never
    raises.

    versions: of the main packages; box2d: distributions that provide it; envpool: version, empty
    without it
    packages: folder from which workers and es_queue were imported, two if they differ; beat_ttl:
    seconds after which a silent worker counts as gone; threads: of BLAS; cpu: model
    """

    def packages() -> str:
        folder = host.package_folder("workers")
        folders = [host.source_root(), *((folder.parent,) if folder else ())]
        return " and ".join(dict.fromkeys(map(str, folders)))

    sources: dict[str, Callable[[], str]] = {
        "versions": host.versions,
        "box2d": host.box2d_versions,
        "envpool": lambda: host.version_of("envpool"),
        "packages": packages,
        "beat_ttl": lambda: f"{clocks.beat_ttl:g}",
        "threads": lambda: str(host.blas_threads()),
        "cpu": host.cpu_model,
    }
    found = dict.fromkeys(sources, "")
    for name, ask in sources.items():
        with suppress(Exception):  # information for display must not cost a seat
            found[name] = ask()[:MAX_TEXT]
    return found
