"""One es-master process's part in a run: connect, take the lease, train, and leave cleanly."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from es_queue.command_line import format_command
from es_queue.config.algorithms.choice import format_choice
from es_queue.config.changeable import RESUMABLE
from es_queue.config.run_config import RunConfig, option_fields
from es_queue.config.scaling import format_scaling
from es_queue.config.validation import validate_combinations
from es_queue.errors import NoRunError, RunBusyError, RunFolderError, UsageError
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    ANY_ERROR,
    Retry,
    client_from_url,
    redacted_url,
    refused_error,
    validate_server,
)
from es_queue.protocol.keys import FAILED, STOPPED, Clocks
from es_queue.protocol.store import MasterStore
from es_queue.run_folder import no_run_error
from es_queue.user_code import allowing, named_modules, require_trust
from master.display.log_view import RunView
from master.display.notes import TERMINAL, NoteHandler
from master.loop.config_timeline import ConfigTimeline, drop_settings
from master.loop.state import ENDING, RunState
from master.run.launch import Launch
from master.run.lease import Standby, holder_name, take_lease, validate_lease_free
from master.run.manifest import write_manifest
from master.run.run import LEAVE_SECONDS, TrainingRun
from master.run.run_paths import RunPaths, existing_paths, make_new_paths
from master.run.run_services import (
    LeaseClaim,
    OwnServices,
    RunContext,
    Services,
    StopSignal,
)
from master.run.setup import (
    Setup,
    format_image_hint,
    format_unnormalised,
    prepare_run,
    validate_action_bound,
)
from master.run.warm_start import make_warm_state
from master.services.redis_url import (
    format_warning,
    is_same_terminal,
    network_warnings,
)
from master.status.figures import Record
from master.status.sources import unknown_run_error
from master.storage import checkpoint
from master.storage.checkpoint import Checkpoints, write_atomically

LOGGER = logging.getLogger("es_queue.run")
#: The state of a summary of a standby that was not needed.
NOT_NEEDED = "unneeded"
KeepGoing = Callable[[Record], bool]


@dataclass(frozen=True)
class Connection:
    """The server of a run that this process is about to lead."""

    paths: RunPaths
    url: str
    client: Any
    channel: MasterStore


class Session:
    """Composes a run's parts; ``run`` trains and always cleans up.

    is_looping: whether the run has begun, so that it ends in order when ``is_interrupted``
    resume_command: the command that continues it, empty before it has begun
    """

    def __init__(
        self,
        launch: Launch,
        clocks: Clocks,
        make_view: Callable[[RunPaths, RunConfig], RunView],
        is_interrupted: Callable[[], bool],
    ) -> None:
        self._launch, self._clocks, self._make_view = launch, clocks, make_view
        self._stop, self._notes = StopSignal(is_interrupted), NoteHandler()
        self._services = OwnServices(launch)
        self._resources = ExitStack()
        self._new_folder: Path | None = None
        self.resume_command = ""

    @property
    def is_looping(self) -> bool:
        return self._stop.is_looping

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
        with self._notes, self._resources:
            try:
                if self._launch.resume is not None:
                    return self._resume(changes or {}, keep_going)
                assert config is not None
                return self._begin(config, keep_going)
            except ANY_ERROR as error:
                self._clean_up_failed()
                raise refused_error(error) from None
            except RunBusyError:  # the folder may be the other master's
                raise
            except BaseException:
                self._clean_up_failed()
                raise
            finally:
                self._services.stop()

    # --- beginning and resuming

    def _begin(self, config: RunConfig, keep_going: KeepGoing) -> dict[str, Any]:
        launch = self._launch
        self._resources.enter_context(allowing(named_modules(config)))
        setup = prepare_run(config, launch.noise_dir)
        if setup.spec.note:
            LOGGER.info(setup.spec.note)
        validate_action_bound(config, setup.spec)
        start = (
            setup.initial_state()
            if launch.warm_start is None
            else make_warm_state(setup, launch.warm_start)
        )
        paths = make_new_paths(config, launch)
        self._new_folder = None if paths.run_dir.exists() else paths.run_dir
        paths.prepare()
        connection = self._connect(paths)
        channel = connection.channel
        if channel.stored_run()[0] is not None:
            validate_lease_free(channel, self._clocks, wait=False)
            raise UsageError(
                f"run {paths.run} exists in this Redis already; continue it with --resume "
                f"{paths.run}, or give another --run"
            )
        channel.forget_gone_runs()
        for text in format_choice(config, setup.config, setup.policy.size):
            TERMINAL.info(text)
        for text in (
            *launch.notes,
            *format_unnormalised(config, setup.config),
            *format_image_hint(setup),
            *([format_scaling(setup.config)] if setup.config.scale != 1 else ()),
        ):
            LOGGER.info(text)
        holder = holder_name()
        token = take_lease(channel, holder, self._clocks, wait=False)
        claim = LeaseClaim(holder, token)
        with self._release_on_error(channel, token, 0):
            write_run_files(paths, setup.config, launch.warm_start)
            context = self._make_context(connection, setup, claim, is_resumed=False)
            training_run = TrainingRun(context, keep_going)
        return training_run.run(start)

    def _resume(self, changes: dict[str, Any], keep_going: KeepGoing) -> dict[str, Any]:
        """Prepare slow parts, raise the token, and only then read the newer of Redis and disk (rule
        11).
        """
        launch = self._launch
        paths = existing_paths(launch.resume or "", launch)
        if launch.redis_url is None and not paths.run_dir.is_dir():
            raise no_run_error(paths.named_run)
        checkpoints = Checkpoints(paths.run_dir)
        disk = checkpoints.read_newest(paths.run)
        # A folder of another run is refused before anything is started in it.
        saved = None if disk is None else newest_checkpoint(paths, disk, None)[0]
        if saved is not None:
            self._allow_modules(saved, str(paths.run_dir))
        connection = self._connect(paths)
        channel = connection.channel
        stored = channel.stored_run()[2]
        if disk is None and stored is None and not paths.run_dir.is_dir():
            raise unknown_run_error(paths.named_run, connection.url)
        if disk is None and stored is None:
            raise NoRunError(
                f"run {paths.run} cannot be resumed: neither {paths.run_dir} nor Redis has a "
                "checkpoint of it that can be read"
                f"{''.join(f'; {text}' for text in checkpoints.warnings)}"
            )
        paths.prepare()
        channel.forget_gone_runs()
        for text in checkpoints.warnings:
            LOGGER.warning(text)
        if not launch.standby:
            validate_lease_free(channel, self._clocks, wait=True)
        config, state = newest_checkpoint(paths, disk, stored)
        self._allow_modules(config, f"run {paths.run}")
        validate_combinations(replace(config, **changes))
        setup = prepare_run(replace(config, **changes), launch.noise_dir)
        claim = self._claim_lease(channel, state.epoch)
        if claim is None:
            return {"state": NOT_NEEDED, "interrupted": False}
        with self._release_on_error(channel, claim.token, keys.RUN_SECONDS):
            newest_config, state = newest_checkpoint(
                paths,
                Checkpoints(paths.run_dir).read_newest(paths.run),
                channel.stored_run()[2],
            )
            if newest_config != config:
                # Another master went on with it meanwhile, under other budgets.
                setup = prepare_run(replace(newest_config, **changes), launch.noise_dir)
            setup.validate_state(state)
            write_run_files(paths, setup.config)
            if state.noise != setup.table.digest:
                LOGGER.warning(
                    f"this version of es-queue generates different noise from the one that made "
                    f"generation {state.generation}: the run continues, but is no longer "
                    f"reproducible"
                )
                state = replace(state, reproducible=False)
            context = self._make_context(connection, setup, claim, is_resumed=True)
            state = replace(state, changes=drop_settings(state.changes, changes))
            state = ConfigTimeline(setup.learner).learner_at(state).reopened(state)
            training_run = TrainingRun(context, keep_going)
        return training_run.run(state)

    def _claim_lease(self, channel: MasterStore, floor: int) -> LeaseClaim | None:
        """Take over from the last master. A standby waits for a run without a master: the first of
        several gets it; None if the run has ended.
        """
        holder = holder_name()
        if not self._launch.standby:
            token = take_lease(channel, holder, self._clocks, wait=True, floor=floor)
            return LeaseClaim(holder, token)
        standby = Standby(channel, self._clocks, self._stop.is_interrupted)
        while standby.wait():
            try:
                token = take_lease(channel, holder, self._clocks, wait=False, floor=floor)
                return LeaseClaim(holder, token)
            except RunBusyError:
                continue
        return None

    @contextmanager
    def _release_on_error(self, channel: MasterStore, token: str, seconds: int) -> Iterator[None]:
        """Release the lease if anything fails before the first generation."""
        try:
            yield
        except BaseException as error:
            channel.retry.give_up_after(LEAVE_SECONDS)
            stopped = isinstance(error, KeyboardInterrupt)
            why = {} if stopped else {"why": str(error)[:300]}
            progress = {"state": STOPPED if stopped else FAILED, "workers": "0", **why}
            with suppress(Exception):
                channel.finish(token, progress, seconds, None)
            raise

    def _clean_up_failed(self) -> None:
        """Remove the remains of a run that failed at the start."""
        self._services.stop()
        folder = self._new_folder
        if folder is not None and not (folder / "checkpoints").exists():
            shutil.rmtree(folder, ignore_errors=True)
            if self._launch.run_dir is None:
                with suppress(OSError):  # it holds other runs
                    folder.parent.rmdir()

    def _allow_modules(self, config: RunConfig, what: str) -> None:
        """Raises RunFolderError for settings in ``what`` that name modules without permission."""
        modules, launch = named_modules(config), self._launch
        require_trust(what, modules, launch.trust, launch.own_modules)
        self._resources.enter_context(allowing(modules))

    def _connect(self, paths: RunPaths) -> Connection:
        """The named server, or a private one in the run's folder."""
        url = self._launch.redis_url or self._services.start_private_server(paths)
        client, name = client_from_url(url), redacted_url(url)
        validate_server(client, name)
        if self._launch.redis_url is not None and not self._launch.insecure:
            for text in network_warnings(client, name):
                TERMINAL.warning(format_warning(text))
                if not is_same_terminal():
                    LOGGER.warning(text)
        retry = Retry(on_outage=self._keep_services)
        return Connection(paths, url, client, MasterStore(client, paths.run, retry))

    def _keep_services(self, _: float) -> None:
        self._services.restart_ended()

    def _make_context(
        self, connection: Connection, setup: Setup, claim: LeaseClaim, *, is_resumed: bool
    ) -> RunContext:
        """The run's context. Its view shows earlier messages."""
        paths = connection.paths
        self._services.start_local_workers(paths, connection.url)
        services = Services(
            self._launch,
            self._clocks,
            connection.client,
            connection.url,
            self._stop,
            self._services,
        )
        view = self._make_view(paths, setup.config)
        self._notes.show_in(view.note)
        context = RunContext(services, paths, setup, view, claim, is_resumed)
        self.resume_command = f"{format_command('es-master')} --resume {context.run_words}"
        if named_modules(setup.config):
            self.resume_command += " --trust"
        return context


