"""The run itself, with the lease in hand: train to the end, and leave everything as it should be
left.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Protocol

from es_queue.config.run_config import ASYNC
from es_queue.environments.observation_layout import format_parts
from es_queue.errors import DecodeError, EnvironmentFailure, FencedError, StrategyFailure
from es_queue.protocol import keys
from es_queue.protocol.channel import FAILED, FINISHED, PAUSED, RUNNING, STOPPED
from es_queue.protocol.connection import clone_client
from es_queue.protocol.messages import Task
from es_queue.protocol.redis_channel import RedisMasterChannel
from es_queue.protocol.retry import Retry
from es_queue.security.sanitize import sanitize
from es_queue.util.command_path import format_command
from master.collect.blocks.block_publisher import MasterLease
from master.collect.blocks.block_scheduler import make_scheduler
from master.collect.collector import Collector, Interrupted, TrustRules
from master.collect.recovery_statistics import TAKEOVER
from master.collect.verification import Verification
from master.collect.verifier import VerificationError, Verifier
from master.collect.worker_watch import CollectorCallbacks
from master.control.inbox import ControlInbox
from master.display.video_jobs import LAST_VIDEO_SECONDS, VideoJobs
from master.fleet.seat_manager import SeatManager
from master.loop.asynchronous import ASYNC_LABEL
from master.loop.config_timeline import ConfigTimeline
from master.loop.generation_loop import make_loop
from master.loop.learner import Record
from master.loop.listeners import Outcome, RunFiles, Sink
from master.loop.messages import vector_digest
from master.loop.publisher import RunIdentity
from master.loop.state import FINAL, RunState
from master.run.lease import LeaseRenewal
from master.run.run_paths import RunPaths
from master.run.run_services import LeaseClaim, Services
from master.run.setup import Setup
from master.services.maintenance import Maintenance
from master.services.start_lines import redis_flag, start_lines
from master.storage.checkpoint import Checkpoints, write_atomically
from master.storage.replay_log import ReplayLog
from master.storage.slot_files import SlotFiles

#: A master that goes waits no longer for a Redis that is away: its lease lapses by itself.
LEAVE_SECONDS = 5.0
#: Reports of workers that are kept in the folder of a run that its environment has ended, a JSON
#: text a line.
ERROR_REPORTS_FILE = "errors.jsonl"
LONGEST_REPORT = 64 * 2**10
#: Between two signs of life while the master computes its fingerprint.
SIGN_SECONDS = 0.2


class RunView(Sink, Protocol):
    """What a session says besides: ``Reporter`` for the command line, less for Python."""

    def started(self, about: dict[str, str]) -> None: ...

    def summary(self, record: Record) -> None: ...


class TrainingRun:
    """The run itself, with the lease in hand."""

    def __init__(
        self,
        services: Services,
        paths: RunPaths,
        setup: Setup,
        view: RunView,
        claim: LeaseClaim,
        keep_going: Callable[[Record], bool],
        is_resumed: bool = False,
    ) -> None:
        self._services, self._paths, self._setup, self._view = services, paths, setup, view
        channel = RedisMasterChannel(
            services.client, paths.run, Retry(on_outage=self._handle_outage)
        )
        self._channel = channel
        self._claim, self._is_resumed = claim, is_resumed
        self._start_time = time.monotonic()
        self._checkpoints = Checkpoints(paths.run_dir)
        config, clocks, launch = setup.config, services.clocks, services.launch
        timeout = int(clocks.seat_lease + config.wall_limit + clocks.seat_margin)
        self._seat_manager = SeatManager(
            services.client,
            launch.queue,
            paths.run,
            secrets.token_hex(3),
            timeout,
            view.note,
            channel.record_failure,
        )
        self._own_client = clone_client(services.client)
        self._renewal = LeaseRenewal(
            RedisMasterChannel(self._own_client, paths.run, Retry(clocks.renew)),
            claim.token,
            claim.holder,
            clocks,
        )
        maintenance = Maintenance(services.supervisor, self._seat_manager, view.note)
        self._maintenance, self._is_ended = maintenance, False
        self._inbox = ControlInbox(
            channel, view.note, ConfigTimeline(setup.learner).refusal, self._location_flags()
        )
        self._verifier = Verifier(config, launch.noise_dir)
        # Only the master's own workers have the password of a private server.
        shared = services.private_server is None or launch.listen is not None
        verification = Verification(self._verifier, view.note) if shared else None
        self._collector = Collector(
            MasterLease(channel, claim.token, claim.holder, clocks),
            make_scheduler(config, setup.strategy.per_slot, setup.policy.size),
            CollectorCallbacks(view.note, self._live, services.stop.is_interrupted, maintenance),
            self._inbox,
            TrustRules(config.audit, config.strict, verification),
            {"queue": launch.queue},
        )
        self._replay_log = ReplayLog(paths.run_dir)
        self._video_jobs = VideoJobs(paths.run_dir, launch.video_every, launch.noise_dir, view.note)
        slot_files = SlotFiles(
            paths.run, paths.run_dir, config.keep_generations, reader=self._video_jobs
        )
        self._loop = make_loop(
            RunIdentity(paths.run, claim.token, setup.table.digest),
            setup.learner,
            self._collector,
            view,
            RunFiles(self._checkpoints, self._replay_log, slot_files),
            self._with_table_check(keep_going),
        )

    def _with_table_check(self, keep_going: Callable[[Record], bool]) -> Callable[[Record], bool]:
        """The same, with a look at the noise table now and then."""

        def checked(record: Record) -> bool:
            if changed := self._setup.table.recheck():
                self._view.note(changed)
            return keep_going(record)

        return checked

    def adoptable_publication(self, state: RunState) -> str | None:
        """The open publication, when it is whole and of exactly this state's parameters."""
        stored = self._channel.stored_run()[1]
        stored_state = self._channel.renew(
            self._claim.token, self._claim.holder, self._services.clocks.lease, {}, {}
        )
        try:
            task = Task.decode(stored) if stored is not None else None
        except DecodeError:
            return None
        vector = self._setup.strategy.published(state.strategy)
        if (
            task is None
            or state.stage == FINAL
            or task.generation != state.generation
            or task.noise != self._setup.table.digest
        ):
            return None
        if stored_state.publication != task.publication or not stored_state.is_complete:
            return None
        return task.publication if task.digest == vector_digest(vector) else None

    def run(
        self, state: RunState, adopted: str | None, former_state: str | None = None
    ) -> dict[str, Any]:
        """Train to the end, or leave a run that can be resumed, whatever ends it; the error itself
        is what is raised.

        former_state: the run's state as its last master left it; a paused run stays so. Interrupted
        before the first publish it raises KeyboardInterrupt: there is nothing to go on with.
        """
        self._services.stop.start_looping()
        self._renewal.show_sign()
        self._renewal.start()
        film_seconds = 0.0  # nobody who ends a run early waits for its film
        try:
            self._view.started(self._start_information(state))
            self._inbox.begin(
                state.changes, former_state, self._channel.progress_field("paused_by")
            )
            if former_state in (RUNNING, PAUSED):  # its master was killed
                self._collector.context.recoveries.record_recovery(
                    TAKEOVER, time.monotonic() - self._start_time
                )
            self._fix_fingerprint()
            outcome = self._loop.run(state, adopted)
            film_seconds = LAST_VIDEO_SECONDS
            return self._finish_completed(outcome)
        except Interrupted:
            if self._loop.current_or_none() is not None:
                return self._finish_stopped()
            self._finish_early(STOPPED)
            raise KeyboardInterrupt from None
        except FencedError:
            raise
        except KeyboardInterrupt:
            self._finish_early(STOPPED)
            raise
        except (EnvironmentFailure, StrategyFailure) as error:
            explained = type(error)(f"{error}{self._save_error_reports()}")
            self._finish_early(FAILED, why=sanitize(error, 300))
            raise explained from None
        except BaseException as error:
            self._finish_early(FAILED, why=sanitize(str(error) or type(error).__name__, 300))
            raise
        finally:
            self._renewal.end(LEAVE_SECONDS)
            self._own_client.close()
            self._replay_log.close()
            self._verifier.close()
            self._video_jobs.close(film_seconds)

    def _fix_fingerprint(self) -> None:
        """Under --strict, the run's fingerprint is this host's, wherever somebody else's workers
        can join.
        """
        if not self._setup.config.strict or self._collector.verification is None:
            return
        asked = self._verifier.fingerprint()
        while not wait([asked], SIGN_SECONDS).done:
            self._renewal.show_sign()
            if self._services.stop.is_interrupted():
                raise Interrupted
        try:
            self._collector.fleet.fix(asked.result().numerics)
        except VerificationError as error:
            raise EnvironmentFailure(
                f"--strict: the master cannot compute the run's fingerprint on its host ({error}): "
                "make the environment play there, or leave out --strict"
            ) from None

    def _save_error_reports(self) -> str:
        """Where the newest tracebacks of workers are, for the end of a sentence: a private server
        ends with its run.
        """
        self._channel.retry.give_up_after(LEAVE_SECONDS)
        path = self._paths.run_dir / ERROR_REPORTS_FILE
        with suppress(Exception):
            reports = self._channel.errors()
            if reports:
                write_atomically(
                    path, "".join(f"{format_report(report)}\n" for report in reports).encode()
                )
                return f"; the newest {len(reports)} reports of workers are in {path}"
        return ""

    def _live(self, figures: Record) -> None:
        """Once a second, while answers are awaited."""
        self._renewal.show_sign()
        self._view.live(figures)

    def _handle_outage(self, seconds: float) -> None:
        """Redis did not answer; a person need not wait until it does."""
        self._renewal.show_sign()
        if self._services.stop.is_looping and self._services.stop.is_interrupted():
            raise Interrupted
        self._maintenance.handle_outage(seconds, self._channel.retry.last_error)

    def _start_information(self, state: RunState) -> dict[str, str]:
        services = self._services
        lines = start_lines(
            services.url,
            services.launch.queue,
            self._paths.run_dir,
            services.private_server,
            self._paths.run,
        )
        about = {**lines, "seed": str(self._setup.config.seed)}
        if self._setup.config.schedule == ASYNC:
            about["schedule"] = ASYNC_LABEL
        if self._setup.spec.observation is not None:
            about["observes"] = format_parts(self._setup.spec.observation_parts)
        if state.origin:
            about["begun with"] = state.origin
        if self._is_resumed:
            about["resumed"] = (
                f"generation {state.generation}, {state.counters.env_steps:,} steps done"
            )
        return about

    def _location_flags(self) -> str:
        """The flags by which another terminal finds the run."""
        if self._services.private_server is None:
            return redis_flag(self._services.url, "--redis-url")
        return "" if self._services.launch.run_dir is None else f" --run-dir {self._paths.run_dir}"

    # --- ends

    def _finish_stopped(self) -> dict[str, Any]:
        """Ctrl-C: nothing is lost, and the way back is said."""
        state, data = self._loop.current()
        try:
            path = self._checkpoints.save(state.generation, data)
        finally:
            self._finish_early(STOPPED)
        summary = self._make_summary(STOPPED, state, None)
        self._view.summary(summary)
        url = (
            ""
            if self._services.private_server is not None
            else redis_flag(self._services.url, "--redis-url")
        )
        folder = (
            f" --run-dir {self._paths.run_dir}" if self._services.launch.run_dir is not None else ""
        )
        listen_flag = "" if self._services.launch.listen is None else " --listen"
        command = (
            f"{format_command('es-master')} --resume {self._paths.run}{folder}{url}{listen_flag}"
        )
        self._view.note(
            f"stopped at generation {state.generation}, checkpoint {path}; go on with: {command}"
        )
        return summary

    def _finish_early(self, name: str, why: str | None = None) -> None:
        """Keep what can be resumed, and let workers go; nothing that fails here hides why
        we leave.
        """
        if self._is_ended:
            return
        self._channel.retry.give_up_after(LEAVE_SECONDS)
        current = self._loop.current_or_none()
        if current is not None:
            with suppress(Exception):
                self._checkpoints.save(current[0].generation, current[1])
        unused = current is None and name == STOPPED and not self._is_resumed
        with suppress(Exception):
            self._mark_ended(
                name,
                0 if unused else keys.RUN_SECONDS,
                None if current is None else current[1],
                why=why,
            )

    def _finish_completed(self, outcome: Outcome) -> dict[str, Any]:
        current = self._loop.current_or_none()
        if current is not None:  # a finished run that plays nothing more has published nothing
            self._checkpoints.save(current[0].generation, current[1])
        summary = self._make_summary(FINISHED, outcome.state, outcome)
        write_atomically(
            self._paths.run_dir / "summary.json", json.dumps(summary, indent=2).encode()
        )
        final = {
            name: summary[name] for name in ("eval_mean", "eval_std", "eval_min", "eval_episodes")
        }
        with suppress(Exception):
            self._inbox.discard_all()
        self._mark_ended(FINISHED, keys.FINISHED_SECONDS, None, **final)
        self._view.summary(summary)
        return summary

    def _mark_ended(self, state: str, seconds: int, data: bytes | None, **more: Any) -> None:
        self._renewal.end(LEAVE_SECONDS)  # a renewal after the end would take the lease again
        texts = {name: str(value) for name, value in more.items() if value is not None}
        self._channel.finish(
            self._claim.token,
            {
                "state": state,
                "updated": f"{time.time():.3f}",
                "workers": "0",
                "answered": "",
                **texts,
            },
            seconds,
            data,
        )
        self._is_ended = True
        with suppress(
            Exception
        ):  # after the fenced write: the seats may be another master's by now
            self._seat_manager.close_open_seats()
            self._seat_manager.clear_registries()

    def _make_summary(self, name: str, state: RunState, outcome: Outcome | None) -> dict[str, Any]:
        figures = outcome.evaluation if outcome else None
        vector = self._setup.strategy.published(state.strategy)
        best = self._checkpoints.best_path
        return {
            "state": name,
            "reason": state.reason,
            "run": self._paths.run,
            "run_dir": str(self._paths.run_dir),
            "digest": vector_digest(self._setup.strategy.digest_input(state.strategy, vector)),
            "generation": state.generation,
            "env_steps": state.counters.env_steps,
            "episodes": state.counters.episodes,
            "seconds": round(state.counters.seconds, 3),
            "eval_mean": figures.mean if figures else None,
            "eval_std": figures.std if figures else None,
            "eval_min": figures.minimum if figures else None,
            "eval_episodes": figures.count if figures else None,
            "confirm_mean": state.confirm_mean,
            "reproducible": state.reproducible,
            "quarantined": sorted(map(str, self._collector.fleet.quarantined)),
            "seed": self._setup.config.seed,
            "best_checkpoint": str(best) if best.exists() else None,
            "last_checkpoint": str(self._checkpoints.last_path)
            if self._checkpoints.last_path
            else None,
        }


def format_report(text: str) -> str:
    """A worker's report as one line of JSON in ASCII; what is none, or too long, as a JSON text."""
    try:
        report = json.loads(text) if len(text) <= LONGEST_REPORT else text[:LONGEST_REPORT]
    except (ValueError, RecursionError):
        report = text
    return json.dumps(report)
