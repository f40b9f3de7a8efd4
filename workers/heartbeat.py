"""What a worker's other threads do while it plays: beats, leave flags, limits of time and memory,
and metrics for Prometheus.

A worker's own process serves its metrics at ES_QUEUE_METRICS_PORT and ES_QUEUE_METRICS_ADDRESS,
under a Host of its own, and with the token if the user has set one. ``es-worker`` imports this
module before it fixes the numeric environment: it must not load numpy.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_queue import host
from es_queue.credentials import (
    has_token,
    is_host_allowed,
    listening_hosts,
    token_from_environment,
)
from es_queue.errors import EsQueueError, UsageError
from es_queue.protocol.connection import OUTAGE_SECONDS, Retry
from es_queue.protocol.keys import PAUSED, RUNNING, Clocks
from es_queue.protocol.messages import KINDS, Block

if TYPE_CHECKING:
    from prometheus_client import Metric

    from es_queue.config.run_config import RunConfig
    from es_queue.protocol.store import WorkerStore

REPORT_SECONDS = 10.0
#: A busy share is of the time since one of two marks, this far apart, and of no less than that.
SHARE_SECONDS, LEAST_SHARE_SECONDS = 30.0, 10.0
GONE_SECONDS = 10.0
MAX_TEXT = 400
PORT, ADDRESS = "ES_QUEUE_METRICS_PORT", "ES_QUEUE_METRICS_ADDRESS"
LOOPBACK, LAST_PORT = "127.0.0.1", 65535
#: The workers of a host take this many ports in turn.
PORTS = 256


class Leaving(Exception):  # noqa: N818 - it is no error: the worker was asked to go
    """The worker leaves between two steps, or only this block, whose publication has closed."""


class EpisodeControl:
    """What the threads of a worker share.

    leave_reason: why the worker leaves at the next step; empty while it stays
    finish_reason: why it leaves after the episode, such as a process that is too large
    serving: the publication of the block in progress; closed: one that has closed meanwhile
    episode_began: monotonic second at which the running episode began, None between episodes
    playing: generation, slot and environment seed of that episode
    steps, episodes, failures: environment steps, episodes of results and failed slots so far
    blocks, late: blocks played so far, and how many of them too late; block: the one in progress
    generation: in words, of the last block
    poll: seconds between the heartbeat's polls, from the open task; None before the first one
    """

    def __init__(self) -> None:
        self.leave_reason = self.finish_reason = self.serving = self.block = self.generation = ""
        self.closed: str | None = None
        self.playing: dict[str, int] = {}
        self.episode_began: float | None = None
        self.steps = self.episodes = self.failures = self.blocks = self.late = 0
        #: Seconds of the finished blocks, and when the current one began.
        self._busy: tuple[float, float | None] = (0.0, None)
        self.poll: float | None = None

    def leave(self, reason: str) -> None:
        """The first reason counts."""
        self.leave_reason = self.leave_reason or reason

    def finish(self, reason: str) -> None:
        self.finish_reason = self.finish_reason or reason

    def begin_episode(self, playing: dict[str, int]) -> None:
        """An episode begins, or an environment is created, which can also hang."""
        self.playing, self.episode_began = playing, time.monotonic()

    def end_episode(self) -> None:
        self.episode_began = None

    def begin_steps(self, count: int = 1, episode_began: float | None = None) -> None:
        """That many episodes make one step each. ``episode_began``: their share of the time, if
        there are several. Raises Leaving.
        """
        if self.leave_reason or self.closed == self.serving:
            raise Leaving
        self.steps += count
        self.episode_began = episode_began or self.episode_began

    def begin_block(self, block: Block, generation: int) -> None:
        self.closed, self.serving = None, block.publication
        self.block = f"{KINDS[block.kind]} {block.start} {block.stop}"
        self.generation = f"generation {generation}"
        self._busy = self.busy_seconds(), time.monotonic()

    def end_block(self) -> None:
        """The block is finished, or abandoned."""
        self.serving = self.block = ""
        self._busy = self.busy_seconds(), None

    def busy_seconds(self) -> float:
        seconds, began = self._busy
        return seconds if began is None else seconds + time.monotonic() - began

    def leave_if_orphaned(self, parent: int | None) -> None:
        """Leave if this process has lost ``parent``; None: no check."""
        if parent is not None and os.getppid() != parent:
            self.leave("its RQ worker is gone")

    def retry(self, parent: int | None, seconds: float = OUTAGE_SECONDS) -> Retry:
        """For a worker's store: it does not wait for Redis if the worker must leave. The retry
        raises Leaving then.
        """

        def check(_: float) -> None:
            self.leave_if_orphaned(parent)
            if self.leave_reason:
                raise Leaving

        return Retry(seconds, check)


class Heartbeat(threading.Thread):
    """A daemon thread with its own store (rule 7), because an episode can take minutes.

    about: other fields of the worker's hash, read at each beat; ``numerics`` once it has joined
    owns_process: whether the process may be ended, or replaced when it has grown too large
    parent: process that the worker must not outlive; None for any
    has_other_work: whether another run's seat waits; called when the run has no master
    say: called from time to time with a line about the worker's speed
    ended: finished, stopped, failed, or gone if the run no longer exists; empty before
    """

    def __init__(
        self,
        store: WorkerStore,
        control: EpisodeControl,
        about: Mapping[str, str],
        clocks: Clocks,
        config: RunConfig,
        *,
        owns_process: bool = False,
        parent: int | None = None,
        has_other_work: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(name="es-queue-life", daemon=True)
        self._store, self._control, self._about, self._clocks = store, control, about, clocks
        self._config, self._owns_process, self._parent = config, owns_process, parent
        self._memory = config.worker_memory * 2**20 if owns_process else 0
        self._has_other_work, self._say = has_other_work, say
        self._stopping = threading.Event()
        now = self._state_seen = time.monotonic()
        self._ends = now + clocks.seat_lease
        self._masterless_since: float | None = None
        self._other_work_checked = 0.0
        self._expired_episode: float | None = None
        #: When the steps per second were last computed, the steps then, and the rate.
        self._pace = now, control.steps, 0.0
        #: Two times, SHARE_SECONDS apart, with the busy seconds until then.
        self._marks = [(now, control.busy_seconds())] * 2
        self.ended = ""

    def run(self) -> None:
        last_beat, reported, steps = 0.0, time.monotonic(), 0
        while not self._stopping.wait(self._poll()):
            now = time.monotonic()
            try:
                self._check_wall(now)
                # Longer in a large fleet, like polls, but short enough that no beat lapses.
                interval = max(self._clocks.beat, 2.5 * (self._control.poll or 0.0))
                # The next poll would be too late.
                if now - last_beat + self._poll() > min(interval, self._clocks.beat_ttl / 2):
                    last_beat = now
                    figures = self._figures(now) if "numerics" in self._about else {}
                    about = {**self._about, "outages": str(self._store.outages), **figures}
                    self._store.beat(about, self._clocks.beat_ttl)
                self._check_memory()
                self._control.leave_if_orphaned(self._parent)
                if not self._control.leave_reason:
                    self._control.leave(self._leave_reason(now))
            except Leaving:
                continue
            except Exception as error:  # without this thread a worker would never leave
                self._control.leave(f"{type(error).__name__}: {error}")
            if self._control.steps > 0 and now - reported >= REPORT_SECONDS:
                pace = (self._control.steps - steps) / (now - reported)
                self._say(f"{self._control.generation} {pace:,.0f} steps/s")
                reported, steps = now, self._control.steps

    def stop(self) -> None:
        """Stop the thread after its current step."""
        self._stopping.set()
        self.join(timeout=self._clocks.beat_ttl)

    def _poll(self) -> float:
        """Seconds until the next poll: the master's value, but at most the time of a beat."""
        return min(self._control.poll or self._clocks.leave_poll, self._clocks.beat_ttl / 2)

    def _figures(self, now: float) -> dict[str, str]:
        """Texts for the worker's hash: steps per second over the last second or more, and the
        share of its last half minute or minute that it spent on blocks, empty at first.
        """
        control, (at, steps, rate) = self._control, self._pace
        if now - at >= 1.0:
            rate = (control.steps - steps) / (now - at)
            self._pace = now, control.steps, rate
        busy, newest = control.busy_seconds(), self._marks[1]
        if now - newest[0] >= SHARE_SECONDS:
            self._marks = [newest, (now, busy)]
        since, before = self._marks[0]
        is_known = now - since >= LEAST_SHARE_SECONDS
        return {
            "steps": str(control.steps),
            "steps_per_second": f"{rate:.0f}",
            "busy": f"{(busy - before) / (now - since):.3f}" if is_known else "",
            "block": control.block,
            "blocks": str(control.blocks),
            "late": str(control.late),
            "generation": control.generation,
        }

    def _leave_reason(self, now: float) -> str:
        """Why the worker must leave now; empty while it may stay."""
        serving = self._control.serving
        flags = self._store.poll_flags(serving)
        if flags.closed:
            self._control.closed = serving  # its episodes stop, those of another one do not
        if flags.state is not None:
            self._state_seen = now
        is_gone = flags.state is None and now - self._state_seen > GONE_SECONDS
        has_ended = flags.state not in (None, RUNNING, PAUSED)
        self.ended = "gone" if is_gone else str(flags.state) if has_ended else ""
        is_masterless = self._is_masterless(now, flags.has_master)
        if flags.leave:
            return flags.leave
        if self.ended:
            return f"the run is {self.ended}"
        if is_masterless:
            return "the run has no master"
        if now > self._ends:
            # Between episodes, because an episode can outlast any lease.
            if self._control.episode_began is None:
                return "its lease has expired"
            self._control.finish("its lease has expired")
        return ""

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
            self._report(self._control.finish_reason)

    def _check_wall(self, now: float) -> None:
        """Once per episode, because a process that must not be ended may play on for long."""
        began, limit = self._control.episode_began, self._config.wall_limit
        if began is not None and began != self._expired_episode and now - began > limit:
            self._expired_episode = began
            self._control.leave("an episode outlasted the wall limit")
            # The stack of the episodes' thread, innermost last.
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            stack = [] if frame is None else traceback.format_stack(frame, limit=12)
            reason = f"an episode lasted longer than {limit:g} s"
            self._report(reason, **self._control.playing, trace="".join(stack)[-4000:])
            if self._owns_process:
                os.kill(os.getpid(), signal.SIGKILL)  # the report is written

    def _report(self, reason: str, **more: object) -> None:
        # The episode must end even if Redis is away for long.
        with suppress(EsQueueError, Leaving):
            self._store.report(reason, environment=self._config.problem, **more)


