"""A worker in its seat: it joins the run, serves it, and leaves.

This module loads numpy, so the numeric environment must be fixed before it is imported.
"""

from __future__ import annotations

import os
import platform
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import redis

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure, EsQueueError, RunFolderError, UsageError
from es_queue.numerics.fingerprint import limit_blas_threads
from es_queue.protocol.connection import clone_client
from es_queue.protocol.retry import Retry
from es_queue.protocol.store import WorkerStore
from es_queue.protocol.timing import Clocks
from es_queue.util.metrics_endpoint import metrics_endpoint
from workers.episode import EpisodeControl, Leaving
from workers.heartbeat import (
    BusyShare,
    Heartbeat,
    ProcessLimits,
    StepRate,
    leave_in_outage,
    send_report,
    worker_info,
)
from workers.join import (
    join,
    load_config,
    refusal_delay,
    validate_admission,
    validate_noise,
    wait_or_leave,
)
from workers.open_seat import CrashGuard, print_line
from workers.parameter_cache import ParameterCache
from workers.service import Refusal, Service, make_worker_id

#: Why a worker left a run that another one may serve, so that es-worker sends it elsewhere.
CANNOT_JOIN = "it cannot join this run, and another run is training"


class Seat:
    """A worker's place in a run for a while.

    name: of the worker, as people see it
    rq_name: of the RQ worker whose orders to stop count; empty if RQ did not start it
    owns_process: whether this process exists only for the seat, so that it may end itself
    parent, supervisor: processes that it must not outlive, see ``heartbeat.orphan_reason``
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
        supervisor: int | None = None,
        has_other_work: Callable[[redis.Redis], bool] = lambda client: False,
        say: Callable[[str, str], None] = print_line,
    ) -> None:
        self._client, self.run, self.clocks, self.name = client, run, clocks, name
        self._rq_name, self._owns_process = rq_name, owns_process
        self._parent, self._supervisor = parent, supervisor
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
        retry = Retry(on_outage=leave_in_outage(control, self._parent, self._supervisor))
        channel = WorkerStore(
            self._client, self.run, make_worker_id(platform.node()), self._rq_name, retry
        )
        reason = ""
        try:
            seconds = guard.begin_seat()
            if self._rq_name:  # RQ would send the next seat at once
                self._wait_after_crashes(seconds, control)
            if self._owns_process and (trace := guard.start_trace(self.run)):
                # Python's last words: the process that crashed could tell nobody.
                send_report(channel, "the seat before this one crashed on this worker", trace=trace)
            self._serve(channel, control)
            guard.end_seat()
        except Leaving:
            guard.end_seat()
        except EsQueueError as error:
            reason = str(error)
        except Exception as error:
            retry.give_up_after(0.0)
            with suppress(Exception):
                trace = traceback.format_exc(limit=-12)
                send_report(channel, repr(error)[:400], trace=trace)
            reason = f"{type(error).__name__}: {error}"
        finally:
            channel.depart()
        reason = reason or control.leave_reason
        self.say(f"left: {reason}")
        return reason

    def _wait_after_crashes(self, seconds: float, control: EpisodeControl) -> None:
        if seconds > 0:
            self.say(
                f"joins in {seconds:g} s: the last seat on worker {self.name} crashed or was killed"
            )
            wait_or_leave(control, seconds, self.clocks.leave_poll)

    def _serve(self, channel: WorkerStore, control: EpisodeControl) -> None:
        raw = channel.config()
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
        step_rate, busy = StepRate(control), BusyShare(control)

        def figures() -> dict[str, str]:
            return {
                **about,
                "outages": str(channel.outages),
                **worker_figures(service, control, step_rate, busy),
            }

        def blocks() -> tuple[int, int]:
            return (service.blocks, service.late) if service else (0, 0)

        heartbeat = self._make_heartbeat(channel, control, config, figures)
        channel.arrive(about, self.clocks.beat_ttl)
        refusals, printed = 0, ""
        with self._beating(heartbeat), self._serve_metrics(channel.worker, control, blocks):
            while not control.leave_reason:
                try:
                    if unreadable:
                        raise Refusal(unreadable)
                    joined = join(config, control)
                    about["noise"] = joined.noise_digest
                    validate_noise(channel.task(), joined.noise_digest)
                    if about.pop("refuses", ""):
                        channel.depart()  # what a beat does not say any more would stay in the hash
                    validate_admission(channel, config, joined.numerics)
                    about["numerics"], about["backend"] = joined.numerics, joined.backend
                    channel.arrive(about, self.clocks.beat_ttl)
                    service = Service(channel, joined.player, self.clocks, joined.noise_digest)
                    self.say(
                        f"joined as {channel.worker}: {config.task}, {config.strategy}, "
                        f"{joined.backend} back end"
                    )
                    service.run()
                except (Refusal, EnvironmentFailure, RunFolderError) as error:
                    # By this word, the master knows that no other worker may be able to join.
                    cause = "EnvironmentFailure: " * isinstance(error, EnvironmentFailure)
                    reason = f"{cause}{error}"[:400]
                    if reason != printed:
                        self.say(f"cannot join: {error}; it tries again")
                    about["refuses"] = printed = reason
                    if not self._rq_name and self._has_other_work(self._client):
                        control.leave(CANNOT_JOIN)
                    wait_or_leave(control, refusal_delay(refusals), self.clocks.leave_poll)
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
            # start-up: prometheus_client takes 0.1 s and 8 MB, and few workers serve metrics
            from workers.monitoring.worker_metrics import WorkerMetrics, served_metrics

            metrics = WorkerMetrics({"run": self.run, "worker": worker}, control, blocks)
            port = stack.enter_context(served_metrics(metrics, *endpoint))
            self.say(f"metrics on port {port} of {endpoint[0]}")
        except (ImportError, OSError, UsageError, ValueError) as error:  # of an odd host name, too
            self.say(f"no metrics: {error}")
        return stack

    def _make_heartbeat(
        self, channel: WorkerStore, control: EpisodeControl, config: RunConfig, about: Any
    ) -> Heartbeat:
        client = clone_client(self._client)
        heartbeat_channel = WorkerStore(
            client,
            self.run,
            channel.worker,
            self._rq_name,
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
            if self._owns_process:
                os.kill(os.getpid(), signal.SIGKILL)  # the report is written

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
                memory=config.worker_memory * 2**20 if self._owns_process else 0,
                on_memory_limit=report,  # only a process of its own is replaced
                has_other_work=lambda: self._has_other_work(client),
            ),
            lambda text: self.say(f"{about().get('generation', '')} {text}"),
        )


def worker_figures(
    service: Any, control: EpisodeControl, step_rate: StepRate, busy: BusyShare
) -> dict[str, str]:
    """The fields of a worker's hash that change from beat to beat."""
    if service is None:
        return {}
    number = service.generation
    return {
        "block": service.block,
        "late": str(service.late),
        "blocks": str(service.blocks),
        "steps": str(control.steps),
        "steps_per_second": f"{step_rate.rate():.0f}",
        "generation": "" if number is None else f"generation {number}",
        "busy": "" if (share := busy.share()) is None else f"{share:.3f}",
    }


def main_stack() -> str:
    """The stack of the episodes' thread, innermost last."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame, limit=12))[-4000:] if frame is not None else ""


def install_sigterm(control: EpisodeControl) -> None:
    """SIGTERM means leave cleanly. A worker that runs jobs itself keeps RQ's handler."""

    def leave(*_: object) -> None:
        control.leave("SIGTERM")

    signal.signal(signal.SIGTERM, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})


def reseed_global_generators() -> None:
    """Reseed the global generators that a fork shares with its parent. es-queue does not use them,
    but a user's code can.
    """
    random.seed(os.urandom(16))
    np.random.seed(int.from_bytes(os.urandom(4), "little"))
