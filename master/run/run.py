"""The run itself, once the lease is held: from its first generation here to its end.

It finishes, or stops or fails with all that a resume needs.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from es_queue.command_line import format_command
from es_queue.config.run_config import ASYNC
from es_queue.environments.interface import format_parts
from es_queue.errors import DecodeError, EnvironmentFailure, FencedError, StrategyFailure
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol import keys
from es_queue.protocol.connection import Retry, clone_client, redacted_url
from es_queue.protocol.keys import FAILED, FINISHED, PAUSED, RUNNING, STOPPED
from es_queue.protocol.messages import Task
from es_queue.protocol.store import MasterStore
from es_queue.run_folder import ERROR_REPORTS_FILE, FAILURE_FILE
from es_queue.text import sanitize
from es_queue.user_code import loose_modules
from master.control.inbox import ControlInbox
from master.display.log_view import RunView
from master.display.video_jobs import LAST_VIDEO_SECONDS, VideoJobs
from master.fleet.seat_manager import SeatManager
from master.loop.audit import Audit
from master.loop.config_timeline import ConfigTimeline
from master.loop.listeners import CheckpointWriter, Outcome, ViewListener
from master.loop.loop import (
    ASYNC_LABEL,
    Interrupted,
    Master,
    Unserved,
    for_redis,
    run_digest,
)
from master.loop.recovery_statistics import TAKEOVER
from master.loop.state import ENDING, RunState, vector_digest
from master.loop.workers import Maintain, Workers
from master.run.lease import LeaseRenewal
from master.run.run_services import OwnServices, RunContext, StopSignal
from master.services.start_lines import start_lines
from master.status.figures import Record
from master.storage.checkpoint import Checkpoints, write_atomically
from master.storage.generation_store import GenerationStore

LOGGER = logging.getLogger("es_queue.run")
#: A master that leaves waits no longer for a Redis that is away: its lease lapses by itself.
LEAVE_SECONDS = 5.0
LONGEST_REPORT = 64 * 2**10
#: Why a run stops, in its summary, if its time is up and its evaluations must wait for a worker.
UNSERVED = "max_seconds, and no worker for the final evaluation"
NOTE_AFTER_SECONDS = 2.0


class OutageHandler:
    """Keeps the master responsive in an outage: shows a sign of life, checks its server, and obeys
    requests to stop.

    retry: of the master's own commands
    """

    def __init__(self, renewal: LeaseRenewal, stop: StopSignal, own: OwnServices) -> None:
        self._renewal, self._stop, self._own = renewal, stop, own
        self.retry = Retry(on_outage=self._handle)

    def _handle(self, seconds: float) -> None:
        self._renewal.show_sign()
        if self._stop.is_looping and self._stop.is_interrupted():
            raise Interrupted
        if not self._own.restart_ended() and seconds > NOTE_AFTER_SECONDS:
            why = self.retry.last_error
            LOGGER.warning(
                f"Redis refuses commands ({why}); trying again"
                if why
                else "Redis does not answer; trying again"
            )


class TrainingRun:
    def __init__(self, context: RunContext, keep_going: Callable[[Record], bool]) -> None:
        services, paths, setup = context.services, context.paths, context.setup
        claim = context.claim
        config, clocks, launch = setup.config, services.clocks, services.launch
        self._context, self._start_time = context, time.monotonic()
        self._resources = ExitStack()
        own_client = self._resources.enter_context(clone_client(services.client))
        own_channel = MasterStore(own_client, paths.run, Retry(clocks.renew))
        self._renewal = LeaseRenewal(own_channel, claim.token, claim.holder, clocks)
        outages = OutageHandler(self._renewal, services.stop, services.own)
        self._channel = MasterStore(services.client, paths.run, outages.retry)
        timeout = int(clocks.seat_lease + config.wall_limit + clocks.seat_margin)
        self._seat_manager = SeatManager(
            services.client,
            launch.queue,
            paths.run,
            secrets.token_hex(3),
            timeout,
            self._channel.record_failure,
        )
        audit = Audit(config, launch.noise_dir) if config.audit else None
        if audit is not None:
            self._resources.callback(audit.close)
        timeline = ConfigTimeline(setup.learner)
        self._inbox = ControlInbox(self._channel, timeline.refusal, context.run_words)
        workers = Workers(
            self._channel,
            clocks,
            strict=config.strict,
            local=services.own.count,
            maintain=keep_services(services.own, self._seat_manager, self._channel),
        )
        self._video_jobs = VideoJobs(paths.run_dir, launch.video_every, launch.noise_dir)
        store = GenerationStore(paths.run, paths.run_dir, config.keep_generations, self._video_jobs)
        self._resources.callback(store.log.close)
        self._checkpoints = Checkpoints(paths.run_dir, config.snapshot_every)
        writer = CheckpointWriter(self._checkpoints, paths.run)
        self._master = Master(
            timeline,
            self._channel,
            claim.token,
            claim.holder,
            setup.table.digest,
            clocks,
            workers,
            self._inbox,
            queue=launch.queue,
            listeners=(writer, store, ViewListener(context.view)),
            audit=audit,
            show_live=show_live_figures(context.view, self._renewal),
            is_interrupted=services.stop.is_interrupted,
            keep_going=with_table_check(setup.table, keep_going),
        )
        self._failure_file = paths.run_dir / FAILURE_FILE
        self._is_ended = False

    def run(self, state: RunState) -> dict[str, Any]:
        """Train to the end, or leave a run that can be resumed, and raise the error that ended it.

        Raises KeyboardInterrupt if interrupted before the first publish, when there is nothing to
        resume.
        """
        context = self._context
        context.services.stop.start_looping()
        with suppress(OSError):
            self._failure_file.unlink(missing_ok=True)
        self._renewal.show_sign()
        self._renewal.start()
        film_seconds = 0.0  # a run that ends early does not wait for its film
        try:
            context.view.started(start_information(context, state))
            adopted = self._take_up(state)
            outcome = self._master.train(state, adopted)
            film_seconds = LAST_VIDEO_SECONDS
            return self._finish_completed(outcome)
        except Unserved:
            return self._finish_stopped(is_unserved=True)
        except Interrupted:
            return self._finish_stopped()
        except FencedError:
            raise
        except KeyboardInterrupt:
            self._finish_early(STOPPED)
            raise
        except (EnvironmentFailure, StrategyFailure) as error:
            explained = type(error)(f"{error}{self._save_error_reports()}")
            self._finish_failed(error)
            raise explained from None
        except BaseException as error:
            self._finish_failed(error)
            raise
        finally:
            self._renewal.end(LEAVE_SECONDS)
            self._resources.close()
            self._video_jobs.close(film_seconds)

    def _take_up(self, state: RunState) -> Task | None:
        """Continue from the last master's state; returns the header that it left open, if that can
        be adopted. A paused run stays paused.
        """
        is_resumed, inbox = self._context.is_resumed, self._inbox
        adopted = self._adoptable_publication(state) if is_resumed else None
        former_state = self._channel.state() if is_resumed else None
        inbox.begin(state.changes, former_state, self._channel.progress_field("paused_by"))
        if former_state in (RUNNING, PAUSED):  # its master was killed
            self._master.recoveries.record(TAKEOVER, time.monotonic() - self._start_time)
        return adopted

    def _adoptable_publication(self, state: RunState) -> Task | None:
        """The open publication, if it is complete and of exactly this state's parameters."""
        claim, setup = self._context.claim, self._context.setup
        stored = self._channel.stored_run()[1]
        lease = self._context.services.clocks.lease
        look = self._channel.look(claim.token, claim.holder, lease, {}, grace=True)
        try:
            task = Task.decode(stored) if stored is not None else None
        except DecodeError:
            return None
        vector = setup.strategy.published(state.strategy)
        is_adoptable = (
            task is not None
            and state.stage != ENDING
            and (task.generation, task.noise) == (state.generation, setup.table.digest)
            and look.publication == task.publication
            and task.digest == vector_digest(vector)
        )
        return task if is_adoptable else None

    # --- ends

    def _finish_stopped(self, *, is_unserved: bool = False) -> dict[str, Any]:
        """End a run without loss: on request, or because no worker is there for its final
        evaluation. Raises KeyboardInterrupt before the first publication, because there is nothing
        to resume.
        """
        generation, context = self._master.current, self._context
        if generation is None:
            self._finish_early(STOPPED)
            raise KeyboardInterrupt
        state = generation.state
        try:
            path = self._checkpoints.save(state.generation, generation.checkpoint)
        finally:
            self._finish_early(STOPPED, why=UNSERVED if is_unserved else None)
        summary = self._make_summary(STOPPED, state, None)
        if is_unserved:
            summary |= {"reason": UNSERVED, "interrupted": False}
        context.view.summary(summary)
        listen_flag = "" if context.services.launch.listen is None else " --listen"
        resume = f"{format_command('es-master')} --resume {context.run_words}{listen_flag}"
        if is_unserved:
            LOGGER.warning(
                "--max-seconds has passed, and no worker was there for the final evaluation: "
                f"start one and continue with {resume}, or play the policy here with "
                f"{format_command('es-play')} {path}"
            )
        else:
            LOGGER.info(
                f"stopped at generation {state.generation}, checkpoint {path}; continue with: "
                f"{resume}"
            )
        return summary

    def _finish_failed(self, error: BaseException) -> None:
        why = sanitize(str(error) or type(error).__name__, 300)
        self._finish_early(FAILED, why=why)
        with suppress(Exception):
            write_atomically(self._failure_file, json.dumps({"why": why}).encode())

    def _finish_early(self, name: str, why: str | None = None) -> None:
        """A failure here does not hide why the run ends."""
        if self._is_ended:
            return
        self._channel.retry.give_up_after(LEAVE_SECONDS)
        generation, data = self._master.current, None
        if generation is not None:
            data = for_redis(generation.checkpoint)
            with suppress(Exception):
                self._checkpoints.save(generation.state.generation, generation.checkpoint)
        unused = generation is None and name == STOPPED and not self._context.is_resumed
        with suppress(Exception):
            self._mark_ended(name, 0 if unused else keys.RUN_SECONDS, data, why=why)

    def _finish_completed(self, outcome: Outcome) -> dict[str, Any]:
        generation = self._master.current
        if generation is not None:  # a finished run that plays nothing more has published nothing
            self._checkpoints.save(generation.state.generation, generation.checkpoint)
        summary = self._make_summary(FINISHED, outcome.state, outcome)
        write_atomically(
            self._context.paths.run_dir / "summary.json", json.dumps(summary, indent=2).encode()
        )
        with suppress(Exception):
            self._inbox.discard_all()
        names = ("eval_mean", "eval_std", "eval_min", "eval_episodes")
        final = {name: summary[name] for name in names}
        self._mark_ended(FINISHED, keys.FINISHED_SECONDS, None, **final)
        self._context.view.summary(summary)
        return summary

    def _mark_ended(self, state: str, seconds: int, data: bytes | None, **more: Any) -> None:
        self._renewal.end(LEAVE_SECONDS)  # a renewal after the end would take the lease again
        texts = {name: str(value) for name, value in more.items() if value is not None}
        ended = {"state": state, "updated": f"{time.time():.3f}", "workers": "0", "answered": ""}
        token, refused = self._context.claim.token, self._master.refused()
        self._channel.finish(token, {**ended, **texts}, seconds, data, refused)
        self._is_ended = True
        self._save_error_reports()
        # After the fenced write: the seats may be another master's by now.
        with suppress(Exception):
            self._seat_manager.close_open_seats()
            self._seat_manager.clear_registries()

    def _save_error_reports(self) -> str:
        """Save workers' newest tracebacks, because a private server ends with its run; returns
        their place, for the end of a sentence.
        """
        self._channel.retry.give_up_after(LEAVE_SECONDS)
        path = self._context.paths.run_dir / ERROR_REPORTS_FILE
        with suppress(Exception):
            if reports := self._channel.errors():
                lines = "".join(f"{format_report(report)}\n" for report in reports)
                write_atomically(path, lines.encode())
                return f"; the newest {len(reports)} reports of workers are in {path}"
        return ""

    def _make_summary(self, name: str, state: RunState, outcome: Outcome | None) -> dict[str, Any]:
        setup, paths, counters = self._context.setup, self._context.paths, state.counters
        figures = outcome.evaluation if outcome else None
        best, last = self._checkpoints.best_path, self._checkpoints.last_path
        return {
            "state": name,
            "interrupted": name == STOPPED,
            "reason": state.reason,
            "run": paths.run,
            "run_dir": str(paths.run_dir),
            "digest": run_digest(state, setup.strategy),
            "generation": state.generation,
            "env_steps": counters.env_steps,
            "episodes": counters.episodes,
            "seconds": round(counters.seconds, 3),
            "eval_mean": figures.mean if figures else None,
            "eval_std": figures.std if figures else None,
            "eval_min": figures.minimum if figures else None,
            "eval_episodes": figures.count if figures else None,
            "confirm_mean": state.confirm_mean,
            "reproducible": state.reproducible,
            "seed": setup.config.seed,
            "best_checkpoint": str(best) if best.exists() else None,
            "last_checkpoint": str(last) if last else None,
        }


