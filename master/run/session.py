"""One es-master process's part in a run: ``Session.run`` is the story, the steps follow in order.

Connect, make a new state or read the newest, take the lease, train, and leave a run that has
finished, or that a resume can continue.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from es_queue.command_line import format_command
from es_queue.config.run_config import ASKED, RunConfig, resumable
from es_queue.config.schedules import ASYNC
from es_queue.environments.interface import format_parts
from es_queue.errors import (
    DecodeError,
    EnvironmentFailure,
    FencedError,
    NoRunError,
    RedisError,
    RunBusyError,
    StrategyFailure,
    UsageError,
)
from es_queue.host import process_limit_hint
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    ANY_ERROR,
    Retry,
    clone_client,
    format_limits,
    redacted_url,
    refused_error,
)
from es_queue.protocol.keys import FAILED, FINISHED, PAUSED, RUNNING, STOPPED, Clocks
from es_queue.protocol.messages import Task
from es_queue.protocol.store import MasterStore
from es_queue.run_folder import (
    ERROR_REPORTS_FILE,
    FAILURE_FILE,
    NamedRun,
    no_run_error,
    snapshots_place,
)
from es_queue.strategies.auto import format_choice
from es_queue.text import sanitize
from es_queue.user_code import allowing, loose_modules, named_modules, require_trust
from master.display.log_view import RunView
from master.display.notes import TERMINAL, NoteHandler
from master.display.video_jobs import LAST_VIDEO_SECONDS, VideoJobs
from master.loop.audit import Audit
from master.loop.checkpoint import Checkpoints, write_atomically
from master.loop.config_timeline import ConfigTimeline, ControlInbox, drop_settings
from master.loop.generation_record import TAKEOVER
from master.loop.listeners import (
    CheckpointWriter,
    Generation,
    Outcome,
    ProgressNote,
    ViewListener,
)
from master.loop.loop import ASYNC_LABEL, Interrupted, Master, Unserved, run_digest
from master.loop.state import ENDING, RunState, vector_digest
from master.loop.workers import Lasting, Workers
from master.run.launch import (
    Launch,
    existing_run,
    new_run,
    prepare_folder,
    remove_new_folder,
)
from master.run.lease import (
    LeaseRenewal,
    holder_name,
    take_lease,
    validate_lease_free,
    wait_for_free_run,
)
from master.run.manifest import write_manifest
from master.run.open_seats import Seats
from master.run.setup import Setup, new_run_notes, prepare_run, validate_action_bound
from master.run.warm_start import make_warm_state, newest_checkpoint
from master.services.leader import FolderLock, is_own_private
from master.services.local_services import LocalServices, run_words, start_lines
from master.status.figures import Record
from master.status.sources import unknown_run_error
from master.storage.generation_store import GenerationStore

LOGGER = logging.getLogger("es_queue.run")
#: The state of a summary of a standby that was not needed.
NOT_NEEDED = "unneeded"
#: A master that leaves waits no longer for a Redis that is away: its lease lapses by itself.
LEAVE_SECONDS = 5.0
LONGEST_REPORT = 64 * 2**10
#: Why a run stops, in its summary, if its time is up and its evaluations must wait for a worker.
UNSERVED = "no worker for the final evaluation"
NOTE_AFTER_SECONDS = 2.0
BULK_LIMIT = "proto-max-bulk-len"
KeepGoing = Callable[[Record], bool]


class Session:
    """is_looping: whether the run has begun, so that an interrupt ends it in order
    resume_command: the command that continues it, empty before it has begun
    """

    _run: NamedRun
    _url: str
    _client: Any
    _store: MasterStore
    _saved_config: RunConfig
    _setup: Setup
    _view: RunView
    _checkpoints: Checkpoints
    _inbox: ControlInbox
    _lock: FolderLock

    def __init__(
        self,
        launch: Launch,
        clocks: Clocks,
        make_view: Callable[[NamedRun, RunConfig], RunView],
        is_interrupted: Callable[[], bool],
    ) -> None:
        """``is_interrupted``: whether a person asked to stop."""
        self._launch, self._clocks, self._make_view = launch, clocks, make_view
        self._is_interrupted, self._holder = is_interrupted, holder_name()
        self._notes, self._allowed = NoteHandler(), ExitStack()
        self._services = LocalServices(launch)
        self._retry = Retry(on_outage=self._handle_outage)
        self._new_folder: Path | None = None
        self._renewal: LeaseRenewal | None = None
        self._seats: Seats | None = None
        self._master: Master | None = None
        self.is_looping, self.resume_command, self._token = False, "", ""

    def run(
        self,
        config: RunConfig | None,
        changes: dict[str, Any] | None = None,
        keep_going: KeepGoing = lambda _: True,
    ) -> dict[str, Any]:
        """Train a new run of ``config``, or continue ``launch.resume`` under ``changes``; returns
        the summary.

        A KeyboardInterrupt leaves a run that can be resumed, or nothing before the first publish.
        """
        changes = changes or {}
        with self._notes, self._allowed:
            try:
                if self._launch.resume is None:
                    assert config is not None
                    setup, state = self._make_new(config)
                else:
                    setup, state = self._read_existing(changes)
                if not self._take_lease(state.epoch):
                    return {"state": NOT_NEEDED, "interrupted": False}
                return self._lead(setup, state, changes, keep_going)
            except RunBusyError:  # the folder may be the other master's
                raise
            except BaseException as error:
                self._services.stop()
                folder = self._new_folder
                if folder is not None and not (folder / "checkpoints").exists():
                    remove_new_folder(folder, self._launch.run_dir is None)
                if isinstance(error, ANY_ERROR):
                    raise refused_error(error) from None
                if isinstance(error, RuntimeError) and (hint := process_limit_hint(str(error))):
                    raise UsageError(f"{error}{hint}") from None
                raise
            finally:
                self._services.stop()
                if hasattr(self, "_lock"):
                    self._lock.release()
                if hasattr(self, "_view"):
                    self._view.close()

    # --- the server, and the state to begin with

    def _make_new(self, config: RunConfig) -> tuple[Setup, RunState]:
        launch = self._launch
        self._allowed.enter_context(allowing(named_modules(config)))
        self._validate_packages(config)
        if config.model and (launch.warm_start or launch.video_every):
            flag = "--warm-start" if launch.warm_start else "--video-every"
            raise UsageError(
                f"{flag} is of policies, and a run with --model has none: leave it out"
            )
        setup = prepare_run(config, launch.noise_dir)
        validate_action_bound(config, setup.spec)
        state = (
            setup.initial_state()
            if launch.warm_start is None
            else make_warm_state(setup, launch.warm_start)
        )
        run = new_run(config.problem, launch)
        self._new_folder = None if run.folder.exists() else run.folder
        prepare_folder(run.folder, launch.shared)
        self._connect(run, config)
        if self._store.config() is not None:
            validate_lease_free(self._store, self._clocks, wait=False)
            raise UsageError(
                f"run {run.run} exists in this Redis already; continue it with --resume "
                f"{run.run}, or give another --run"
            )
        self._store.forget_gone_runs()
        for text in format_choice(config, setup.config, setup.policy.size):
            TERMINAL.info(text)
        for text in new_run_notes(config, setup):
            LOGGER.info(text)
        return setup, state

    def _read_existing(self, changes: dict[str, Any]) -> tuple[Setup, RunState]:
        """The slow parts, before the token is raised; the state is read again after that (rule
        11).
        """
        launch = self._launch
        run = existing_run(launch.resume or "", launch)
        if launch.redis_url is None and not run.folder.is_dir():
            raise no_run_error(run)
        checkpoints = Checkpoints(run.folder)
        disk = checkpoints.read_newest(run.run)
        config = None
        if disk is not None:  # a folder of another run is refused before anything is started in it
            config = newest_checkpoint(run, disk, None)[0]
            self._allow_modules(config, str(run.folder))
        self._connect(run, config)
        stored = self._store.checkpoint()
        if disk is None and stored is None:
            if not run.folder.is_dir():
                raise unknown_run_error(run, self._url)
            raise NoRunError(
                f"run {run.run} cannot be resumed: neither {run.folder} nor Redis has a "
                "checkpoint of it that can be read"
                f"{''.join(f'; {text}' for text in checkpoints.warnings)}"
            )
        prepare_folder(run.folder, launch.shared)
        self._lock_folder()
        self._store.forget_gone_runs()
        for text in checkpoints.warnings:
            LOGGER.warning(text)
        if not launch.standby:
            validate_lease_free(self._store, self._clocks, wait=True)
        self._saved_config, state = newest_checkpoint(run, disk, stored)
        self._allow_modules(self._saved_config, f"run {run.run}")
        config = replace(self._saved_config, **changes)
        config.check()
        self._validate_packages(config)
        setup = prepare_run(config, launch.noise_dir)
        setup.validate_state(state)
        return setup, state

    def _validate_packages(self, config: RunConfig) -> None:
        """Raises UsageError if local workers of a model cannot work here."""
        if not (config.model and self._services.requested):
            return
        from es_queue.models.weights import missing_packages  # few runs have a model

        if missing := missing_packages(config.snapshots):
            raise UsageError(f"{missing}, or start no workers here (--workers 0)")

    def _allow_modules(self, config: RunConfig, what: str) -> None:
        """Raises RunFolderError for settings in ``what`` that name modules without permission."""
        modules = named_modules(config)
        require_trust(what, modules, self._launch.trust, self._launch.own_modules)
        self._allowed.enter_context(allowing(modules))

    def _connect(self, run: NamedRun, config: RunConfig | None) -> None:
        """Connect to the named server, or to a private one in the run's folder, whose workers
        load while this process prepares the run.
        """
        self._run = run
        if self._launch.redis_url is None:
            prepare_folder(run.folder, self._launch.shared)
        if run.folder.is_dir():
            self._lock_folder()
        self._url, self._client = self._services.connect(run.folder)
        server, is_played = self._services.server, config is None or config.objective != ASKED
        if is_played and server is not None and server.is_owned:  # else another master's are there
            self._services.start_workers(run.folder / "logs", self._url)
        self._store = MasterStore(self._client, run.run, self._retry)

    def _lock_folder(self) -> None:
        """A standby locks it when it becomes the master."""
        if not hasattr(self, "_lock"):
            url = self._launch.redis_url or ""
            named = "" if is_own_private(self._run, url) else url
            self._lock = FolderLock(self._run, named, self._clocks)
        if not self._launch.standby or self._token:
            self._lock.take()

    def _handle_outage(self, seconds: float) -> None:
        """Stay responsive while Redis is away: show a sign of life, obey requests to stop, and keep
        the private server running.
        """
        if self._renewal is not None:
            self._renewal.show_sign()
        if self.is_looping and self._is_interrupted():
            raise Interrupted
        if self._services.restart_ended() or seconds <= NOTE_AFTER_SECONDS:
            return
        self._refuse_large_values()
        why = self._retry.last_error
        if "maxmemory" in why or "clients" in why:
            why = "; ".join(filter(None, (why, format_limits(self._client))))
        trouble = f"Redis refuses commands ({why})" if why else "Redis does not answer"
        LOGGER.warning(f"{trouble}; trying again")

    def _refuse_large_values(self) -> None:
        """A server closes the connection on a value that is too large for it. Raises RedisError."""
        if (generation := self._generation) is None:
            return
        limit = 0
        with suppress(ANY_ERROR, ValueError):
            limit = int(next(iter(self._client.config_get(BULK_LIMIT).values()), 0))
        sizes = {
            "parameters": generation.vector.nbytes,
            "checkpoint": len(generation.checkpoint),
        }
        for what, size in sizes.items():
            if 0 < limit < size:
                raise RedisError(
                    f"the run's {what} take {size / 2**20:.1f} MB, but Redis at "
                    f"{redacted_url(self._url)} accepts values of at most {limit / 2**20:.1f} MB "
                    f"({BULK_LIMIT}): raise that setting, or train a smaller policy"
                )

    @property
    def _generation(self) -> Generation | None:
        """That of the loop; None before the first publication."""
        return None if self._master is None else self._master.current

    # --- the lease

    def _take_lease(self, floor: int) -> bool:
        """Become the run's master. A standby waits for a run without one: the first of several gets
        it. Returns False if that run has ended.
        """
        store, clocks, is_standby = self._store, self._clocks, self._launch.standby
        wait = self._launch.resume is not None and not is_standby
        while not is_standby or wait_for_free_run(store, clocks, self._is_interrupted):
            try:
                self._token = take_lease(store, self._holder, clocks, wait=wait, floor=floor)
                self._lock_folder()
                self._lock.write()
                return True
            except RunBusyError:
                if not is_standby:
                    raise
        return False

    # --- training

    def _lead(
        self, setup: Setup, state: RunState, changes: dict[str, Any], keep_going: KeepGoing
    ) -> dict[str, Any]:
        """Train to the end, or leave a run that can be resumed, and raise the error that ended it.

        Raises KeyboardInterrupt if interrupted before the first publish, when there is nothing to
        resume.
        """
        began, film_seconds = time.monotonic(), 0.0
        with ExitStack() as parts:
            run, launch = self._run, self._launch
            videos = VideoJobs(run.folder, launch.video_every, launch.noise_dir)
            # A run that ends early does not wait for its film.
            parts.callback(lambda: videos.close(film_seconds))
            try:
                if launch.resume is not None:
                    setup, state = self._read_again(setup, changes)
                self._setup = setup
                write_atomically(run.folder / "config.json", setup.config.to_json().encode())
                write_manifest(run, setup.config, launch.warm_start)
                if setup.config.objective != ASKED:
                    self._services.start_workers(run.folder / "logs", self._url)
                elif launch.workers:
                    LOGGER.warning(
                        f"workers is {launch.workers}, but your own programs score this run's "
                        "vectors: none is started"
                    )
                self._view = self._make_view(run, setup.config)
                if launch.resume is None:
                    for text in launch.notes:  # of several lines, which a log would escape
                        self._view.note(text)
                self._notes.show_in(self._view.note)
                self.resume_command = (
                    f"{format_command('es-master')} --resume {self._words}"
                    f"{' --trust' if named_modules(setup.config) else ''}"
                    f"{'' if launch.listen is None else ' --listen'}"
                    f"{'' if launch.workers is None else f' --workers {launch.workers}'}"
                )
                master = self._make_master(keep_going, videos, parts)
                self.is_looping = True
                with suppress(OSError):
                    (run.folder / FAILURE_FILE).unlink(missing_ok=True)
                self._view.started(self._start_information(state))
                outcome = master.train(state, self._take_up(state, began))
                film_seconds = LAST_VIDEO_SECONDS
                return self._finish(outcome)
            except Unserved:
                return self._stop(is_unserved=True)
            except Interrupted:
                return self._stop()
            except FencedError:
                raise
            except KeyboardInterrupt:
                self._leave(STOPPED)
                raise
            except BaseException as error:
                why = sanitize(str(error) or type(error).__name__, 300)
                if isinstance(error, EnvironmentFailure | StrategyFailure):
                    error.args = (f"{error}{self._save_error_reports()}",)
                self._leave(FAILED, why)
                with suppress(Exception):
                    path = run.folder / FAILURE_FILE
                    write_atomically(path, json.dumps({"why": why}).encode())
                raise

    def _read_again(self, setup: Setup, changes: dict[str, Any]) -> tuple[Setup, RunState]:
        """The newest state, now that no other master can publish, and its parts."""
        disk = Checkpoints(self._run.folder).read_newest(self._run.run)
        config, state = newest_checkpoint(self._run, disk, self._store.checkpoint())
        if config != self._saved_config:
            # Another master went on with it meanwhile, under other budgets.
            setup = prepare_run(replace(config, **changes), self._launch.noise_dir)
        setup.validate_state(state)
        if state.noise != setup.table.digest:
            LOGGER.warning(
                "this version of es-queue generates different noise from the one that made "
                f"generation {state.generation}: the run continues, but is no longer reproducible"
            )
            state = replace(state, reproducible=False)
        state = replace(state, changes=drop_settings(state.changes, changes))
        learner = ConfigTimeline(setup.learner).learner_at(state)
        if budget := learner.reason_to_stop(state):
            LOGGER.info(
                f"{budget} is {getattr(learner.requested, budget):,} and counts from the beginning "
                f"of the run, which is at generation {state.generation}: only its last parameters "
                "are evaluated"
            )
        return setup, learner.reopened(state)

    def _make_master(self, keep_going: KeepGoing, videos: VideoJobs, parts: ExitStack) -> Master:
        """The loop and what runs beside it; ``parts`` ends that."""
        launch, clocks, run, setup = self._launch, self._clocks, self._run, self._setup
        config, store, view = setup.config, self._store, self._view
        own_store = MasterStore(
            parts.enter_context(clone_client(self._client)), run.run, Retry(clocks.renew)
        )
        self._renewal = renewal = LeaseRenewal(
            own_store, self._token, self._holder, clocks, self._lock.beat
        )
        timeout = int(clocks.seat_lease + config.wall_limit + clocks.seat_margin)
        nonce = secrets.token_hex(3)
        seats = Seats(store, self._client, launch.queue, nonce, timeout)
        is_asked = config.objective == ASKED  # no worker plays it
        self._seats = None if is_asked else seats

        def maintain(
            workers: Mapping[str, Mapping[str, str]], served: bool, paused: bool
        ) -> list[str]:
            self._services.restart_ended()
            return [] if is_asked else seats.tick(workers, served, paused)

        silence = Lasting(clocks.silence)

        def show_live(figures: Record) -> None:
            renewal.show_sign()
            if silence.is_news(
                bool(figures.get("workers")) and not (figures.get("answered") or seats.has_results)
            ):
                LOGGER.warning(
                    f"no episode has ended in {clocks.silence:g} s: if those of an untrained "
                    "policy are long, --step-limit N ends training's after N steps"
                )
            view.live(figures)

        def is_continued(record: Record) -> bool:
            if changed := setup.table.recheck():
                LOGGER.warning(changed)
            return keep_going(record)

        audit = Audit(config, launch.noise_dir) if config.audit else None
        if audit is not None:
            parts.callback(audit.close)
        timeline = ConfigTimeline(setup.learner)
        self._inbox = ControlInbox(store, timeline.refusal, self._words)
        recorded = 0 if config.model else config.keep_generations
        records = GenerationStore(run.run, run.folder, recorded, videos)
        parts.callback(records.log.close)
        self._checkpoints = Checkpoints(run.folder, config.snapshot_every)
        self._master = Master(
            timeline=timeline,
            store=store,
            token=self._token,
            holder=self._holder,
            noise_digest=setup.table.digest,
            # A trial may take as long as it likes: no second one for an idle program.
            clocks=replace(clocks, overdue=math.inf) if is_asked else clocks,
            workers=Workers(
                store,
                clocks,
                strict=config.strict,
                local=self._services.count,
                maintain=maintain,
                why_absent=(
                    lambda: f"no program asks for trials: use {ask_here(run.run, self._url)}"
                )
                if is_asked
                else seats.why_none_is_taken,
            ),
            inbox=self._inbox,
            queue="" if is_asked else launch.queue,
            snapshots=snapshots_place(config.snapshots, run.run, run.folder)
            if config.model
            else "",
            listeners=(
                CheckpointWriter(self._checkpoints, run.run),
                records,
                ProgressNote(),
                ViewListener(view),
            ),
            audit=audit,
            show_live=show_live,
            is_interrupted=self._is_interrupted,
            keep_going=is_continued,
        )
        renewal.start()
        parts.callback(renewal.end, LEAVE_SECONDS)
        return self._master

    def _take_up(self, state: RunState, began: float) -> Task | None:
        """Continue where the last master ended; returns the header that it left open, if that is
        complete and of exactly this state's parameters. A paused run stays paused.
        """
        task, former_state = None, None
        if self._launch.resume is not None:
            look = self._store.look(self._token, self._holder, self._clocks.lease, {}, grace=True)
            stored, strategy = self._store.task(), self._setup.strategy
            with suppress(DecodeError):
                task = None if stored is None else Task.decode(stored)
            is_adoptable = (
                task is not None
                and state.stage != ENDING
                and (task.generation, task.noise) == (state.generation, self._setup.table.digest)
                and look.publication == task.publication
                and task.digest
                == vector_digest(strategy.checked_part(strategy.published(state.strategy)))
            )
            task, former_state = task if is_adoptable else None, self._store.progress_field("state")
        self._inbox.begin(state.changes, former_state, self._store.progress_field("paused_by"))
        if former_state in (RUNNING, PAUSED) and self._master is not None:  # it was killed
            self._master.recoveries.record(TAKEOVER, time.monotonic() - began)
        return task

    # --- what people see at the beginning

    @property
    def _words(self) -> str:
        """The words by which a command finds the run and its server."""
        url = self._url if self._services.server is None else None
        return run_words(self._run, url, self._launch.redis_password_file)

    def _start_information(self, state: RunState) -> dict[str, str]:
        """Places and commands for the start: watching, joining, and the run's beginning."""
        launch, setup = self._launch, self._setup
        about = {
            "redis": redacted_url(self._url),
            "folder": str(self._run.folder),
            "seed": str(setup.config.seed),
            **start_lines(
                self._url,
                launch.queue,
                self._run,
                self._services.server,
                loose_modules(setup.config),
                launch.redis_password_file,
            ),
        }
        if setup.config.objective == ASKED:
            about = {name: text for name, text in about.items() if name not in ("join", "stay")}
            about["ask"] = ask_here(self._run.run, self._url)
        if setup.config.schedule == ASYNC:
            about["schedule"] = ASYNC_LABEL
        if len(setup.spec.observation) > 1:
            about["observes"] = format_parts(setup.spec.observation)
        if state.origin:
            about["begun with"] = state.origin
        if launch.resume is not None:
            steps = f"{state.counters.env_steps:,} steps done"
            about["resumed"] = f"generation {state.generation}, {steps}"
        return about

    # --- ends

    def _finish(self, outcome: Outcome) -> dict[str, Any]:
        if (generation := self._generation) is not None:
            self._checkpoints.save(generation.state.generation, generation.checkpoint)
        summary = self._make_summary(FINISHED, outcome.state, outcome)
        write_atomically(self._run.folder / "summary.json", json.dumps(summary, indent=2).encode())
        with suppress(Exception):
            self._inbox.discard_all()
        names = ("eval_mean", "eval_std", "eval_min", "eval_episodes", "eval_info")
        final = {name: summary.get(name) for name in names}
        self._mark_ended(FINISHED, keys.FINISHED_SECONDS, None, **final)
        self._view.summary(summary)
        if failed := outcome.failed_seeds:
            played, seeds = summary["eval_episodes"] or 0, ", ".join(map(str, failed[:10]))
            more = f" and {len(failed) - 10} more (summary.json)" if len(failed) > 10 else ""
            LOGGER.warning(
                f"the evaluation has {played} of {played + len(failed)} episodes; the others, with "
                f"environment seed{'s' * (len(failed) > 1)} {seeds}{more}, failed"
            )
        return summary

    def _stop(self, *, is_unserved: bool = False) -> dict[str, Any]:
        """End a run without loss: on request, or because no worker is there for its final
        evaluation. Raises KeyboardInterrupt before the first publication, because there is nothing
        to resume.
        """
        if (generation := self._generation) is None:
            self._give_up_lease(STOPPED)
            raise KeyboardInterrupt
        state = generation.state
        try:
            path = self._checkpoints.save(state.generation, generation.checkpoint)
        finally:
            self._give_up_lease(STOPPED, UNSERVED if is_unserved else None)
        summary = self._make_summary(STOPPED, state, None)
        if is_unserved:
            summary |= {"reason": UNSERVED, "interrupted": False}
        self._view.summary(summary)
        if is_unserved:
            is_asked = self._setup.config.objective == ASKED
            here = f", or play the policy here with {format_command('es-play')} {path}"
            LOGGER.warning(
                f"training is over, and no {'program' if is_asked else 'worker'} was there for the "
                f"final evaluation: start one and continue with {self.resume_command}"
                f"{'' if is_asked else here}"
            )
        else:
            LOGGER.info(
                f"stopped at generation {state.generation}, checkpoint {path}; continue with: "
                f"{self.resume_command}"
            )
        return summary

    def _leave(self, state: str, why: str | None = None) -> None:
        """End early, with all that a resume needs. A failure here does not hide why."""
        if (generation := self._generation) is not None:
            with suppress(Exception):
                self._checkpoints.save(generation.state.generation, generation.checkpoint)
        self._give_up_lease(state, why)

    def _give_up_lease(self, state: str, why: str | None = None) -> None:
        self._retry.give_up_after(LEAVE_SECONDS)
        generation = self._generation
        is_unused = generation is None and self._launch.resume is None
        data = None if generation is None else generation.checkpoint
        with suppress(Exception):
            self._mark_ended(state, 0 if is_unused else keys.RUN_SECONDS, data, why=why)

    def _mark_ended(self, state: str, seconds: int, data: bytes | None, **more: Any) -> None:
        """In Redis, once: what fails after the end changes nothing."""
        if not self._token:
            return
        if self._renewal is not None:  # a renewal after the end would take the lease again
            self._renewal.end(LEAVE_SECONDS)
        texts = {name: str(value) for name, value in more.items() if value is not None}
        ended = {"state": state, "updated": f"{time.time():.3f}", "workers": "0", "answered": ""}
        refused = {} if self._master is None else self._master.refused()
        programs = list[str]()  # which score this run's vectors, and must read how it ended
        if self._seats is None and self._services.server is not None:
            with suppress(Exception):
                programs = [self._store.keys.worker(name) for name in self._store.workers()]
        try:
            self._store.finish(self._token, {**ended, **texts}, seconds, data, refused)
        except RedisError:  # its lease lapses by itself
            self._lock.mark_ended()
            raise
        self._lock.mark_ended()
        self._token = ""
        self._save_error_reports()
        # After the fenced write: the seats may be another master's by now.
        if self._seats is not None:
            with suppress(Exception):
                self._seats.close()
        until = time.monotonic() + LEAVE_SECONDS
        with suppress(Exception):
            while programs and self._client.exists(*programs) and time.monotonic() < until:
                time.sleep(self._clocks.leave_poll)

    def _save_error_reports(self) -> str:
        """Save workers' newest tracebacks, because a private server ends with its run; returns
        how to read them, for the end of a sentence.
        """
        self._retry.give_up_after(LEAVE_SECONDS)
        path = self._run.folder / ERROR_REPORTS_FILE
        with suppress(Exception):
            if reports := self._store.errors():
                lines = "".join(f"{format_report(report)}\n" for report in reports)
                write_atomically(path, lines.encode())
                shown = f"{format_command('es-status')} --errors {self._words}"
                return f"; the workers' newest {len(reports)} reports: {shown}"
        return ""

    def _make_summary(self, name: str, state: RunState, outcome: Outcome | None) -> dict[str, Any]:
        counters, figures = state.counters, outcome.evaluation if outcome else None
        best, last = self._checkpoints.best_path, self._checkpoints.last_path
        return {
            "state": name,
            "interrupted": name == STOPPED,
            "reason": state.reason,
            "run": self._run.run,
            "run_dir": str(self._run.folder),
            "digest": run_digest(state, self._setup.strategy),
            "generation": state.generation,
            "env_steps": counters.env_steps,
            "eval_steps": counters.eval_steps,
            "episodes": counters.episodes,
            "seconds": round(counters.seconds, 3),
            "eval_mean": figures.mean if figures else None,
            "eval_std": figures.std if figures else None,
            "eval_min": figures.minimum if figures else None,
            "eval_episodes": figures.count if figures else None,
            **(outcome.info if outcome else {}),
            "eval_failed_seeds": list(outcome.failed_seeds) if outcome else [],
            "confirm_mean": state.confirm_mean,
            "reproducible": state.reproducible,
            "seed": self._setup.config.seed,
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


def resumable_settings(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in resumable()}


def ask_here(run: str, url: str) -> str:
    """How a program joins a run whose trials it scores."""
    return f'es_queue.AskTell("{run}", "{redacted_url(url)}")'
