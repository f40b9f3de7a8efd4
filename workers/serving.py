"""A worker in its seat: it joins the run, serves it (claim → fetch → play → answer), and leaves.

This module loads numpy, so the numeric environment must be fixed before it is imported.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import random
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import redis

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure, EsQueueError, RunFolderError, UsageError
from es_queue.numerics.arrays import Floats
from es_queue.numerics.fingerprint import limit_blas_threads
from es_queue.private_files import host_private_directory
from es_queue.protocol.connection import Retry, clone_client
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import KINDS, Block, Task
from es_queue.protocol.store import WorkerStore
from es_queue.slots import worker_mark
from es_queue.text import sanitize
from workers.episode import EpisodeControl, Leaving
from workers.heartbeat import Heartbeat, Pace, leave_in_outage, send_report, worker_info
from workers.join import Refusal, join, load_config, load_task, validate_admission
from workers.metrics import WorkerMetrics, metrics_endpoint, served_metrics
from workers.parameter_cache import ParameterCache
from workers.player import Player

#: The reason to leave that tells es-worker to send this worker to another run.
CANNOT_JOIN = "it cannot join this run, and another run is training"
#: Seconds that a claim may wait, well below the socket's own time-out.
MAX_WAIT = 2.0
FORGET_SECONDS = 24 * 3600.0
MAX_TRACE = 4000
#: Letters of one line on the worker's terminal.
MAX_LINE = 2000


def print_line(run: str, text: str) -> None:
    """One line on the worker's terminal, without control characters, because ``text`` can come
    from Redis or a run's code.
    """
    with suppress(OSError, ValueError):  # the terminal may be closed
        print(f"es-queue {run}: {sanitize(text, MAX_LINE)}", file=sys.stdout, flush=True)


class Seat:
    """A worker's place in a run for a while.

    name: of the worker, as people see it
    rq_name: of the RQ worker whose orders to stop count; empty if RQ did not start it
    owns_process: whether this process exists only for the seat, so that it may end itself
    parent: process that it must not outlive, see ``heartbeat.orphan_reason``
    has_other_work: whether another run waits for a worker; asked if this run has no master, or
    refuses this worker
    say: takes what people at the worker's terminal should read
    """

    def __init__(
        self,
        client: redis.Redis,
        run: str,
        clocks: Clocks,
        name: str,
        *,
        rq_name: str = "",
        owns_process: bool = False,
        parent: int | None = None,
        has_other_work: Callable[[redis.Redis], bool] = lambda client: False,
        say: Callable[[str, str], None] = print_line,
    ) -> None:
        self._client, self.run, self.clocks, self.name = client, run, clocks, name
        self._rq_name, self._owns_process = rq_name, owns_process
        self._parent = parent
        self._has_other_work, self._say = has_other_work, say

    def say(self, text: str) -> None:
        self._say(self.run, text)

    def join_and_serve(self) -> str:
        """Join, serve, leave; returns why it left. A seat that crashed before on this worker waits
        longer each time.
        """
        control = EpisodeControl()
        if self._owns_process:
            install_sigterm(control)
        reseed_global_generators()
        limit_blas_threads()
        guard = CrashGuard(self.name)
        retry = Retry(on_outage=leave_in_outage(control, self._parent))
        store = WorkerStore(
            self._client, self.run, make_worker_id(platform.node()), self._rq_name, retry
        )
        reason = ""
        try:
            seconds = guard.begin_seat()
            if seconds > 0 and self._rq_name:  # RQ would send the next seat at once
                self.say(
                    f"joins in {seconds:g} s: the last seat on worker {self.name} crashed or was "
                    "killed"
                )
                wait_or_leave(control, seconds, self.clocks.leave_poll)
            if self._owns_process and (trace := guard.start_trace(self.run)):
                send_report(store, "the seat before this one crashed on this worker", trace=trace)
            self._serve(store, control)
            guard.end_seat()
        except Leaving:
            guard.end_seat()
        except EsQueueError as error:
            reason = str(error)
        except Exception as error:
            retry.give_up_after(0.0)
            with suppress(Exception):
                trace = traceback.format_exc(limit=-12)
                send_report(store, repr(error)[:400], trace=trace)
            reason = f"{type(error).__name__}: {error}"
        finally:
            store.depart()
        reason = reason or control.leave_reason
        self.say(f"left: {reason}")
        return reason

    def _serve(self, store: WorkerStore, control: EpisodeControl) -> None:
        raw = store.config()
        if raw is None:
            control.leave("the run is gone")
            return
        config, unreadable = load_config(raw)
        about = {
            "host": platform.node(),
            "pid": str(os.getpid()),
            "rq_name": self._rq_name,
            "backend": config.backend,
            "python": platform.python_version(),
            "block": "",
            "steps_per_second": "0",
            "late": "0",
            "joined": f"{time.time():.0f}",
            **worker_info(self.clocks),
        }
        service: Service | None = None
        pace = Pace(control)

        def figures() -> dict[str, str]:
            played = {} if service is None else {**pace.figures(), **service.figures()}
            return {**about, "outages": str(store.outages), **played}

        def blocks() -> tuple[int, int]:
            return (service.blocks, service.late) if service else (0, 0)

        heartbeat = self._make_heartbeat(store, control, config, figures)
        store.arrive(about, self.clocks.beat_ttl)
        refusals, printed = 0, ""
        with self._beating(heartbeat), self._serve_metrics(store.worker, control, blocks):
            while not control.leave_reason:
                try:
                    if unreadable:
                        raise Refusal(unreadable)
                    player = join(config, control)
                    about["noise"] = player.noise.digest
                    validate_admission(store, player)
                    if about.pop("refuses", ""):
                        store.depart()  # the field would stay in the hash
                    about["numerics"], about["backend"] = player.numerics, player.backend
                    store.arrive(about, self.clocks.beat_ttl)
                    service = Service(store, player, self.clocks)
                    self.say(
                        f"joined as {store.worker}: {config.task}, {config.strategy}, "
                        f"{player.backend} back end"
                    )
                    service.run()
                except (Refusal, EnvironmentFailure, RunFolderError) as error:
                    # This word shows the master that other workers may be unable to join, too.
                    cause = "EnvironmentFailure: " * isinstance(error, EnvironmentFailure)
                    reason = f"{cause}{error}"[:400]
                    if reason != printed:
                        self.say(f"cannot join: {error}; it tries again")
                    about["refuses"] = printed = reason
                    if not self._rq_name and self._has_other_work(self._client):
                        control.leave(CANNOT_JOIN)
                    # 1, 2, 4 … 60 seconds
                    seconds = float(min(60, 2 ** min(refusals, 6)))
                    wait_or_leave(control, seconds, self.clocks.leave_poll)
                    refusals += 1

    @contextmanager
    def _beating(self, heartbeat: Heartbeat) -> Iterator[None]:
        heartbeat.start()
        try:
            yield
        finally:
            heartbeat.stop()
            if heartbeat.has_run_ended:
                ParameterCache(self.run).remove_run()

    def _serve_metrics(
        self, worker: str, control: EpisodeControl, blocks: Callable[[], tuple[int, int]]
    ) -> ExitStack:
        """Metrics for Prometheus until the result is closed, if the user has set a port. What fails
        here costs no seat.
        """
        stack = ExitStack()
        try:
            endpoint = metrics_endpoint()
            if endpoint is None:
                return stack
            metrics = WorkerMetrics({"run": self.run, "worker": worker}, control, blocks)
            port = stack.enter_context(served_metrics(metrics, *endpoint))
            self.say(f"metrics on port {port} of {endpoint[0]}")
        except (ImportError, OSError, UsageError, ValueError) as error:  # of an odd host name, too
            self.say(f"no metrics: {error}")
        return stack

    def _make_heartbeat(
        self,
        store: WorkerStore,
        control: EpisodeControl,
        config: RunConfig,
        about: Callable[[], dict[str, str]],
    ) -> Heartbeat:
        client = clone_client(self._client)
        retry = Retry(60, leave_in_outage(control, self._parent))
        own_store = WorkerStore(client, self.run, store.worker, self._rq_name, retry)

        def report(reason: str, **more: object) -> None:
            # The episode must end even if Redis is away for long.
            with suppress(EsQueueError, Leaving):
                send_report(own_store, reason, environment=config.task, **more)

        def expire() -> None:
            reason = f"an episode lasted longer than {config.wall_limit:g} s"
            report(reason, **control.playing, trace=main_stack())
            if self._owns_process:
                os.kill(os.getpid(), signal.SIGKILL)  # the report is written

        return Heartbeat(
            own_store,
            control,
            about,
            self.clocks,
            config.wall_limit,
            expire,
            parent=self._parent,
            memory=config.worker_memory * 2**20 if self._owns_process else 0,
            on_memory_limit=report,  # only a process of its own is replaced
            has_other_work=lambda: self._has_other_work(client),
            report=lambda text: self.say(f"{about().get('generation', '')} {text}"),
        )


class Service:
    """Serves blocks of one run. The worker's hash shows ``late``, ``blocks`` and ``block``."""

    def __init__(self, store: WorkerStore, player: Player, clocks: Clocks) -> None:
        self._store, self._player, self._clocks = store, player, clocks
        self._mark = worker_mark(store.worker)
        self._cache = ParameterCache(store.run)
        self.late = self.blocks = 0
        self.block = ""

    def figures(self) -> dict[str, str]:
        """Texts for the worker's hash."""
        task = self._player.task
        return {
            "block": self.block,
            "late": str(self.late),
            "blocks": str(self.blocks),
            "generation": f"generation {task.generation}" if task else "",
        }

    def run(self) -> None:
        """Work until asked to leave; unfinished blocks go back to the head of todo (rule 13).

        Raises Refusal for a task that this worker cannot read or play, because it would take the
        other workers' blocks.
        """
        control = self._player.control
        try:
            while not control.leave_reason:
                block = self._next_block()
                if block is not None:
                    self._process(block)
                # Even a process that is too large from the start plays one block.
                if control.finish_reason and self.blocks:
                    control.leave(control.finish_reason)
        except Leaving:
            pass
        finally:
            # If Redis is away, the master issues the blocks again when the beat has lapsed.
            with suppress(Leaving):
                self._store.give_back(self._store.held_blocks())

    def _next_block(self) -> Block | None:
        """The next block. Those already held come first, because the reply to an earlier claim may
        have been lost (rule 5).
        """
        if held := self._store.held_blocks():
            return held[0]
        # A large fleet asks less often, as its heartbeat threads do.
        longest = min(self._player.control.poll or 0.0, MAX_WAIT)
        return self._store.claim(max(self._clocks.claim_wait, longest))

    def _process(self, block: Block) -> None:
        if not self._open(block):
            self._store.drop(block)
            return
        control = self._player.control
        self.block = f"{KINDS[block.kind]} {block.start} {block.stop}"
        control.begin_block(block.publication)
        try:
            answer = self._player.play(block, self._mark)
        except Leaving:
            if control.leave_reason:
                raise
            if control.closed == block.publication:  # another copy was first
                self.late += 1
                self._store.drop(block)
            return
        finally:
            self.block = ""
            control.end_block()
        for failure in answer.failures:
            about = {"environment": self._player.config.task, **asdict(failure)}
            send_report(self._store, about.pop("reason"), **about)
        self.blocks += 1
        if not self._store.give(block, answer.results.tobytes(), answer.moments.tobytes()):
            self.late += 1

    def _open(self, block: Block) -> bool:
        """Fetch what the block belongs to, if it is new. False if that has closed (rule 2)."""
        for _ in range(2):  # a header that another worker stored may lack the newest rows
            if self._player.has(block):
                return True
            with self._cache.fetch_lock():
                fetched = self._fetch(block)
            if fetched is None:
                return False
            self._player.open(*fetched)
        return self._player.has(block)

    def _fetch(self, block: Block) -> tuple[Task, Floats] | None:
        """The open publication. Its header comes from another worker of the host if possible, from
        Redis if the table has grown.
        """
        name, known = block.publication, self._player.task
        has_grown = known is not None and known.publication == name
        shared = None if has_grown else self._cache.read_header(name)
        raw = shared or self._store.task()
        if raw is None:
            return None
        task = load_task(raw, self._player.noise.digest)
        if task.publication != name:
            return None
        if has_grown:
            return task, self._player.published
        if not self._player.fits(task):
            raise Refusal(
                "policy: its parameters or observations differ in size from the run's: install "
                "the run's versions of es-queue and of the environment"
            )
        size = 4 * task.size
        fetch = partial(self._store.parameters, name, size)
        data = self._cache.get(name, size, task.digest, fetch)
        if data is None:
            return None
        if changed := self._player.noise.recheck():
            send_report(self._store, changed)
        if shared is None:
            self._cache.write_header(name, raw)
        self._player.control.poll = task.poll
        return task, np.frombuffer(data, "<f4").astype(np.float32, copy=False)


