"""The seat: the RQ job by which one ``rq worker`` serves one run for a while.

Its first act is to open the next seat, before numpy is imported, so that the next worker need not
wait. It always returns normally: whatever goes wrong is reported to the run, not to RQ.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import random
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from es_queue.errors import EsQueueError
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.protocol.channel import PAUSED, RUNNING
from es_queue.protocol.keys import parse_seat_id
from es_queue.protocol.timing import SUPERVISOR_PID, Clocks, clocks_from_environment
from es_queue.security.private_directory import host_private_directory
from es_queue.security.sanitize import sanitize

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from es_queue.config.run_config import RunConfig
    from es_queue.protocol.redis_channel import RedisWorkerChannel
    from workers.episode import EpisodeControl
    from workers.heartbeat import Heartbeat, StepRate

FORGET_SECONDS = 24 * 3600.0
MAX_TRACE = 4000
#: Letters of one line on the worker's terminal.
MAX_LINE = 2000


def take() -> None:
    """Serve the run that the job's id names until told to leave. RQ calls this."""
    # start-up: rq, which its worker has loaded
    from rq import get_current_job

    job = get_current_job()
    if job is None:
        raise EsQueueError("workers.seat.take runs as an RQ job: start it with rq worker")
    run, nonce = parse_seat_id(job.id)
    # start-up: redis
    from es_queue.protocol.connection import clone_client

    client = clone_client(job.connection)
    seat = Seat(client, run, nonce, job, clocks_from_environment())
    reason = seat.open_next()
    if reason:
        seat.print_line(f"left: {reason}")
        return
    fix_numeric_environment()
    seat.join_and_serve()


