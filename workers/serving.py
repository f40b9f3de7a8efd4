"""A worker's seat in a run: it joins, claims blocks, plays and answers them, and leaves.

This module loads numpy, so the numeric environment must be fixed before it is imported.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import platform
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import redis

from es_queue import __version__
from es_queue.config.run_config import RunConfig
from es_queue.errors import (
    DecodeError,
    EnvironmentFailure,
    EsQueueError,
    RunFolderError,
    UsageError,
)
from es_queue.host import process_limit_hint
from es_queue.numerics.arrays import Floats
from es_queue.numerics.fingerprint import bytes_digest, limit_blas_threads
from es_queue.private_files import host_private_directory, replacing, take_lock
from es_queue.protocol.connection import clone_client
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import CRASH_REPORT, PUBLICATION, Block, Task
from es_queue.protocol.store import WorkerStore
from es_queue.slots import worker_mark
from es_queue.text import sanitize
from workers.heartbeat import (
    EpisodeControl,
    Heartbeat,
    Leaving,
    WorkerMetrics,
    metrics_endpoint,
    served_metrics,
    worker_info,
)
from workers.player import Data, Player, Refusal, join

#: The reason to leave that tells es-worker to send this worker to another run.
CANNOT_JOIN = "it cannot join this run, and another run is training"
MAX_TRACE = 4000
#: Seconds that a seat waits at most after others of its worker have crashed.
MOST_WAIT = 5
#: Seconds that a claim may wait, well below the socket's own time-out.
MAX_WAIT = 2.0
MIN_SHARED_BYTES = 2**18  # below, asking Redis is cheaper than a lock and a file
NEW = ".new"
LOCK_SECONDS = 5.0
#: Letters of one line on the worker's terminal.
MAX_LINE = 2000


def print_line(run: str, text: str) -> None:
    """One line on the worker's terminal, without control characters, because ``text`` can come
    from Redis or a run's code.
    """
    with suppress(OSError, ValueError):  # the terminal may be closed
        print(f"es-queue {run}: {sanitize(text, MAX_LINE)}", file=sys.stdout, flush=True)


@dataclass
class Seat:
    """A worker's place in a run for a while.

    name: of the worker, as people see it; rq_name: of its RQ worker, empty if RQ did not start it
    owns_process: whether this process exists only for the seat, so that it may end itself
    parent: process that it must not outlive, None for any
    has_other_work: whether another run waits for a worker; asked if this run has no master, or
    refuses this worker
    queues_before: RQ queues whose jobs its worker must run first
    """

    client: redis.Redis
    run: str
    clocks: Clocks
    name: str
    rq_name: str = ""
    owns_process: bool = False
    parent: int | None = None
    has_other_work: Callable[[redis.Redis], bool] = lambda client: False
    queues_before: Sequence[str] = ()
    print_line: Callable[[str, str], None] = print_line
    control: EpisodeControl = field(default_factory=EpisodeControl)

    def say(self, text: str) -> None:
        self.print_line(self.run, text)

    def join_and_serve(self) -> str:
        """Join, serve, leave; returns why it left. If the last seat on this worker did not end in
        order, this one waits first, longer each time.
        """
        control = self.control
        if self.owns_process:  # a worker that runs jobs itself keeps RQ's handler
            signal.signal(signal.SIGTERM, lambda *_: control.leave("SIGTERM"))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        if self.rq_name:
            signal.signal(signal.SIGALRM, self._leave_at_once)
        # A fork shares the global generators of its parent. A user's code can use them.
        random.seed(os.urandom(16))
        np.random.seed(int.from_bytes(os.urandom(4), "little"))
        limit_blas_threads()
        guard, retry = CrashGuard(self.name), control.retry(self.parent)
        worker, reason = make_worker_id(platform.node()), ""
        store = WorkerStore(self.client, self.run, worker, self.rq_name, retry)
        try:
            seconds, how, trace = guard.begin_seat(self.run, keeps_traces=self.owns_process)
            if seconds > 0 and self.rq_name:  # RQ would send the next seat at once
                self.say(f"joins in {seconds:g} s: the last seat on worker {self.name} {how}")
                self._wait(seconds)
            if trace:
                store.report(f"{CRASH_REPORT}{last_place(trace)}", trace=trace)
            self._serve(store)
        except Leaving:
            pass
        except EsQueueError as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}{process_limit_hint(str(error))}"
            retry.give_up_after(0.0)
            with suppress(Exception):
                store.report(repr(error)[:400], trace=traceback.format_exc(limit=-12))
        finally:
            store.depart()
        guard.end_seat(reason)
        reason = reason or control.leave_reason
        self.say(f"left: {reason}")
        return reason

    def _serve(self, store: WorkerStore) -> None:
        control, clocks, raw = self.control, self.clocks, store.config()
        if raw is None:
            control.leave("the run is gone")
            return
        config, unreadable = load_config(raw)
        about = {
            "name": self.name,
            "rq_name": self.rq_name,
            "backend": config.backend,
            **worker_info(clocks),
        }
        client, retry = clone_client(self.client), control.retry(self.parent, 60)
        heartbeat = Heartbeat(
            WorkerStore(client, self.run, store.worker, self.rq_name, retry, self.queues_before),
            control,
            about,
            clocks,
            config,
            owns_process=self.owns_process,
            parent=self.parent,
            has_other_work=lambda: self.has_other_work(client),
            say=self.say,
        )
        store.arrive(about, clocks.beat_ttl)
        refusals, said, played = 0, "", 0
        with ExitStack() as stack:
            heartbeat.start()
            stack.callback(self._stop_heartbeat, heartbeat)
            self._serve_metrics(store.worker, stack)
            while not control.leave_reason:
                try:
                    if unreadable:
                        raise Refusal(unreadable)
                    with closing(join(config, control)) as player:
                        about["noise"] = player.noise.digest
                        validate_admission(store, player)
                        if about.pop("refuses", ""):
                            store.depart()  # the field would stay in the hash
                        about["numerics"], about["backend"] = player.numerics, player.backend
                        store.arrive(about, clocks.beat_ttl)
                        self.say(
                            f"joined as {store.worker}: {config.problem}, {config.strategy_name}, "
                            f"{player.backend} back end"
                        )
                        Service(store, player, clocks).run()
                except (Refusal, EnvironmentFailure, RunFolderError) as error:
                    if control.blocks > played:  # it has worked since the last one
                        refusals, said, played = 0, "", control.blocks
                    # This word shows the master that other workers may be unable to join, too.
                    cause = "EnvironmentFailure: " * isinstance(error, EnvironmentFailure)
                    reason = f"{cause}{error}"[:400]
                    if reason != said:
                        self.say(f"cannot join: {error}; it tries again")
                    about.pop("numerics", "")
                    about["refuses"] = said = reason
                    if not self.rq_name and self.has_other_work(self.client):
                        control.leave(CANNOT_JOIN)
                    self._wait(min(60, 2 ** min(refusals, 6)))  # 1, 2, 4 … 60 seconds
                    refusals += 1
                    if store.config() not in (raw, None):  # the next seat reads them
                        control.leave("the run's settings have changed")

    def _wait(self, seconds: float) -> None:
        """Unless the worker must leave."""
        until = time.monotonic() + seconds
        while not self.control.leave_reason and (left := until - time.monotonic()) > 0:
            time.sleep(min(self.clocks.leave_poll, left))

    def _leave_at_once(self, *_: object) -> None:
        """RQ's alarm: the job's time is over, which is no failure of an episode."""
        self.control.leave("the time of its RQ job is over")
        raise Leaving

    def _stop_heartbeat(self, heartbeat: Heartbeat) -> None:
        heartbeat.stop()
        if heartbeat.ended:
            ParameterCache(self.run).remove_run()

    def _serve_metrics(self, worker: str, stack: ExitStack) -> None:
        """Metrics for Prometheus, if the user has set a port. What fails here costs no seat."""
        try:
            if (endpoint := metrics_endpoint()) is not None:
                metrics = WorkerMetrics({"run": self.run, "worker": worker}, self.control)
                port = stack.enter_context(served_metrics(metrics, *endpoint))
                self.say(f"metrics on port {port} of {endpoint[0]}")
        except (ImportError, OSError, UsageError, ValueError) as error:  # of an odd host name, too
            self.say(f"no metrics: {error}")


def make_worker_id(host: str) -> str:
    """``<host>-<pid>-<6 hex>``, new for each seat, so that no claims list is shared."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:100] or "host"
    return f"{name}-{os.getpid()}-{os.urandom(3).hex()}"


