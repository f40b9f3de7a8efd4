"""The runs of a study side by side: start them, hear them, notice how they end."""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, RedisError, RunBusyError
from es_queue.security.user_code import named_modules
from es_queue.util.command_path import format_command
from es_queue.util.file_lock import take_lock, write_pid
from master.display.log_view import SafeStream
from master.run.launch import Launch
from master.run.run_paths import RunPaths
from master.services.child_process import RestartTimer, end_in_order
from master.services.start_lines import redis_flag
from master.storage.checkpoint import Checkpoints, write_atomically
from master.sweep.child import ChildMaster
from master.sweep.record import (
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    WAITING,
    SeedRun,
    SweepRecord,
    format_settings_toml,
)
from master.sweep.shared_services import SharedServices
from master.sweep.view import SeedRow, SweepView
from master.sweep.view_choice import make_view

#: Waits before an es-master that was killed is started again; the longest outlasts the lease of its
#: predecessor.
BACKOFF_SECONDS = (1.0, 4.0, 12.0)
#: One that lived longer begins to count anew.
LONG_LIFE_SECONDS = 600.0
SELECT_SECONDS = 0.1
CHECK_SECONDS = 1.0
#: What a failing study grants its runs to leave their checkpoints.
LEAVE_SECONDS = 20.0
BUSY_CODE, REDIS_CODE = RunBusyError.exit_code, RedisError.exit_code
RESTARTING, STOPPING = "restarting", "stopping"


class SweepStopSignals:
    """SIGINT, SIGTERM and a closed terminal: the first asks, and is a KeyboardInterrupt before runs
    begin; the second kills.
    """

    def __init__(self) -> None:
        self.requested = False
        self.sweep: Sweep | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self.requested:
            if self.sweep is not None:
                self.sweep.kill()
            os._exit(EXIT_INTERRUPTED)
        self.requested = True
        if self.sweep is None or not self.sweep.has_begun:
            raise KeyboardInterrupt


@dataclass
class SeedProcess:
    """One seed's part in the study. timer: when its es-master is started again; has_joined: this
    es-master has got as far as its run.
    """

    entry: SeedRun
    row: SeedRow
    timer: RestartTimer
    child: ChildMaster | None = None
    has_joined: bool = False

    @property
    def is_active(self) -> bool:
        return self.child is not None or self.timer.restart_at is not None


