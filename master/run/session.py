"""One es-master process's part in a run: connect, take the lease, train, leave everything as it
should be left.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from es_queue.config.changeable import RESUMABLE
from es_queue.config.run_config import RunConfig
from es_queue.config.validation import validate_combinations
from es_queue.errors import NoRunError, RunBusyError, RunFolderError, UsageError
from es_queue.protocol import keys
from es_queue.protocol.channel import FAILED, STOPPED
from es_queue.protocol.connection import (
    ANY_ERROR,
    client_from_url,
    redacted_url,
    refused_error,
    validate_server,
)
from es_queue.protocol.redis_channel import RedisMasterChannel
from es_queue.protocol.retry import Retry
from es_queue.protocol.timing import Clocks
from es_queue.security.user_code import named_modules
from master.cli.redis_url import format_warning, is_same_terminal, network_warnings, read_exposure
from master.loop.config_timeline import ConfigTimeline, drop_settings
from master.loop.learner import Record
from master.loop.state import FINAL, RunState
from master.run.launch import Launch
from master.run.lease import holder_name, take_lease, validate_lease_free
from master.run.manifest import write_manifest
from master.run.run import LEAVE_SECONDS, RunView, TrainingRun
from master.run.run_paths import RunPaths, existing_paths, make_new_paths
from master.run.run_services import LeaseClaim, Services, StopSignal
from master.run.setup import format_unnormalised, prepare_run, validate_action_bound
from master.run.standby import Standby
from master.run.stopping import reopen_state
from master.run.warm_start import make_warm_state
from master.services.private_server import PrivateServer
from master.services.supervisor_client import SupervisorClient, make_supervisor_client
from master.storage import checkpoint
from master.storage.checkpoint import Checkpoints, write_atomically

#: The state of a summary of a standby that was not needed.
NOT_NEEDED = "unneeded"


class Session:
    """Composes a run's parts; ``run`` does the work and always cleans up what it started.

    write: hears what is to be told before there is a view
    is_looping: the run has begun, so ``is_interrupted`` is looked at and the run ends in order
    """

    def __init__(
        self,
        launch: Launch,
        clocks: Clocks,
        make_view: Callable[[RunPaths, RunConfig, str], RunView],
        is_interrupted: Callable[[], bool],
        write: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.launch, self.clocks = launch, clocks
        self._make_view, self._stop = make_view, StopSignal(is_interrupted)
        self._write = write
        self._new_folder: Path | None = None
        self._warnings: list[str] = []
        self._modules: list[str] = []
        self._server: PrivateServer | None = None
        self._supervisor: SupervisorClient | None = None

    def run(
        self,
        config: RunConfig | None,
        changes: dict[str, Any] | None = None,
        keep_going: Callable[[Record], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """Train a new run of ``config``, or go on with ``launch.resume`` under ``changes``; returns
        the summary.

        A KeyboardInterrupt leaves a run that can be resumed, or nothing when nothing was published
        yet.
        """
        try:
            if self.launch.resume is not None:
                return self._resume(changes or {}, keep_going)
            assert config is not None
            return self._begin(config, keep_going)
        except ANY_ERROR as error:
            self._clean_up_failed()
            raise refused_error(error) from None
        except RunBusyError:  # the folder may be the other master's, and so may be the server
            if self._server is not None and self._supervisor is not None:
                self._supervisor.release()
            raise
        except BaseException:
            self._clean_up_failed()
            raise
        finally:
            self.stop()

    def stop(self) -> None:
        """End local workers and the private server; nothing is left running."""
        if self._supervisor is not None:
            self._supervisor.stop()

    def kill(self) -> None:
        """End them at once."""
        if self._supervisor is not None:
            self._supervisor.kill()

    # --- beginning and resuming

    def _begin(self, config: RunConfig, keep_going: Callable[[Record], bool]) -> dict[str, Any]:
        self._modules = named_modules(config)
        setup = prepare_run(config, self.launch.noise_dir)
        validate_action_bound(config, setup.spec)
        start = (
            setup.initial_state()
            if self.launch.warm_start is None
            else make_warm_state(setup, self.launch.warm_start)
        )
        paths = make_new_paths(config, self.launch)
        self._new_folder = None if paths.run_dir.exists() else paths.run_dir
        paths.prepare()
        channel = self._connect(paths)
        if channel.stored_run()[0] is not None:
            validate_lease_free(channel, self.clocks, wait=False, note=lambda _: None)
            raise UsageError(
                f"run {paths.run} exists in this Redis already; go on with it by --resume "
                f"{paths.run}, or give another --run"
            )
        channel.forget_gone_runs()
        view = self._make_view(paths, setup.config, self._redis_name)
        for text in filter(
            None, (setup.spec.note, *self._warnings, *format_unnormalised(config, setup.config))
        ):
            view.note(text)
        holder = holder_name()
        token = take_lease(channel, holder, self.clocks, wait=False)
        with self._release_on_error(channel, token, 0):
            write_atomically(paths.config_file, setup.config.to_json().encode())
            write_manifest(paths.run_dir, paths.run, setup.config, self.launch.warm_start)
            training_run = TrainingRun(
                self._services(paths), paths, setup, view, LeaseClaim(holder, token), keep_going
            )
        return training_run.run(start, None)

    def _resume(
        self, changes: dict[str, Any], keep_going: Callable[[Record], bool]
    ) -> dict[str, Any]:
        """Prepare what takes long, raise the token, and only then read: the newer of Redis and disk
        (rule 11).
        """
        paths = existing_paths(self.launch)
        if self.launch.redis_url is None and not paths.run_dir.is_dir():
            raise NoRunError(
                f"there is no run {paths.run} to resume: {paths.run_dir} does not exist; "
                "give --run-dir, or --redis-url for a run on a shared Redis"
            )
        checkpoints = Checkpoints(paths.run_dir)
        disk = checkpoints.read_newest(paths.run)
        if disk is not None:
            self._modules = named_modules(
                newest_checkpoint(paths, disk, None)[0]
            )  # a folder of another run is refused before anything is started in it
        channel = self._connect(paths)
        stored = channel.stored_run()[2]
        if disk is None and stored is None:
            news = "".join(
                f"; {text}"
                for text in (self._supervisor.read_news() if self._supervisor is not None else ())
            )
            raise NoRunError(
                f"there is no run {paths.run} to resume: neither {paths.run_dir} nor Redis holds "
                f"a checkpoint of it{news}"
            )
        paths.prepare()
        channel.forget_gone_runs()
        notes = [*self._warnings, *checkpoints.warnings]
        if not self.launch.standby:
            validate_lease_free(channel, self.clocks, wait=True, note=notes.append)
        config, state = newest_checkpoint(paths, disk, stored)
        self._modules = named_modules(config)
        validate_combinations(replace(config, **changes))
        setup = prepare_run(replace(config, **changes), self.launch.noise_dir)
        holder = holder_name()
        if self.launch.standby:
            token = self._take_over(channel, holder, state.epoch)
        else:
            token = take_lease(
                channel, holder, self.clocks, wait=True, floor=state.epoch, note=notes.append
            )
        if token is None:
            return {"state": NOT_NEEDED}
        with self._release_on_error(channel, token, keys.RUN_SECONDS):
            newest_config, state = newest_checkpoint(
                paths,
                Checkpoints(paths.run_dir).read_newest(paths.run),
                channel.stored_run()[2],
                notes.append,
            )
            if (
                newest_config != config
            ):  # another master went on with it meanwhile, under other budgets
                setup = prepare_run(replace(newest_config, **changes), self.launch.noise_dir)
            write_atomically(paths.config_file, setup.config.to_json().encode())
            write_manifest(paths.run_dir, paths.run, setup.config)
            view = self._make_view(paths, setup.config, self._redis_name)
            if state.noise != setup.table.digest:
                notes.append(
                    "this es-queue makes other noise than the one that made generation "
                    f"{state.generation}: the run goes on, but no longer as it would have"
                )
                state = replace(state, reproducible=False)
            for text in notes:
                view.note(text)
            state = replace(state, changes=drop_settings(state.changes, changes))
            learner = ConfigTimeline(setup.learner).learner_at(state)
            state = reopen_state(learner.config, state, learner.target)
            training_run = TrainingRun(
                self._services(paths),
                paths,
                setup,
                view,
                LeaseClaim(holder, token),
                keep_going,
                is_resumed=True,
            )
            adopted = training_run.adoptable_publication(state)
            former_state = channel.state()
        return training_run.run(state, adopted, former_state)

    def _take_over(self, channel: RedisMasterChannel, holder: str, floor: int) -> str | None:
        """Stand by until the run has lost its master, and take it; None when it has ended. The
        first of several gets it.
        """
        standby = Standby(channel, self.clocks, self._write, self._stop.is_interrupted)
        while standby.wait():
            try:
                return take_lease(channel, holder, self.clocks, wait=False, floor=floor)
            except RunBusyError:
                continue
        return None

    @contextmanager
    def _release_on_error(
        self, channel: RedisMasterChannel, token: str, seconds: int
    ) -> Iterator[None]:
        """Give the lease back when what stands between it and the first generation fails."""
        try:
            yield
        except BaseException as error:
            channel.retry.give_up_after(LEAVE_SECONDS)
            stopped = isinstance(error, KeyboardInterrupt)
            why = {} if stopped else {"why": str(error)[:300]}
            with suppress(Exception):
                channel.finish(
                    token,
                    {"state": STOPPED if stopped else FAILED, "workers": "0", **why},
                    seconds,
                    None,
                )
            raise

    def _clean_up_failed(self) -> None:
        """Leave nothing of a run that came to nothing."""
        self.stop()
        self._remove_unused_folder()

    def _remove_unused_folder(self) -> None:
        """Remove the folder that was made for a run of which nothing came."""
        if self._new_folder is not None and not (self._new_folder / "checkpoints").exists():
            shutil.rmtree(self._new_folder, ignore_errors=True)
            if self.launch.run_dir is None:
                with suppress(OSError):  # it holds other runs
                    self._new_folder.parent.rmdir()

    def _connect(self, paths: RunPaths) -> RedisMasterChannel:
        """The channel over the server that was named, or over a private one in the run's folder."""
        url, retry = self.launch.redis_url, Retry(on_outage=self._restart_supervisor)
        if url is None:
            paths.prepare()
            self._server = PrivateServer(paths.run_dir / "redis")
            self.start_supervisor(paths)
            url = self._server.url
        self.url = url
        self._redis_name = redacted_url(url)
        self.client = client_from_url(url)
        validate_server(self.client, self._redis_name)
        if self.launch.redis_url is not None and not self.launch.insecure:
            warnings = network_warnings(read_exposure(self.client, self._redis_name))
            for text in warnings:
                self._write(format_warning(text))
            self._warnings = [] if is_same_terminal() else warnings
        return RedisMasterChannel(self.client, paths.run, retry)

    def start_supervisor(self, paths: RunPaths) -> SupervisorClient | None:
        """The supervisor of the private server and the local workers, started; None for a run that
        has neither.
        """
        if self._supervisor is None:
            self._supervisor = make_supervisor_client(
                self.launch, paths, self.clocks, self._server, self._modules
            )
            if self._supervisor is not None:
                self._supervisor.start()
        return self._supervisor

    def _restart_supervisor(self, _: float) -> None:
        """The private server did not answer, and no supervisor looks after it yet."""
        if self._server is not None and self._supervisor is not None:
            self._supervisor.ensure()

    @property
    def is_looping(self) -> bool:
        return self._stop.is_looping

    def _services(self, paths: RunPaths) -> Services:
        """What a run is given, once connected."""
        supervisor = self.start_supervisor(paths)
        return Services(
            self.launch, self.clocks, self.client, self.url, self._stop, self._server, supervisor
        )