class CrashGuard:
    """Counts, per worker, seats that did not end in order; each makes the next one wait longer, up
    to five seconds. Its file exists while a seat does: the count, the run, how the seat ended, and
    Python's traceback if the process crashes.
    """

    def __init__(self, name: str) -> None:
        safe = re.sub(r"\W", "_", name)[:80] or "worker"
        folder = host_private_directory()
        self._path = folder / f"{safe}.seat" if folder else None
        self._file: TextIO | None = None  # open while the seat lasts
        self._head, self._keeps_traces = "", False

    def begin_seat(self, run: str, *, keeps_traces: bool) -> tuple[float, str, str]:
        """Note that a seat begins. Returns seconds to wait first, how the last seat ended, and the
        traceback that it left, if it was in the same run.
        """
        count, how, trace = 0, "", ""
        if self._path is None:
            return 0.0, how, trace
        with suppress(OSError):
            if self._path.exists():
                head, _, trace = self._path.read_text(errors="replace")[:MAX_TRACE].partition("\n")
                number, owner, how = (*head.split(" ", 2), "", "")[:3]
                count = int(number) if number.isdecimal() else 0
                trace = trace if owner == run else ""
            self._head = f"{min(count + 1, 9)} {run} "
            self._file = self._path.open("w")
            self._file.write(f"{self._head}crashed or was killed\n")
            self._file.flush()
            if keeps_traces and not faulthandler.is_enabled():
                faulthandler.enable(self._file)
                self._keeps_traces = True
        return float(min(MOST_WAIT, 2 ** (count - 1))) if count else 0.0, how, trace

    def end_seat(self, reason: str) -> None:
        """The seat ends in order, or with an error that the next one mentions."""
        if self._keeps_traces:
            faulthandler.disable()
        if self._file is None or self._path is None:
            return
        self._file.close()
        with suppress(OSError):
            if reason:
                text = f"{self._head}ended with an error: {' '.join(reason.split())}"
                self._path.write_text(f"{text[:MAX_TRACE]}\n")
            else:
                self._path.unlink(missing_ok=True)