def write_run_files(paths: RunPaths, config: RunConfig, warm_start: Path | None = None) -> None:
    """The files that describe a run. Raises RunFolderError."""
    write_atomically(paths.config_file, config.to_json().encode())
    write_manifest(paths.run_dir, paths.run, config, warm_start)


def newest_checkpoint(
    paths: RunPaths, disk: bytes | None, stored: bytes | None
) -> tuple[RunConfig, RunState]:
    """The newer of two checkpoints of a run; Redis has every generation, the disk one every few
    seconds.

    Raises RunFolderError if one is of another run than ``place.run``, or if they are of two runs
    with that name.
    """
    checkpoints = []
    trouble: RunFolderError | None = None
    for data, where in ((stored, "Redis"), (disk, str(paths.run_dir))):
        if data is None:
            continue
        try:
            config, state, run = checkpoint.decode(data)
        except RunFolderError as error:
            trouble = error
            LOGGER.warning(f"the checkpoint in {where} was skipped: {error}")
            continue
        if run != paths.run:
            raise RunFolderError(
                f"{where} holds run {run[:40]!r}, not {paths.run}: continue it with --resume "
                f"{run[:40]}, or give the --run-dir of {paths.run}"
            )
        checkpoints.append((config, state))
    if not checkpoints:
        raise trouble or RunFolderError("there is no checkpoint to resume")
    differing = [
        name
        for name in option_fields()
        if name not in RESUMABLE
        and len({str(getattr(config, name)) for config, _ in checkpoints}) > 1
    ]
    if differing:
        raise RunFolderError(
            f"{paths.run_dir} and Redis hold two different runs called {paths.run} "
            f"({', '.join(differing[:5])} differ): "
            "give another --run-dir to continue the one in Redis, or the --redis-url of this "
            "folder's run"
        )
    return max(checkpoints, key=lambda pair: (pair[1].generation, pair[1].stage == ENDING))


def resumable_settings(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in RESUMABLE}