def newest_checkpoint(
    paths: RunPaths,
    disk: bytes | None,
    stored: bytes | None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[RunConfig, RunState]:
    """The newer of two checkpoints of one run; Redis holds every generation, the disk one every few
    seconds.

    note: hears of one that cannot be used while the other can

    Raises RunFolderError when one is of another run than ``place.run``, or when they are of two
    runs of that name.
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
            note(f"the checkpoint in {where} was passed over: {error}")
            continue
        if run != paths.run:
            raise RunFolderError(
                f"{where} holds run {run[:40]!r}, not {paths.run}: go on with it by --resume "
                f"{run[:40]}, or give the --run-dir of {paths.run}"
            )
        checkpoints.append((config, state))
    if not checkpoints:
        raise trouble or RunFolderError("there is no checkpoint to resume")
    differing = [
        config_field.name
        for config_field in fields(RunConfig)
        if config_field.name not in RESUMABLE
        and len({str(getattr(config, config_field.name)) for config, _ in checkpoints}) > 1
    ]
    if differing:
        raise RunFolderError(
            f"{paths.run_dir} and Redis hold two different runs called {paths.run} "
            f"({', '.join(differing[:5])} differ): "
            "give another --run-dir to go on with the one in Redis, or the --redis-url where "
            "this folder's run was"
        )
    return max(
        checkpoints,
        key=lambda checkpoint_pair: (
            checkpoint_pair[1].generation,
            checkpoint_pair[1].stage == FINAL,
        ),
    )


def resumable_settings(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in RESUMABLE}