class Sweep:
    """Drives the runs of ``record``. has_begun: a run has been started, so from now on the end is
    an orderly one.
    """

    def __init__(
        self, record: SweepRecord, paths: RunPaths, launch: Launch, stop: SweepStopSignals
    ) -> None:
        self._record, self._folder, self._launch, self._stop = record, paths.run_dir, launch, stop
        self._paths = paths
        self._processes = [
            SeedProcess(
                entry, SeedRow.from_entry(entry), RestartTimer(BACKOFF_SECONDS, LONG_LIFE_SECONDS)
            )
            for entry in record.entries
        ]
        self._view: SweepView = make_view(
            SafeStream(sys.stdout), record, quiet=launch.quiet, json_lines=launch.json
        )
        self._services = SharedServices(
            launch, paths.run_dir, self._view.note, named_modules(record.config)
        )
        self._selector = selectors.DefaultSelector()
        self._last_check = 0.0
        self._worker_places = 1
        self._stop_forwarded = False
        self._first_failure = EXIT_DONE
        self.has_begun = False
        stop.sweep = self

    def run(self) -> int:
        """Run all seeds to their ends; returns the exit code."""
        self._paths.prepare()
        with self._hold_lock():
            try:
                if any(process.entry.state == WAITING for process in self._processes):
                    self._services.start()
                    write_atomically(
                        self._folder / "settings.toml",
                        format_settings_toml(self._record.config).encode(),
                    )
                    self._save(RUNNING)
                    self._view.started(self._services.start_information())
                    self._loop()
                return self._finish()
            finally:
                self._end_all()
                self._view.close()

    def kill(self) -> None:
        """End everything at once; waits for nothing."""
        self._signal(signal.SIGKILL)
        self._services.kill()

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the study's lock, so that nobody else drives it."""
        lock = take_lock(self._folder / "study.lock")
        if lock is None:
            raise RunBusyError(
                f"study {self._record.run} is driven by another es-master: stop that one, or "
                "wait for its end"
            )
        try:
            write_pid(lock, os.getpid())
            yield
        finally:
            os.close(lock)

    # --- the loop

    def _loop(self) -> None:
        self.has_begun = True
        while True:
            if self._stop.requested and not self._stop_forwarded:
                self._forward_stop()
            self._check_services()
            self._start_waiting()
            for key, _ in self._selector.select(SELECT_SECONDS):
                self._read_events(key.data)
            for member in self._processes:
                self._handle_end(member)
            self._view.draw([member.row for member in self._processes])
            waiting = any(member.entry.state == WAITING for member in self._processes)
            if not any(member.is_active for member in self._processes) and (
                self._stop.requested or not waiting
            ):
                return

    def _check_services(self) -> None:
        """Each second: after server and workers, and how many runs can have one."""
        if time.monotonic() - self._last_check < CHECK_SECONDS:
            return
        self._services.restart_ended()
        self._worker_places = self._services.worker_places()
        self._last_check = time.monotonic()

    def _start_waiting(self) -> None:
        """Start again what was killed, and no more runs than can have a worker each: one without
        would only wait, and its --max-seconds would run out meanwhile.
        """
        if self._stop.requested:
            return
        for member in self._processes:
            if member.timer.is_due():
                self._start(member)
        free = self._worker_places - sum(member.is_active for member in self._processes)
        for member in [process for process in self._processes if process.entry.state == WAITING][
            : max(0, free)
        ]:
            self._start(member)

    def _start(self, member: SeedProcess) -> None:
        entry = member.entry
        try:
            words = self._command_line(entry)
        except RedisError:  # it is away, and nobody knows whether it holds the run: ask again
            entry.state = RUNNING
            member.timer.postpone(CHECK_SECONDS)
            return
        member.child = ChildMaster(
            words, self._services.url, self._folder / "logs" / f"s{entry.seed}.err"
        )
        member.timer.start()
        member.has_joined = False
        self._selector.register(member.child.output, selectors.EVENT_READ, member)
        entry.begun, entry.state, member.row.state = True, RUNNING, RUNNING
        self._save(RUNNING)

    def _command_line(self, entry: SeedRun) -> list[str]:
        """The command line of a seed's es-master. Raises RedisError when Redis must be asked and
        does not answer.
        """
        launch = self._launch
        paths = RunPaths(entry.run, self._folder / f"s{entry.seed}", launch.shared)
        words = [
            "--json",
            "--workers",
            "0",
            "--queue",
            launch.queue,
            "--run-dir",
            str(paths.run_dir),
        ]
        if launch.redis_url is not None:
            words.append("--insecure")  # the study has warned
        if launch.shared:
            words.append("--shared")
        if launch.noise_dir is not None:
            words += ["--noise-dir", str(launch.noise_dir)]
        if launch.tensorboard:
            words.append("--tensorboard")
        if entry.begun and (
            Checkpoints(paths.run_dir).read_newest() is not None
            or self._services.has_checkpoint(entry.run)
        ):
            return [
                *words,
                "--resume",
                entry.run,
                *(
                    f"--{name.replace('_', '-')}={value}"
                    for name, value in self._record.changes.items()
                ),
            ]
        if entry.begun:
            paths.config_file.unlink(missing_ok=True)  # of a beginning that came to nothing
        if self._record.warm_start is not None:
            words += ["--warm-start", self._record.warm_start]
        return [
            *words,
            "--run",
            entry.run,
            "--config",
            str(self._folder / "settings.toml"),
            "--seed",
            str(entry.seed),
        ]

    def _read_events(self, member: SeedProcess) -> None:
        for event in member.child.read_events() if member.child is not None else ():
            if event["event"] == "note":
                text = str(event.get("text"))
                if not (
                    self._stop.requested and text.startswith("stopped at generation")
                ):  # the way back is the study's
                    self._view.note(text, member.entry.seed)
                continue
            member.has_joined = member.has_joined or event["event"] == "started"
            if event["event"] == "generation":
                member.row.update(event)
            if event["event"] == "summary":
                member.entry.summary = {
                    name: value for name, value in event.items() if name != "event"
                }
            self._view.event(member.row, event)

    # --- ends

    def _handle_end(self, member: SeedProcess) -> None:
        """Notice the end of a run's es-master, and what it means."""
        child, entry = member.child, member.entry
        code = None if child is None else child.poll()
        if child is None or code is None:
            return
        self._read_events(member)
        self._selector.unregister(child.output)
        child.close()
        member.child = None
        entry.code = code if code >= 0 else 128 - code
        finished = (entry.summary or {}).get("state") == FINISHED
        member.timer.end()
        # The lease of one that was killed still stands; or Redis was away just when this one came.
        is_passing = (code == BUSY_CODE and member.timer.failures > 0) or (
            code == REDIS_CODE and not member.has_joined
        )
        if code == EXIT_DONE and finished:
            entry.state = FINISHED
        elif code == EXIT_INTERRUPTED or (code < 0 and self._stop.requested):
            entry.state = STOPPED
        elif (code < 0 or is_passing) and not member.timer.is_exhausted:
            self._schedule_restart(member)
            return
        else:
            self._fail(
                member,
                child.last_error_line()
                or (f"its es-master was killed by {signal_name(code)}" if code < 0 else ""),
            )
        member.row.state = entry.state
        self._save(RUNNING)

    def _schedule_restart(self, member: SeedProcess) -> None:
        pause = member.timer.schedule()
        member.row.state = RESTARTING
        self._view.note(
            (
                f"its es-master ended with code {member.entry.code} and is started again in "
                f"{pause:.0f} s"
            ),
            member.entry.seed,
        )

    def _fail(self, member: SeedProcess, why: str) -> None:
        entry = member.entry
        entry.state, entry.why = FAILED, why
        self._first_failure = self._first_failure or entry.code or 1
        self._view.note(
            f"failed with exit code {entry.code}{': ' + why if why else ''}", entry.seed
        )

    def _forward_stop(self) -> None:
        """Forward the wish to stop, once; what only waited to be started again stays as it is."""
        self._stop_forwarded = True
        self._signal(signal.SIGTERM)
        for member in self._processes:
            if member.child is not None:
                member.row.state = STOPPING
            elif member.timer.restart_at is not None:
                member.timer.cancel()
                member.entry.state = member.row.state = STOPPED

    def _signal(self, number: signal.Signals) -> None:
        for member in self._processes:
            if member.child is not None:
                with suppress(OSError):
                    member.child.signal(number)

    def _end_all(self) -> None:
        """End what still runs, the runs first: they need the server for an orderly end."""
        children = [member.child for member in self._processes if member.child is not None]

        def are_gone() -> bool:
            for child in children:
                child.read_events()  # a full pipe would hold it
            return all(child.poll() is not None for child in children)

        steps = ((signal.SIGTERM, LEAVE_SECONDS), (signal.SIGKILL, 0.0))
        end_in_order(self._signal, are_gone, steps)
        self._services.stop()

    def _finish(self) -> int:
        """Tell and store what it came to; returns the exit code."""
        states = {entry.state for entry in self._record.entries}
        failed = FAILED in states and not self._stop.requested
        state = FINISHED if states == {FINISHED} else FAILED if failed else STOPPED
        self._save(state)
        self._view.ended(self._record)
        if state == FINISHED:
            return EXIT_DONE
        folder = f" --run-dir {self._folder}" if self._launch.run_dir is not None else ""
        url = "" if self._services.is_private else redis_flag(self._services.url, "--redis-url")
        self._view.note(
            f"go on with: {format_command('es-master')} --resume {self._record.run}{folder}{url}"
        )
        return self._first_failure if failed else EXIT_INTERRUPTED

    def _save(self, state: str) -> None:
        self._record.state = state
        self._record.save(self._folder)


def signal_name(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
