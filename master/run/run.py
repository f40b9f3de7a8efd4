"""The run itself, once the lease is held: from its first generation here to its end."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from es_queue.config.run_config import ASYNC
from es_queue.environments.observation_layout import format_parts
from es_queue.errors import DecodeError, EnvironmentFailure, FencedError, StrategyFailure
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.connection import clone_client, redacted_url
from es_queue.protocol.keys import PAUSED, RUNNING, STOPPED
from es_queue.protocol.messages import Task
from es_queue.protocol.retry import Retry
from es_queue.protocol.store import MasterStore
from es_queue.security.user_code import loose_modules
from master.control.inbox import ControlInbox
from master.display.format import Record
from master.display.video_jobs import LAST_VIDEO_SECONDS, VideoJobs
from master.fleet.seat_manager import SeatManager
from master.loop.audit import Audit
from master.loop.config_timeline import ConfigTimeline
from master.loop.listeners import CheckpointWriter, SinkListener
from master.loop.loop import ASYNC_LABEL, Interrupted, Master, Unserved
from master.loop.recovery_statistics import TAKEOVER
from master.loop.state import FINAL, RunState, vector_digest
from master.loop.workers import Maintain, Workers
from master.run.ending import RunEnding
from master.run.lease import LeaseRenewal
from master.run.run_services import RunContext, RunView, StopSignal
from master.run.supervisor_client import SupervisorWatch
from master.services.start_lines import start_lines
from master.storage.checkpoint import Checkpoints
from master.storage.generation_store import GenerationStore

LOGGER = logging.getLogger("es_queue.run")


class OutageHandler:
    """Keeps the master responsive in an outage: shows a sign of life, checks its server, and obeys
    requests to stop.

    retry: of the master's own commands
    """

    def __init__(self, renewal: LeaseRenewal, stop: StopSignal, watch: SupervisorWatch) -> None:
        self._renewal, self._stop, self._watch = renewal, stop, watch
        self.retry = Retry(on_outage=self._handle)

    def _handle(self, seconds: float) -> None:
        self._renewal.show_sign()
        if self._stop.is_looping and self._stop.is_interrupted():
            raise Interrupted
        self._watch.handle_outage(seconds, self.retry.last_error)


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
        watch = SupervisorWatch(services.supervisor)
        outages = OutageHandler(self._renewal, services.stop, watch)
        self._channel = MasterStore(services.client, paths.run, outages.retry)
        timeout = int(clocks.seat_lease + config.wall_limit + clocks.seat_margin)
        seat_manager = SeatManager(
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
            local=services.local_workers,
            maintain=keep_services(watch, seat_manager, self._channel),
        )
        self._video_jobs = VideoJobs(paths.run_dir, launch.video_every, launch.noise_dir)
        store = GenerationStore(paths.run, paths.run_dir, config.keep_generations, self._video_jobs)
        self._resources.callback(store.log.close)
        checkpoints = Checkpoints(paths.run_dir, config.snapshot_every)
        writer = CheckpointWriter(checkpoints, paths.run)
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
            listeners=(writer, store, SinkListener(context.view)),
            audit=audit,
            show_live=show_live_figures(context.view, self._renewal),
            is_interrupted=services.stop.is_interrupted,
            keep_going=with_table_check(setup.table, keep_going),
        )
        self._ending = RunEnding(
            context,
            self._channel,
            self._renewal,
            seat_manager,
            self._inbox,
            self._master,
            checkpoints,
        )

    def run(self, state: RunState) -> dict[str, Any]:
        """Train to the end, or leave a run that can be resumed, and raise the error that ended it.

        Raises KeyboardInterrupt if interrupted before the first publish, when there is nothing to
        resume.
        """
        context, ending = self._context, self._ending
        context.services.stop.start_looping()
        ending.forget_failure()
        self._renewal.show_sign()
        self._renewal.start()
        film_seconds = 0.0  # nobody who ends a run early waits for its film
        try:
            context.view.started(start_information(context, state))
            adopted = self._take_up(state)
            outcome = self._master.train(state, adopted)
            film_seconds = LAST_VIDEO_SECONDS
            return ending.finish_completed(outcome)
        except Unserved:
            return ending.finish_stopped(is_unserved=True)
        except Interrupted:
            return ending.finish_stopped()
        except FencedError:
            raise
        except KeyboardInterrupt:
            ending.finish_early(STOPPED)
            raise
        except (EnvironmentFailure, StrategyFailure) as error:
            explained = type(error)(f"{error}{ending.save_error_reports()}")
            ending.finish_failed(error)
            raise explained from None
        except BaseException as error:
            ending.finish_failed(error)
            raise
        finally:
            ending.end_renewal()
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
            and state.stage != FINAL
            and (task.generation, task.noise) == (state.generation, setup.table.digest)
            and look.publication == task.publication
            and task.digest == vector_digest(vector)
        )
        return task if is_adoptable else None


def show_live_figures(view: RunView, renewal: LeaseRenewal) -> Callable[[Record], None]:
    """Called once per second while results are awaited."""

    def show(figures: Record) -> None:
        renewal.show_sign()
        view.live(figures)

    return show


def keep_services(
    watch: SupervisorWatch, seat_manager: SeatManager, channel: MasterStore
) -> Maintain:
    def maintain(workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool) -> list[str]:
        watch.check()
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
            services.private_server,
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
