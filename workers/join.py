"""A worker takes a seat in a run: what it checks before its first claim, and how it leaves.

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
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import redis

from es_queue import __version__
from es_queue.config.episode_rules import evaluation_rules
from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import (
    describe,
    make_reference_batch,
    open_environment,
    open_vector_environment,
    portable_request,
    resolve_backend,
)
from es_queue.environments.interface import EnvironmentRequest
from es_queue.errors import (
    EnvironmentFailure,
    EsQueueError,
    MissingPackage,
    RunFolderError,
    UsageError,
)
from es_queue.numerics.fingerprint import bytes_digest, limit_blas_threads
from es_queue.numerics.noise_table import NoiseTable
from es_queue.policies import make_policy
from es_queue.policies.actions import ActionMap
from es_queue.private_files import host_private_directory
from es_queue.protocol.connection import Retry, clone_client
from es_queue.protocol.keys import Clocks
from es_queue.protocol.messages import CRASH_REPORT
from es_queue.protocol.store import WorkerStore
from es_queue.slot_plan import initial_parameters_seed
from es_queue.text import sanitize
from es_queue.user_code import ALLOW, INSTALLED, named_modules, refused_module
from workers.episode import EpisodeControl, Leaving, exits_refused, play_episode
from workers.heartbeat import Heartbeat, Pace, leave_in_outage, worker_info
from workers.metrics import WorkerMetrics, metrics_endpoint, served_metrics
from workers.parameter_cache import ParameterCache
from workers.player import Player
from workers.serving import Refusal, Service, load_task, send_report

#: The reason to leave that tells es-worker to send this worker to another run.
CANNOT_JOIN = "it cannot join this run, and another run is training"
CHECK_STEPS = 50
CHECK_SEEDS = (0, 1, 0)
MAX_TRACE = 4000
#: Seconds that a seat waits at most after others of its worker have crashed.
MOST_WAIT = 5
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
    queues_before: RQ queues whose jobs its worker must run first
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
        queues_before: Sequence[str] = (),
        say: Callable[[str, str], None] = print_line,
    ) -> None:
        self._client, self.run, self.clocks, self.name = client, run, clocks, name
        self._rq_name, self._owns_process, self._parent = rq_name, owns_process, parent
        self._has_other_work, self._say = has_other_work, say
        self._queues_before = queues_before
        self._control = EpisodeControl()
        self._service: Service | None = None

    def say(self, text: str) -> None:
        self._say(self.run, text)

    def join_and_serve(self) -> str:
        """Join, serve, leave; returns why it left. If the last seat on this worker did not end in
        order, this one waits first, longer each time.
        """
        control = self._control
        if self._owns_process:
            install_sigterm(control)
        if self._rq_name:
            signal.signal(signal.SIGALRM, partial(leave_at_once, control))
        # A fork shares the global generators of its parent. A user's code can use them.
        random.seed(os.urandom(16))
        np.random.seed(int.from_bytes(os.urandom(4), "little"))
        limit_blas_threads()
        guard = CrashGuard(self.name)
        retry = Retry(on_outage=leave_in_outage(control, self._parent))
        worker = make_worker_id(platform.node())
        store = WorkerStore(self._client, self.run, worker, self._rq_name, retry)
        reason = ""
        try:
            seconds, how, trace = guard.begin_seat(self.run, keeps_traces=self._owns_process)
            if seconds > 0 and self._rq_name:  # RQ would send the next seat at once
                self.say(f"joins in {seconds:g} s: the last seat on worker {self.name} {how}")
                wait_or_leave(control, seconds, self.clocks.leave_poll)
            if trace:
                send_report(store, f"{CRASH_REPORT}{last_place(trace)}", trace=trace)
            self._serve(store)
            guard.end_seat()
        except Leaving:
            guard.end_seat()
        except EsQueueError as error:
            reason = str(error)
            guard.end_seat(reason)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            guard.end_seat(reason)
            retry.give_up_after(0.0)
            with suppress(Exception):
                trace = traceback.format_exc(limit=-12)
                send_report(store, repr(error)[:400], trace=trace)
        finally:
            store.depart()
        reason = reason or control.leave_reason
        self.say(f"left: {reason}")
        return reason

    def _serve(self, store: WorkerStore) -> None:
        control, clocks = self._control, self.clocks
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
            **worker_info(clocks),
        }
        pace = Pace(control)

        def figures() -> dict[str, str]:
            service = self._service
            played = {} if service is None else {**pace.figures(), **service.figures()}
            return {**about, "outages": str(store.outages), **played}

        heartbeat = self._make_heartbeat(store, config, figures)
        store.arrive(about, clocks.beat_ttl)
        refusals, said = 0, ""
        with ExitStack() as stack:
            heartbeat.start()
            stack.callback(self._stop_heartbeat, heartbeat)
            self._serve_metrics(store.worker, stack)
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
                    store.arrive(about, clocks.beat_ttl)
                    self._service = Service(store, player, clocks)
                    self.say(
                        f"joined as {store.worker}: {config.problem}, {config.strategy}, "
                        f"{player.backend} back end"
                    )
                    self._service.run()
                except (Refusal, EnvironmentFailure, RunFolderError) as error:
                    if self._service is not None and self._service.blocks:
                        refusals, said = 0, ""  # it has worked since the last one
                    self._service = None
                    # This word shows the master that other workers may be unable to join, too.
                    cause = "EnvironmentFailure: " * isinstance(error, EnvironmentFailure)
                    reason = f"{cause}{error}"[:400]
                    if reason != said:
                        self.say(f"cannot join: {error}; it tries again")
                    about["refuses"] = said = reason
                    if not self._rq_name and self._has_other_work(self._client):
                        control.leave(CANNOT_JOIN)
                    # 1, 2, 4 … 60 seconds
                    wait_or_leave(control, float(min(60, 2 ** min(refusals, 6))), clocks.leave_poll)
                    refusals += 1
                    if store.config() not in (raw, None):  # the next seat reads them
                        control.leave("the run's settings have changed")

    def _stop_heartbeat(self, heartbeat: Heartbeat) -> None:
        heartbeat.stop()
        if heartbeat.has_run_ended:
            ParameterCache(self.run).remove_run()

    def _serve_metrics(self, worker: str, stack: ExitStack) -> None:
        """Metrics for Prometheus, if the user has set a port. What fails here costs no seat."""

        def blocks() -> tuple[int, int]:
            return (self._service.blocks, self._service.late) if self._service else (0, 0)

        try:
            if (endpoint := metrics_endpoint()) is not None:
                labels = {"run": self.run, "worker": worker}
                metrics = WorkerMetrics(labels, self._control, blocks)
                port = stack.enter_context(served_metrics(metrics, *endpoint))
                self.say(f"metrics on port {port} of {endpoint[0]}")
        except (ImportError, OSError, UsageError, ValueError) as error:  # of an odd host name, too
            self.say(f"no metrics: {error}")

    def _make_heartbeat(
        self, store: WorkerStore, config: RunConfig, about: Callable[[], dict[str, str]]
    ) -> Heartbeat:
        control, client = self._control, clone_client(self._client)
        retry = Retry(60, leave_in_outage(control, self._parent))
        own_store = WorkerStore(
            client, self.run, store.worker, self._rq_name, retry, self._queues_before
        )

        def report(reason: str, **more: object) -> None:
            # The episode must end even if Redis is away for long.
            with suppress(EsQueueError, Leaving):
                send_report(own_store, reason, environment=config.problem, **more)

        def expire() -> None:
            reason = f"an episode lasted longer than {config.wall_limit:g} s"
            report(reason, **control.playing, trace=main_stack())
            if self._owns_process:
                os.kill(os.getpid(), signal.SIGKILL)  # the report is written

        return Heartbeat(
            store=own_store,
            control=control,
            about=about,
            clocks=self.clocks,
            wall_limit=config.wall_limit,
            on_wall_limit=expire,
            parent=self._parent,
            memory=config.worker_memory * 2**20 if self._owns_process else 0,
            on_memory_limit=report,  # only a process of its own is replaced
            has_other_work=lambda: self._has_other_work(client),
            report=lambda text: self.say(f"{about().get('generation', '')} {text}"),
        )


def last_place(trace: str) -> str:
    """The signal and the line of code in a traceback of faulthandler, in words."""
    fatal = re.match(r"Fatal Python error: (.{1,80})", trace)
    place = re.search(
        r'Current thread .*\n  File "(?:.*[/\\])?(.{1,80}?)", line (\d+) in (.{1,80})', trace
    )
    signal_words = f": {fatal[1]}" if fatal else ""
    return signal_words + (f", in {place[3]} ({place[1]}, line {place[2]})" if place else "")


class CrashGuard:
    """Counts, per worker, seats that did not end in order; each makes the next one wait longer, up
    to five seconds. Its file exists while a seat does: the count, the run, how the seat ended, and
    Python's traceback if the process crashes.
    """

    def __init__(self, name: str) -> None:
        safe = "".join(letter if letter.isalnum() else "_" for letter in name)[:80] or "worker"
        folder = host_private_directory()
        self._path = folder / f"{safe}.seat" if folder else None
        self._file: TextIO | None = None  # open while the seat lasts
        self._head, self._keeps_traces = "", False

    def begin_seat(self, run: str, *, keeps_traces: bool) -> tuple[float, str, str]:
        """Note that a seat begins. Returns seconds to wait first, how the last seat ended, and the
        traceback that it left, if it was in the same run.
        """
        if self._path is None:
            return 0.0, "", ""
        count, how, trace = 0, "", ""
        with suppress(OSError):
            if self._path.exists():
                text = self._path.read_text(errors="replace")[:MAX_TRACE]
                head, _, trace = text.partition("\n")
                number, owner, how = (*head.split(" ", 2), "", "")[:3]
                count = int(number) if number.isdigit() else 0
                trace = trace if owner == run else ""
            self._head = f"{min(count + 1, 9)} {run} "
            self._file = self._path.open("w")
            self._file.write(f"{self._head}crashed or was killed\n")
            self._file.flush()
            if keeps_traces and not faulthandler.is_enabled():
                faulthandler.enable(self._file)
                self._keeps_traces = True
        return float(min(MOST_WAIT, 2 ** (count - 1))) if count else 0.0, how, trace

    def end_seat(self, reason: str = "") -> None:
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


def leave_at_once(control: EpisodeControl, *_: object) -> None:
    """RQ's alarm: the job's time is over, which is no failure of an episode."""
    control.leave("the time of its RQ job is over")
    raise Leaving


# --- before the first claim


def join(
    config: RunConfig,
    control: EpisodeControl,
    noise_folder: Path | None = None,
    table: NoiseTable | None = None,
) -> Player:
    """Build the player of a resolved config. Raises Refusal or EnvironmentFailure in one
    sentence.
    """
    if module := refused_module(named_modules(config), INSTALLED):
        raise Refusal(
            f"custom code: the run names the module {module[:80]}, which is not allowed here: "
            f"install its package on this host, or start this worker with {ALLOW}={INSTALLED},"
            f"{module[:80]}"
        )
    request = EnvironmentRequest.of(config)
    control.begin_episode({})  # an environment may hang when it is made
    try:
        spec = describe(request)
        policy = make_policy(
            *(config, spec.observation_size, spec.action, spec.observation_shape),
            make_reference_batch(config),
        )
        limit_blas_threads()  # also those of libraries that a user's policy has imported
        env, envs = open_environment(request), open_vector_environment(request)
        player = Player(config, spec, policy, env, envs, control=control)
        _ = player.strategy  # made now, so that a setting that it refuses is known
        player.numerics, player.backend = fingerprint(player), resolve_backend(spec.backend)
        portable = portable_request(request)
        if portable != request:  # it must play the same bits as the requested back end
            env.close()
            player.env = open_environment(portable)
            if fingerprint(player) != player.numerics:
                raise Refusal(
                    f"back ends: {spec.backend} and {portable.backend} play different "
                    f"episodes of {config.problem} here: compare this host's packages, or use "
                    f"--backend {portable.backend}"
                )
    # This host lacks something, such as a module with the user's strategy.
    except (UsageError, MissingPackage) as error:
        raise Refusal(str(error)) from None
    finally:
        control.end_episode()
    player.noise = table or NoiseTable.open(config.noise_size, noise_folder)
    return player


def fingerprint(player: Player) -> str:
    """Digest of a fixed policy's fixed episode, played twice with another episode between.

    Raises EnvironmentFailure if the two differ, unless the config allows it: a slot's result would
    then depend on the worker and the time.
    """
    config = player.config
    parameters = player.policy.initial(initial_parameters_seed(config.seed), "normal")
    traces = [episode_trace(player, parameters, seed) for seed in CHECK_SEEDS]
    if traces[0] != traces[2] and not config.allow_nondeterministic:
        cure = (
            "take seed as the second argument, and draw all randomness from it"
            if config.objective
            else "seed all its randomness in reset"
        )
        raise EnvironmentFailure(
            f"{config.problem} does not repeat itself: the same seed and actions gave different "
            f"episodes; {cure}, or use --allow-nondeterministic and lose reproducible results"
        )
    return bytes_digest(traces[0])


def episode_trace(player: Player, parameters: np.ndarray, seed: int) -> bytes:
    """The bytes of an episode's observations, outputs and rewards, or of its failure. Raises
    Leaving.
    """
    trace, policy = list[bytes](), player.policy
    act = policy.bind(parameters[None]).begin()
    player.control.begin_episode({"seed": seed})

    def traced_act(observation: np.ndarray) -> np.ndarray:
        outputs = act(observation)
        seen = observation if policy.numbers is None else observation[policy.numbers]
        trace.append(seen.tobytes() + outputs.tobytes())
        return outputs

    actions = ActionMap(player.spec.action, player.config.action_bound)
    rules = evaluation_rules(CHECK_STEPS)
    with np.errstate(all="ignore"):
        try:
            with exits_refused():
                episode = play_episode(player.env, traced_act, actions, rules, seed, player.control)
        except Leaving:
            raise
        # The worker joins all the same: the failure of a slot is counted and reported.
        except Exception as error:
            return b"".join(trace) + type(error).__name__.encode()
    return b"".join(trace) + np.float64(episode.total).tobytes()


def validate_admission(store: WorkerStore, player: Player) -> None:
    """Refuse before the first claim for the same reasons as ``load_task``, and with other
    arithmetic under --strict.
    """
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
    """The run's settings, and why this es-queue cannot read them (the settings are then the
    defaults).
    """
    try:
        return RunConfig.from_json(raw), ""
    except UsageError as error:
        return RunConfig(), (
            f"settings: es-queue {__version__} here cannot read the run's ({error}): install the "
            "master's version"
        )
