"""Runs a study: starts its runs, reads their events, and notices how they end."""

from __future__ import annotations

import logging
import os
import selectors
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, RedisError, RunBusyError
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    ANY_ERROR,
    client_from_url,
    first_line,
    redacted_url,
    validate_server,
)
from es_queue.security.user_code import loose_modules
from es_queue.util.command_path import format_command
from es_queue.util.cores import default_workers
from es_queue.util.file_lock import take_lock, write_pid
from es_queue.util.run_folder import NamedRun
from master.display.log_view import SafeStream
from master.display.notes import NoteHandler
from master.run.launch import Launch
from master.run.manifest import repro_command
from master.run.run_paths import RunPaths
from master.services.child_process import end_in_order
from master.services.local_workers import LocalServices
from master.services.private_server import PrivateServer
from master.services.redis_url import (
    format_warning,
    is_same_terminal,
    network_warnings,
    read_exposure,
)
from master.services.start_lines import redis_flags, start_lines
from master.services.stop_signals import StopSignals
from master.services.tcp_access import resolve_listen_address
from master.storage.checkpoint import Checkpoints
from master.sweep.record import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    WAITING,
    SeedRun,
    SweepRecord,
)
from master.sweep.seed_process import SeedProcess
from master.sweep.view import SweepJsonView, SweepLogView, SweepView

LOGGER = logging.getLogger("es_queue.sweep")


class SharedServices(LocalServices):
    """Server and workers for a study, in the main thread, to which children are bound."""

    def __init__(self, launch: Launch, study: NamedRun, modules: Sequence[str] = ()) -> None:
        self._launch, self._study, self._modules = launch, study, modules
        self._folder = study.folder
        super().__init__(self._private_server())
        self._count = self._stale = 0
        self.url = launch.redis_url or ""

    @property
    def is_private(self) -> bool:
        return self._launch.redis_url is None

    def start(self) -> None:
        """Start a suitable server and the workers. Raises RedisError or RunFolderError."""
        self.start_server()
        if self.server is not None:
            self.url = self.server.url
        self._client = client_from_url(self.url)
        validate_server(self._client, self.name)
        if not self.is_private and not self._launch.insecure:
            self._warn(network_warnings(read_exposure(self._client, self.name)))
        self._stale = self._count_registered() if self.is_private else 0
        self._count = (
            (default_workers() if self.is_private else 0)
            if self._launch.workers is None
            else self._launch.workers
        )
        if self._count:
            self.start_workers(
                self._count,
                self._launch.queue,
                self.url,
                self._folder / "logs",
                not self.is_private or self._launch.listen is not None,
                self._launch.noise_dir,
            )

    def _private_server(self) -> PrivateServer | None:
        if not self.is_private:
            return None
        folder, listen = self._folder / "redis", self._launch.listen
        return PrivateServer(
            folder,
            listen=None if listen is None else resolve_listen_address(listen, folder),
            queue=self._launch.queue,
        )

    def _warn(self, warnings: Sequence[str]) -> None:
        for text in warnings:
            print(format_warning(text), file=sys.stderr, flush=True)
            if not is_same_terminal():
                LOGGER.warning(text)

    @property
    def name(self) -> str:
        return redacted_url(self.url)

    @property
    def redis_flags(self) -> str:
        """Empty for a private server."""
        return "" if self.is_private else redis_flags(self.url, self._launch.redis_password_file)

    def start_information(self) -> dict[str, str]:
        file = self._launch.redis_password_file
        lines = start_lines(
            self.url, self._launch.queue, self._study, self.server, self._modules, file
        )
        return {"redis": self.name, "folder": str(self._folder), **lines}

    def worker_places(self) -> int:
        """How many runs can have a worker each, at least 1. Workers that a private server knew when
        it started ended with an earlier study.
        """
        return max(1, self._count, self._count_registered() - self._stale)

    def _count_registered(self) -> int:
        try:
            count: Any = self._client.scard(WORKERS_BY_QUEUE_KEY % self._launch.queue)
        except ANY_ERROR:
            return 0
        return int(count)

    def has_checkpoint(self, run: str) -> bool:
        """Raises RedisError."""
        try:
            return bool(self._client.exists(keys.RunKeys(run).checkpoint))
        except ANY_ERROR as error:
            raise RedisError(
                f"Redis at {self.name} does not show its data of run {run}: {first_line(error)}"
            ) from None