class Seat:
    """One seat of one run on this worker."""

    def __init__(self, client: redis.Redis, run: str, nonce: str, job: Any, clocks: Clocks) -> None:
        self._client: Any = client
        self.run, self.nonce, self.clocks = run, nonce, clocks
        self._hardened = bool(getattr(job, "hardened", False))
        self._horse = (
            is_horse()
        )  # asked now: sit() installs a handler, and then every process would look like RQ's own
        self._parent = os.getppid() if self._horse else None
        self._supervisor = supervisor_of_local_worker()
        self.queue, self.rq_name, self.timeout = job.origin, job.worker_name or "", int(job.timeout)

    def open_next(self) -> str:
        """Open the next seat, while the run is running; the master's keeper repairs what fails
        here.

        Returns why this seat should not be sat on, mostly nothing: seats outlive a master that was
        killed, and would keep workers from the runs that live. A master takes its lease before it
        opens seats.
        """
        # start-up: redis
        from es_queue.protocol.connection import ANY_ERROR
        from es_queue.protocol.seats import open_seats, run_status

        try:
            state, led = run_status(self._client, self.run)
            if not led:
                return (
                    "the run has no master"
                    if state in (None, RUNNING, PAUSED)
                    else f"the run is {state}"
                )
            if state == RUNNING:
                open_seats(self._client, self.queue, self.run, self.nonce, 1, self.timeout)
        except ANY_ERROR:
            return ""
        return ""

    def join_and_serve(self) -> None:
        """Join, serve, leave; a seat that crashed before on this worker waits longer each time."""
        # start-up: numpy, whose threads must be fixed before it loads
        from es_queue.numerics.fingerprint import limit_blas_threads
        from es_queue.protocol.redis_channel import RedisWorkerChannel
        from es_queue.protocol.retry import Retry
        from workers.block_worker import make_worker_id
        from workers.episode import EpisodeControl, Leaving
        from workers.heartbeat import leave_in_outage
        from workers.worker_info import send_report

        control = EpisodeControl()
        install_sigterm(control)
        reseed_global_generators()
        limit_blas_threads()
        guard = CrashGuard(self.rq_name)
        retry = Retry(on_outage=leave_in_outage(control, self._parent, self._supervisor))
        channel = RedisWorkerChannel(
            self._client, self.run, make_worker_id(platform.node()), self.rq_name, retry
        )
        time.sleep(guard.begin_seat())
        try:
            if self._horse and (trace := guard.start_trace(self.run)):
                # Python's last words: the process that crashed could tell nobody.
                reason = "the seat before this one crashed on this RQ worker"
                send_report(channel, reason, trace=trace)
            self._serve(channel, control)
        except Leaving:
            self.print_line(f"left: {control.leave_reason}")
            guard.end_seat()
        except EsQueueError as error:
            self.print_line(f"left: {error}")
        except Exception as error:
            retry.give_up()
            with suppress(Exception):
                trace = traceback.format_exc(limit=-12)
                send_report(channel, repr(error)[:400], trace=trace)
            self.print_line(f"left: {type(error).__name__}: {error}")
        else:
            self.print_line(f"left: {control.leave_reason}")
            guard.end_seat()
        finally:
            channel.depart()

    def _serve(self, channel: RedisWorkerChannel, control: EpisodeControl) -> None:
        # start-up: numpy, whose threads must be fixed before it loads
        from es_queue.errors import EnvironmentFailure, RunFolderError
        from workers.block_worker import BlockWorker
        from workers.heartbeat import StepRate
        from workers.join import (
            Refusal,
            join,
            load_config,
            refusal_delay,
            validate_admission,
            validate_noise,
            wait_or_leave,
        )
        from workers.parameter_cache import ParameterCache
        from workers.worker_info import worker_info

        raw = channel.config()
        if raw is None:
            control.leave("the run is gone")
            return
        config, unreadable = load_config(raw)
        about = {
            "host": platform.node(),
            "pid": str(os.getpid()),
            "rq_name": self.rq_name,
            "backend": config.backend,
            "python": platform.python_version(),
            "block": "",
            "steps_per_second": "0",
            "late": "0",
            "joined": f"{time.time():.0f}",
            **worker_info(self.clocks, self._hardened),
        }
        block_worker: BlockWorker | None = None
        step_rate = StepRate(control)
        heartbeat = self._make_heartbeat(
            channel,
            control,
            config,
            lambda: {
                **about,
                "outages": str(channel.outages),
                **worker_figures(block_worker, control, step_rate),
            },
        )
        channel.arrive(about, self.clocks.beat_ttl)
        heartbeat.start()
        refusals = 0
        try:
            while not control.leave_reason:
                try:
                    if unreadable:
                        raise Refusal(unreadable)
                    joined = join(config, control)
                    about["noise"] = joined.noise_digest
                    validate_noise(channel.task(), joined.noise_digest)
                    if about.pop("refuses", ""):
                        channel.depart()  # what a beat does not say any more would stay in the hash
                    validate_admission(
                        channel, config, about["host"], self.rq_name, joined.numerics
                    )
                    about["numerics"], about["backend"] = joined.numerics, joined.backend
                    channel.arrive(about, self.clocks.beat_ttl)
                    block_worker = BlockWorker(
                        channel, joined.evaluator, self.clocks, joined.noise_digest
                    )
                    self.print_line(
                        f"joined as {channel.worker}: {config.task}, {config.strategy}, "
                        f"{joined.backend} back end"
                    )
                    block_worker.run()
                except (Refusal, EnvironmentFailure, RunFolderError) as error:
                    about["refuses"] = f"{type(error).__name__}: {error}"[:400]
                    self.print_line(f"cannot join: {error}")
                    wait_or_leave(control, refusal_delay(refusals), self.clocks.leave_poll)
                    refusals += 1
        finally:
            heartbeat.stop()
            if heartbeat.has_run_ended:
                ParameterCache(self.run).remove_run()

    def _make_heartbeat(
        self, channel: RedisWorkerChannel, control: EpisodeControl, config: RunConfig, about: Any
    ) -> Heartbeat:
        """The heartbeat thread, with a channel and a connection of its own."""
        # start-up: numpy, whose threads must be fixed before it loads
        from es_queue.protocol.connection import clone_client
        from es_queue.protocol.redis_channel import RedisWorkerChannel
        from es_queue.protocol.retry import Retry
        from es_queue.protocol.seats import is_other_run_waiting
        from workers.episode import Leaving
        from workers.heartbeat import Heartbeat, ProcessLimits, end_this_process, leave_in_outage
        from workers.worker_info import send_report

        client = clone_client(self._client)
        heartbeat_channel = RedisWorkerChannel(
            client,
            self.run,
            channel.worker,
            self.rq_name,
            Retry(60, leave_in_outage(control, self._parent, self._supervisor)),
        )

        def report(reason: str, **more: object) -> None:
            # Redis may be away for long; the episode must end all the same.
            with suppress(EsQueueError, Leaving):
                send_report(heartbeat_channel, reason, environment=config.task, **more)

        def expire() -> None:
            report(
                f"an episode lasted longer than {config.wall_limit:g} s",
                **control.playing,
                trace=main_stack(),
            )
            if self._horse:
                end_this_process()

        return Heartbeat(
            heartbeat_channel,
            control,
            about,
            self.clocks,
            ProcessLimits(
                wall_limit=config.wall_limit,
                on_wall_limit=expire,
                parent=self._parent,
                supervisor=self._supervisor,
                memory=config.worker_memory * 2**20 if self._horse else 0,
                on_memory_limit=report,  # only a process of its own is replaced
                has_other_work=lambda: is_other_run_waiting(client, self.queue, self.run),
            ),
            lambda text: self.print_line(f"{about().get('generation', '')} {text}"),
        )

    def print_line(self, text: str) -> None:
        """One line on the worker's terminal; a run's code and Redis have a part in ``text``, so
        nothing in it acts there.
        """
        with suppress(OSError, ValueError):  # nobody may be there to read it any more
            print(f"es-queue {self.run}: {sanitize(text, MAX_LINE)}", file=sys.stdout, flush=True)