def last_place(trace: str) -> str:
    """The signal and the line of code in a traceback of faulthandler, in words."""
    fatal = re.match(r"Fatal Python error: (.{1,80})", trace)
    place = re.search(
        r'Current thread .*\n  File "(?:.*[/\\])?(.{1,80}?)", line (\d+) in (.{1,80})', trace
    )
    words = f": {fatal[1]}" if fatal else ""
    return words + (f", in {place[3]} ({place[1]}, line {place[2]})" if place else "")


# --- the run's parameters and settings


def validate_admission(store: WorkerStore, player: Player) -> None:
    """Before the first claim: Refusal as of ``load_task``, and of other arithmetic if --strict."""
    if (raw := store.task()) is not None:
        load_task(raw, player.noise.digest)
    expected = store.progress_field("numerics") if player.config.strict else None
    if expected and expected != player.numerics:
        raise Refusal(
            f"numerics: this host's fingerprint is {player.numerics[:8]}, the run's is "
            f"{expected[:8]}, and the run is --strict: use the CPU type and numpy of its other "
            "hosts, or leave out --strict"
        )


def load_config(raw: bytes) -> tuple[RunConfig, str]:
    """The run's settings, or the defaults and why this es-queue cannot read them."""
    try:
        return RunConfig.from_json(raw), ""
    except UsageError as error:
        return RunConfig(), (
            f"settings: es-queue {__version__} here cannot read the run's ({error}): install the "
            "master's version"
        )


def load_task(raw: bytes, digest: str) -> Task:
    """Raises Refusal for a task that cannot be read, or of another noise table."""
    try:
        task = Task.decode(raw)
    except DecodeError as error:
        raise Refusal(
            f"protocol: es-queue {__version__} here cannot read the run's task ({error}): "
            "install the master's version"
        ) from None
    if task.noise != digest:
        raise Refusal(f"noise digest: this host's table is {digest}, the run's is {task.noise}")
    return task


# --- blocks