SELECT_SECONDS = 0.1
CHECK_SECONDS = 1.0
#: What a failing study grants its runs to leave their checkpoints.
LEAVE_SECONDS = 20.0


class SweepStopSignals(StopSignals):
    """The signals from the start of the command, before there is a :class:`Sweep`."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = False
        self.kill_with(lambda: None, str)

    def kill_with(self, kill: Callable[[], None], resume_command: Callable[[], str]) -> None:
        self.install(lambda: self.has_begun, resume_command, kill)

    def begin(self) -> None:
        """From now on the end is an orderly one."""
        self.has_begun = True


class Sweep:
    def __init__(
        self, record: SweepRecord, paths: RunPaths, launch: Launch, stop: SweepStopSignals
    ) -> None:
        self._record, self._paths, self._launch, self._stop = record, paths, launch, stop
        self._processes = [SeedProcess(entry) for entry in record.entries]
        self._view = make_view(SafeStream(sys.stdout), record, launch)
        self._services = SharedServices(launch, paths.named_run, loose_modules(record.config))
        self._selector = selectors.DefaultSelector()
        self._last_check, self._worker_places = 0.0, 1
        self._stop_forwarded = False
        self._first_failure = EXIT_DONE
        stop.kill_with(self.kill, self._resume_command)

    def run(self) -> int:
        self._paths.prepare()
        with self._hold_lock(), NoteHandler(self._view.note):
            try:
                if self._waiting():
                    self._services.start()
                    self._save(RUNNING)
                    self._view.started(self._services.start_information())
                    for text in self._launch.notes:
                        self._view.note(text)
                    self._loop()
                return self._finish()
            finally:
                self._end_all()
                self._view.close()

    def kill(self) -> None:
        """Waits for nothing."""
        self._signal(signal.SIGKILL)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        lock = take_lock(self._paths.run_dir / "study.lock")
        if lock is None:
            raise RunBusyError(
                f"study {self._record.run} is led by another es-master: stop that one, or wait "
                f"until it ends"
            )
        try:
            write_pid(lock, os.getpid())
            yield
        finally:
            os.close(lock)

    # --- the loop

    def _loop(self) -> None:
        self._stop.begin()
        while True:
            if self._stop.requested and not self._stop_forwarded:
                self._stop_forwarded = True
                for process in self._processes:
                    process.stop()
            self._check_services()
            self._start_due()
            for key, _ in self._selector.select(SELECT_SECONDS):
                self._show_events(key.data)
            for process in self._processes:
                self._handle_end(process)
            self._view.draw([process.row for process in self._processes])
            if not any(process.is_active for process in self._processes) and (
                self._stop.requested or not self._waiting()
            ):
                return

    def _waiting(self) -> list[SeedProcess]:
        return [process for process in self._processes if process.entry.state == WAITING]

    def _check_services(self) -> None:
        if time.monotonic() - self._last_check < CHECK_SECONDS:
            return
        self._services.restart_ended()
        self._worker_places = self._services.worker_places()
        self._last_check = time.monotonic()

    def _start_due(self) -> None:
        """No more runs than workers: one without would only wait, and its --max-seconds would run
        out.
        """
        if self._stop.requested:
            return
        for process in self._processes:
            if process.is_due:
                self._start(process)
        free = self._worker_places - sum(process.is_active for process in self._processes)
        for process in self._waiting()[: max(0, free)]:
            self._start(process)

    def _start(self, process: SeedProcess) -> None:
        entry, log = process.entry, self._paths.run_dir / "logs" / f"s{process.entry.seed}.err"
        try:
            words = self._command_line(entry)
        except RedisError:  # it is away, and nobody knows whether it holds the run: ask again
            process.postpone(CHECK_SECONDS)
            return
        process.start(words, self._services.url, log)
        assert process.child is not None, "it was just started"
        self._selector.register(process.child.output, selectors.EVENT_READ, process)
        self._save(RUNNING)

    def _command_line(self, entry: SeedRun) -> list[str]:
        """A seed's es-master. Raises RedisError."""
        launch, folder = self._launch, self._paths.run_dir
        paths = RunPaths(entry.run, folder / f"s{entry.seed}", launch.shared)
        words = ["--json", "--workers", "0", "--queue", launch.queue]
        words += ["--run-dir", str(paths.run_dir)]
        flags = {
            "--insecure": launch.redis_url is not None,  # the study has warned
            "--shared": launch.shared,
        }
        words += [flag for flag, is_set in flags.items() if is_set]
        if launch.track:
            words += ["--track", ",".join(launch.track)]
        if launch.noise_dir is not None:
            words += ["--noise-dir", str(launch.noise_dir)]
        if entry.begun and self._has_checkpoint(paths):
            changes = self._record.changes.items()
            settings = [f"--{name.replace('_', '-')}={value}" for name, value in changes]
            return [*words, "--resume", entry.run, *settings]
        if entry.begun:
            paths.config_file.unlink(missing_ok=True)  # of a beginning that came to nothing
        config, start = replace(self._record.config, seed=entry.seed), self._record.warm_start
        command = repro_command(config, None if start is None else Path(start), with_recipe=False)
        return [*words, "--run", entry.run, *shlex.split(command)[1:]]

    def _has_checkpoint(self, paths: RunPaths) -> bool:
        is_stored = Checkpoints(paths.run_dir).read_newest() is not None
        return is_stored or self._services.has_checkpoint(paths.run)

    def _show_events(self, process: SeedProcess) -> None:
        for event in process.read_events():
            text = str(event.get("text"))
            if event["event"] != "note":
                self._view.event(process.row, event)
            # How to resume a stopped run is the study's to say.
            elif not (self._stop.requested and text.startswith("stopped at generation")):
                self._view.note(text, process.entry.seed)

    # --- ends

    def _handle_end(self, process: SeedProcess) -> None:
        code = None if process.child is None else process.child.poll()
        if process.child is None or code is None:
            return
        self._show_events(process)
        self._selector.unregister(process.child.output)
        if note := process.end(code):
            self._view.note(note, process.entry.seed)
        if process.entry.state == FAILED:
            self._first_failure = self._first_failure or process.entry.code or 1
        self._save(RUNNING)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.signal(number)

    def _end_all(self) -> None:
        """The runs first: they need the server for an orderly end."""
        children = [process.child for process in self._processes if process.child is not None]

        def are_gone() -> bool:
            for child in children:
                child.read_events()  # a full pipe would hold it
            return all(child.poll() is not None for child in children)

        steps = ((signal.SIGTERM, LEAVE_SECONDS), (signal.SIGKILL, 0.0))
        end_in_order(self._signal, are_gone, steps)
        self._services.stop()

    def _finish(self) -> int:
        states = {process.entry.state for process in self._processes}
        failed = FAILED in states and not self._stop.requested
        state = FINISHED if states == {FINISHED} else FAILED if failed else STOPPED
        self._view.ended(self._save(state))
        if state == FINISHED:
            return EXIT_DONE
        self._view.note(f"continue with: {self._resume_command()}")
        if failed:
            return self._first_failure
        codes = {process.entry.code for process in self._processes}
        return EXIT_DONE if codes == {EXIT_DONE} else EXIT_INTERRUPTED

    def _resume_command(self) -> str:
        words = f"{self._paths.named_run.word}{self._services.redis_flags}"
        return f"{format_command('es-master')} --resume {words}"

    def _save(self, state: str) -> SweepRecord:
        entries = [process.entry for process in self._processes]
        record = replace(self._record, state=state, entries=entries)
        record.save(self._paths.run_dir)
        return record


def make_view(out: SafeStream, record: SweepRecord, launch: Launch) -> SweepView:
    if launch.json:
        return SweepJsonView(out, record, launch.quiet)
    if not launch.quiet and out.is_terminal:
        # start-up: rich; logs do not need it
        from master.sweep.table import SweepTableView

        return SweepTableView(out, record)
    return SweepLogView(out, record, launch.quiet)