def worker_figures(
    block_worker: Any, control: EpisodeControl, step_rate: StepRate
) -> dict[str, str]:
    """What changes in a worker's hash from beat to beat."""
    if block_worker is None:
        return {}
    generation_text = (
        "" if block_worker.generation is None else f"generation {block_worker.generation}"
    )
    return {
        "block": block_worker.block,
        "late": str(block_worker.late),
        "blocks": str(block_worker.blocks),
        "steps": str(control.steps),
        "steps_per_second": f"{step_rate.rate():.0f}",
        "generation": generation_text,
    }


def main_stack() -> str:
    """Where the thread of the episodes is, innermost last."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame, limit=12))[-4000:] if frame is not None else ""


def supervisor_of_local_worker() -> int | None:
    """The supervisor that started this worker beside an es-master: when it is killed, nobody else
    would tell the worker to go.
    """
    pid = os.environ.get(SUPERVISOR_PID, "")
    return int(pid) if pid.isdigit() else None


def is_horse() -> bool:
    """Whether RQ forked this process for the job: then SIGTERM is the default, and the process is
    ours to end.
    """
    return signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def install_sigterm(control: EpisodeControl) -> None:
    """In a forked horse SIGTERM means leave cleanly; in a worker that runs jobs itself the handler
    is RQ's.
    """
    if is_horse():

        def leave(*_: object) -> None:
            control.leave("SIGTERM")

        signal.signal(signal.SIGTERM, leave)
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT}
        )  # a hardened worker holds them back until now


def reseed_global_generators() -> None:
    """Forks share numpy's global generator with their parent; nothing of ours draws from it, a
    user's code may.
    """
    # start-up: numpy, whose threads must be fixed before it loads
    import numpy as np

    random.seed(os.urandom(16))
    np.random.seed(int.from_bytes(os.urandom(4), "little"))


class CrashGuard:
    """Counts, per RQ worker, seats that did not end cleanly; each makes the next one wait longer,
    up to a minute.
    """

    def __init__(self, rq_name: str) -> None:
        safe = "".join(letter if letter.isalnum() else "_" for letter in rq_name)[:80] or "worker"
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
        """From now on a crash of this process leaves Python's traceback in a file; returns what the
        last seat of ``run`` left there.
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
        """The seat ended cleanly."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path.with_suffix(".crash").unlink(missing_ok=True)


def remove_stale_counts(folder: Path) -> None:
    """Drop the counts of workers that were killed long ago; nobody else would."""
    with suppress(OSError):
        for path in (*folder.glob("*.seat"), *folder.glob("*.crash")):
            if time.time() - path.stat().st_mtime > FORGET_SECONDS:
                path.unlink(missing_ok=True)