def format_report(text: str) -> str:
    """A worker's report as one line of ASCII JSON; an invalid or long one as a JSON string."""
    try:
        report = json.loads(text) if len(text) <= LONGEST_REPORT else text[:LONGEST_REPORT]
    except (ValueError, RecursionError):
        report = text
    return json.dumps(report)


def show_live_figures(view: RunView, renewal: LeaseRenewal) -> Callable[[Record], None]:
    """Called once per second while results are awaited."""

    def show(figures: Record) -> None:
        renewal.show_sign()
        view.live(figures)

    return show


def keep_services(own: OwnServices, seat_manager: SeatManager, channel: MasterStore) -> Maintain:
    def maintain(workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool) -> list[str]:
        own.restart_ended()
        return seat_manager.tick(channel, workers, served, paused)

    return maintain


def with_table_check(
    table: NoiseTable, keep_going: Callable[[Record], bool]
) -> Callable[[Record], bool]:
    """The same, with a check of the noise table at intervals."""

    def check(record: Record) -> bool:
        if changed := table.recheck():
            LOGGER.warning(changed)
        return keep_going(record)

    return check


def start_information(context: RunContext, state: RunState) -> dict[str, str]:
    """Places and commands for the start: watching, joining, and the run's beginning."""
    services, setup = context.services, context.setup
    paths = context.paths
    about = {
        "redis": redacted_url(services.url),
        "folder": str(paths.run_dir),
        "seed": str(setup.config.seed),
        **start_lines(
            services.url,
            services.launch.queue,
            paths.named_run,
            services.own.server,
            loose_modules(setup.config),
            services.launch.redis_password_file,
        ),
    }
    if setup.config.schedule == ASYNC:
        about["schedule"] = ASYNC_LABEL
    if setup.spec.observation is not None:
        about["observes"] = format_parts(setup.spec.observation_parts)
    if state.origin:
        about["begun with"] = state.origin
    if context.is_resumed:
        about["resumed"] = f"generation {state.generation}, {state.counters.env_steps:,} steps done"
    return about