# --- what people read about it


def worker_info(clocks: Clocks) -> dict[str, str]:
    """Texts for the worker's hash, by name; computed once per seat, takes milliseconds, never
    raises.

    joined: seconds since 1970; box2d: distributions that provide it; packages: folder from which
    workers and es_queue were imported, two if they differ
    beat_ttl: seconds after which a silent worker counts as gone
    """

    def packages() -> str:
        folder = host.package_folder("workers")
        folders = [host.source_root(), *((folder.parent,) if folder else ())]
        return " and ".join(dict.fromkeys(map(str, folders)))

    sources: dict[str, Callable[[], str]] = {
        "host": platform.node,
        "pid": lambda: str(os.getpid()),
        "python": platform.python_version,
        "joined": lambda: f"{time.time():.0f}",
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


# --- metrics


def metrics_endpoint() -> tuple[str, int] | None:
    """Address and first port, None if the metrics are off. Raises UsageError."""
    text = os.environ.get(PORT, "")
    if not text:
        return None
    if not (re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= LAST_PORT):
        raise UsageError(f"{PORT} is {text[:40]!r}: use a port from 1 to {LAST_PORT}, or unset it")
    return os.environ.get(ADDRESS) or LOOPBACK, int(text)


class WorkerMetrics:
    """Figures of one seat, collected when they are scraped; ``labels`` are of every sample."""

    def __init__(self, labels: Mapping[str, str], control: EpisodeControl) -> None:
        self._labels, self._control = dict(labels), control
        self._began = time.monotonic()

    def collect(self) -> Iterator[Metric]:
        # start-up: prometheus_client takes 0.1 s and 8 MB, and few workers serve metrics
        from prometheus_client import Metric

        control = self._control
        busy, seconds = control.busy_seconds(), max(time.monotonic() - self._began, 1e-9)
        for name, kind, text, value in (
            ("episodes_total", "counter", "Episodes of results", control.episodes),
            ("steps_total", "counter", "Environment steps", control.steps),
            ("blocks_total", "counter", "Blocks evaluated", control.blocks),
            ("late_blocks_total", "counter", "Blocks whose result came too late", control.late),
            ("failures_total", "counter", "Slots that failed", control.failures),
            ("busy_seconds_total", "counter", "Seconds spent on blocks", busy),
            ("idle_ratio", "gauge", "Share of time without a block", 1 - busy / seconds),
            ("memory_bytes", "gauge", "Resident memory of the process", resident_memory()),
        ):
            name = f"es_queue_worker_{name}"
            metric = Metric(name.removesuffix("_total"), text, kind)
            metric.add_sample(name, self._labels, max(0.0, value))
            yield metric


def resident_memory() -> int:
    """Resident bytes of this process, 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def served_metrics(metrics: WorkerMetrics, address: str, first_port: int) -> Iterator[int]:
    """Serve ``metrics`` on the first free port from ``first_port`` on, which it yields. Raises
    OSError if there is none, and UsageError for an unusable token.
    """
    # start-up: every worker imports this module, and few serve metrics
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

    token, hosts = token_from_environment(), listening_hosts(address)
    registry = CollectorRegistry()
    registry.register(metrics)
    application = make_wsgi_app(registry)

    def guarded(environ: dict[str, Any], start_response: Any) -> Any:
        if not is_host_allowed(environ.get("HTTP_HOST"), hosts):
            status, text = "421 Misdirected Request", b"these metrics have no such host name\n"
        elif token is not None and not has_token(environ, token):
            status, text = "403 Forbidden", b"these metrics need Authorization: Bearer TOKEN\n"
        else:
            return application(environ, start_response)
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text]

    class MetricsServer(ThreadingWSGIServer):
        address_family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]

    class SilentHandler(WSGIRequestHandler):
        """Logs no request: an address may contain the token."""

        def log_message(self, *_: Any) -> None:
            pass

    last = min(first_port + PORTS - 1, LAST_PORT)
    for port in range(first_port, last + 1):
        try:
            server = make_server(address, port, guarded, MetricsServer, SilentHandler)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == last:
                raise
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