class CrashGuard:
    """Counts, per worker, seats that did not end cleanly; each makes the next one wait longer, up
    to a minute.
    """

    def __init__(self, name: str) -> None:
        safe = "".join(letter if letter.isalnum() else "_" for letter in name)[:80] or "worker"
        folder = host_private_directory()
        self._path = folder / f"{safe}.seat" if folder else None
        self._traces: TextIO | None = None  # open as long as the process may crash

    def begin_seat(self) -> float:
        """Note that a seat begins; returns seconds to wait first."""
        if self._path is None:
            return 0.0
        remove_stale_counts(self._path.parent)
        try:
            count = int(self._path.read_text()) if self._path.exists() else 0
            self._path.write_text(str(count + 1))
        except (OSError, ValueError):
            return 0.0
        return float(min(60, 2 ** (count - 1))) if count > 0 else 0.0

    def start_trace(self, run: str) -> str:
        """From now on, a crash of this process writes Python's traceback to a file. Returns the
        traceback that the last seat of ``run`` left there.
        """
        if self._path is None or faulthandler.is_enabled():
            return ""
        path, trace = self._path.with_suffix(".crash"), ""
        with suppress(OSError):
            if path.exists():
                owner, _, trace = path.read_text(errors="replace")[:MAX_TRACE].partition("\n")
                trace = trace if owner == run else ""
            self._traces = path.open("w")
            self._traces.write(f"{run}\n")
            self._traces.flush()
            faulthandler.enable(self._traces)
        return trace

    def end_seat(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path.with_suffix(".crash").unlink(missing_ok=True)


def remove_stale_counts(folder: Path) -> None:
    """Remove the counts of workers that were killed long ago."""
    with suppress(OSError):
        for path in (*folder.glob("*.seat"), *folder.glob("*.crash")):
            if time.time() - path.stat().st_mtime > FORGET_SECONDS:
                path.unlink(missing_ok=True)


def wait_or_leave(control: EpisodeControl, seconds: float, poll: float) -> None:
    until = time.monotonic() + seconds
    while not control.leave_reason and time.monotonic() < until:
        time.sleep(min(poll, max(0.0, until - time.monotonic())))


def make_worker_id(host: str) -> str:
    """``<host>-<pid>-<6 hex>``, new for each seat, so that no claims list is shared."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100] or "host"
    return f"{name}-{os.getpid()}-{os.urandom(3).hex()}"


def main_stack() -> str:
    """The stack of the episodes' thread, innermost last."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame, limit=12))[-4000:] if frame is not None else ""


def install_sigterm(control: EpisodeControl) -> None:
    """SIGTERM means leave cleanly. A worker that runs jobs itself keeps RQ's handler."""
    signal.signal(signal.SIGTERM, lambda *_: control.leave("SIGTERM"))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})


def reseed_global_generators() -> None:
    """Reseed the global generators that a fork shares with its parent. es-queue does not use them,
    but a user's code can.
    """
    random.seed(os.urandom(16))
    np.random.seed(int.from_bytes(os.urandom(4), "little"))