class Service:
    """Serves blocks of one run."""

    def __init__(self, store: WorkerStore, player: Player, clocks: Clocks) -> None:
        self._store, self._player, self._clocks = store, player, clocks
        self._mark = worker_mark(store.worker)
        self._cache = ParameterCache(store.run)

    def run(self) -> None:
        """Work until asked to leave; unfinished blocks go back to the head of todo. Raises Refusal
        for a task that this worker cannot read or play.
        """
        control = self._player.control
        try:
            while not control.leave_reason:
                block = self._next_block()
                if block is not None:
                    self._process(block)
                # Even a process that is too large from the start plays one block.
                if control.finish_reason and control.blocks:
                    control.leave(control.finish_reason)
        except Leaving:
            pass
        finally:
            # If Redis is away, the master issues the blocks again when the beat has lapsed.
            with suppress(Leaving):
                self._store.release(self._store.held_blocks())

    def _next_block(self) -> Block | None:
        """Those already held come first: the reply to an earlier claim may have been lost."""
        if held := self._store.held_blocks():
            return held[0]
        # A large fleet asks less often, as its heartbeat threads do.
        longest = min(self._player.control.poll or 0.0, MAX_WAIT)
        return self._store.claim(max(self._clocks.claim_wait, longest))

    def _process(self, block: Block) -> None:
        """Play a block and answer it; drop it if its publication has closed."""
        if not self._open(block):
            self._store.drop(block)
            return
        player, control = self._player, self._player.control
        control.begin_block(block, player.slots.generation)
        try:
            answer = player.play(block, self._mark)
        except Leaving:
            if control.leave_reason:
                raise
            if control.closed == block.publication:  # another copy was first
                control.late += 1
                self._store.drop(block)
            return
        finally:
            control.end_block()
        for failure in answer.failures:
            self._store.report(**asdict(failure), environment=player.config.problem)
        control.blocks += 1
        if not self._store.answer(block, answer.results.tobytes(), answer.moments.tobytes()):
            control.late += 1

    def _open(self, block: Block) -> bool:
        """Fetch what the block belongs to, if it is new. False if that has closed."""
        if not self._player.has(block):
            fetched = self._fetch(block.publication)
            if fetched is None:
                return False
            self._player.open(*fetched)
        return self._player.has(block)

    def _fetch(self, name: str) -> tuple[Task, Floats] | None:
        """The open publication's header and parameters; None if that is not ``name``."""
        player, raw = self._player, self._store.task()
        if raw is None:
            return None
        task = load_task(raw, player.noise.digest)
        if task.publication != name:
            return None
        if player.task is not None and player.task.publication == name:
            return task, player.published  # only its table has grown
        if not player.fits(task):
            raise Refusal(
                "policy: its parameters or observations differ in size from the run's: install "
                "the run's versions of es-queue and of the environment"
            )
        size = 4 * task.size
        fetch = partial(self._store.parameters, name, size)
        data = player.fetch(
            self._store, task, partial(self._cache.get, name, size, task.digest, fetch)
        )
        if data is None:
            return None
        if changed := player.noise.recheck():
            self._store.report(changed)
        player.control.poll = task.poll
        return task, np.frombuffer(data, "<f4").astype(np.float32, copy=False)


class ParameterCache:
    """One file per publication in a private folder of this user. All the host's workers map it, so
    there is one copy in memory; each checks the digest itself. A file is replaced and never
    changed, so a mapping stays valid.

    If the folder cannot be used, every worker fetches for itself.

    lock_seconds: seconds to wait for another worker that fetches
    """

    def __init__(
        self, run: str, folder: Path | None = None, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        self._run, self._lock_seconds = run, lock_seconds
        self._folder = folder or host_private_directory()

    def get(
        self, publication: str, size: int, digest: str, fetch: Callable[[], bytes | None]
    ) -> Data | None:
        """``size`` bytes with this digest, from the host's file or by ``fetch``, or None."""
        if size < MIN_SHARED_BYTES or self._folder is None:
            return data_if_valid(fetch(), size, digest)
        path = self._folder / f"{self._run}-{publication}"
        with ExitStack() as stack:  # one worker of the host fetches, and the others find its file
            # The folder was swept away, its disk is full, or the fetching worker is frozen: fetch
            # without the others.
            with suppress(RunFolderError):
                lock = take_lock(self._folder / f"{self._run}.lock", self._lock_seconds)
                if lock is not None:
                    stack.callback(os.close, lock)
            shared = data_if_valid(map_file(path), size, digest)
            if shared is not None:
                return shared
            data = data_if_valid(fetch(), size, digest)
            if data is not None:
                self._remove_publications(self._folder)
                fresh = path.with_name(path.name + NEW)
                with suppress(OSError), replacing(path, fresh=fresh) as file:
                    file.write(data)
                return data_if_valid(map_file(path), size, digest) or data
        return None

    def remove_run(self) -> None:
        if self._folder is None:
            return
        self._remove_publications(self._folder)
        with suppress(OSError):
            (self._folder / f"{self._run}.lock").unlink(missing_ok=True)

    def _remove_publications(self, folder: Path) -> None:
        with suppress(OSError):
            for old in folder.glob(f"{self._run}-*"):
                if PUBLICATION.fullmatch(old.name.removeprefix(f"{self._run}-").removesuffix(NEW)):
                    old.unlink(missing_ok=True)


def data_if_valid(data: Data | None, size: int, digest: str) -> Data | None:
    """``data`` if it is the published vector, None otherwise."""
    return data if data is not None and len(data) == size and bytes_digest(data) == digest else None


def map_file(path: Path) -> memoryview | None:
    """The file's bytes without a copy; None if it is missing or empty."""
    try:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
