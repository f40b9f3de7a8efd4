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

from es_queue.commands import shown_command
from es_queue.custom_code import named_modules
from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, RedisError, RunBusyError
from master.checkpoint import Checkpoints, write_atomically
from master.console import SafeStream
from master.household.locks import take_lock, write_pid
from master.options import Launch
from master.place import Place
from master.study.child import Child
from master.study.household import SharedHousehold
from master.study.record import FAILED, FINISHED, RUNNING, STOPPED, WAITING, Entry, StudyRecord, settings_toml
from master.study.view import Row, StudyView, chosen_view

#: Waits before an es-master that was killed is started again; the longest outlasts the lease of its predecessor.
BACKOFF_SECONDS = (1.0, 4.0, 12.0)
#: One that lived longer begins to count anew.
LONG_LIFE = 600.0
HEAR_SECONDS = 0.1
LOOK_SECONDS = 1.0
#: What a failing study grants its runs to leave their checkpoints.
LEAVE_SECONDS = 20.0
BUSY, AWAY = RunBusyError.exit_code, RedisError.exit_code
RESTARTING, STOPPING = "restarting", "stopping"


class Stop:
    """SIGINT, SIGTERM and a closed terminal: the first asks, and is a KeyboardInterrupt before runs begin; the second kills."""

    def __init__(self) -> None:
        self.asked = False
        self.study: Study | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if self.asked:
            if self.study is not None:
                self.study.kill()
            os._exit(EXIT_INTERRUPTED)
        self.asked = True
        if self.study is None or not self.study.began:
            raise KeyboardInterrupt


@dataclass
class Member:
    """One seed's part in the study. due: when its es-master is to be started again (seconds, monotonic clock);
    joined: this es-master has got as far as its run."""

    entry: Entry
    row: Row
    child: Child | None = None
    started: float = 0.0
    failures: int = 0
    joined: bool = False
    due: float | None = None

    @property
    def active(self) -> bool:
        return self.child is not None or self.due is not None


class Study:
    """Drives the runs of ``record``. began: a run has been started, so from now on the end is an orderly one."""

    def __init__(self, record: StudyRecord, place: Place, launch: Launch, stop: Stop) -> None:
        self._record, self._folder, self._launch, self._stop = record, place.run_dir, launch, stop
        self._place = place
        self._members = [Member(entry, Row.of(entry)) for entry in record.entries]
        self._view: StudyView = chosen_view(SafeStream(sys.stdout), record, quiet=launch.quiet, json_lines=launch.json)
        self._household = SharedHousehold(launch, place.run_dir, self._view.note, named_modules(record.config))
        self._selector = selectors.DefaultSelector()
        self._looked = 0.0
        self._places = 1
        self._told = False
        self._first_failure = EXIT_DONE
        self.began = False
        stop.study = self

    def drive(self) -> int:
        """Run all seeds to their ends; returns the exit code."""
        self._place.prepare()
        with self._alone():
            try:
                if any(one.entry.state == WAITING for one in self._members):
                    self._household.start()
                    write_atomically(self._folder / "settings.toml", settings_toml(self._record.config).encode())
                    self._save(RUNNING)
                    self._view.started(self._household.about())
                    self._loop()
                return self._conclude()
            finally:
                self._leave()
                self._view.close()

    def kill(self) -> None:
        """End everything at once; waits for nothing."""
        self._signal(signal.SIGKILL)
        self._household.kill()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the study's lock, so that nobody else drives it."""
        lock = take_lock(self._folder / "study.lock")
        if lock is None:
            raise RunBusyError(f"study {self._record.run} is driven by another es-master: stop that one, or wait for its end")
        try:
            write_pid(lock, os.getpid())
            yield
        finally:
            os.close(lock)

    # --- the loop

    def _loop(self) -> None:
        self.began = True
        while True:
            if self._stop.asked and not self._told:
                self._tell_all()
            self._look()
            self._start_due()
            for key, _ in self._selector.select(HEAR_SECONDS):
                self._hear(key.data)
            for member in self._members:
                self._reap(member)
            self._view.draw([member.row for member in self._members])
            waiting = any(member.entry.state == WAITING for member in self._members)
            if not any(member.active for member in self._members) and (self._stop.asked or not waiting):
                return

    def _look(self) -> None:
        """Each second: after server and workers, and how many runs can have one."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._household.tick()
        self._places = self._household.places()
        self._looked = time.monotonic()

    def _start_due(self) -> None:
        """Start again what was killed, and no more runs than can have a worker each: one without would only wait, and
        its --max-seconds would run out meanwhile."""
        if self._stop.asked:
            return
        now = time.monotonic()
        for member in self._members:
            if member.due is not None and now >= member.due:
                self._start(member)
        free = self._places - sum(member.active for member in self._members)
        for member in [one for one in self._members if one.entry.state == WAITING][: max(0, free)]:
            self._start(member)

    def _start(self, member: Member) -> None:
        entry = member.entry
        try:
            words = self._words(entry)
        except RedisError:  # it is away, and nobody knows whether it holds the run: ask again
            entry.state, member.due = RUNNING, time.monotonic() + LOOK_SECONDS
            return
        member.child = Child(words, self._household.url, self._folder / "logs" / f"s{entry.seed}.err")
        member.started, member.due, member.joined = time.monotonic(), None, False
        self._selector.register(member.child.out, selectors.EVENT_READ, member)
        entry.begun, entry.state, member.row.state = True, RUNNING, RUNNING
        self._save(RUNNING)

    def _words(self, entry: Entry) -> list[str]:
        """The command line of a seed's es-master. Raises RedisError when Redis must be asked and does not answer."""
        launch = self._launch
        place = Place(entry.run, self._folder / f"s{entry.seed}", launch.shared)
        words = ["--json", "--workers", "0", "--queue", launch.queue, "--run-dir", str(place.run_dir)]
        if launch.redis_url is not None:
            words.append("--insecure")  # the study has warned
        if launch.shared:
            words.append("--shared")
        if launch.noise_dir is not None:
            words += ["--noise-dir", str(launch.noise_dir)]
        if launch.tensorboard:
            words.append("--tensorboard")
        if entry.begun and (Checkpoints(place.run_dir).newest() is not None or self._household.holds(entry.run)):
            return [*words, "--resume", entry.run, *(f"--{name.replace('_', '-')}={value}" for name, value in self._record.changes.items())]
        if entry.begun:
            place.config_file.unlink(missing_ok=True)  # of a beginning that came to nothing
        if self._record.warm_start is not None:
            words += ["--warm-start", self._record.warm_start]
        return [*words, "--run", entry.run, "--config", str(self._folder / "settings.toml"), "--seed", str(entry.seed)]

    def _hear(self, member: Member) -> None:
        for event in member.child.hear() if member.child is not None else ():
            if event["event"] == "note":
                text = str(event.get("text"))
                if not (self._stop.asked and text.startswith("stopped at generation")):  # the way back is the study's
                    self._view.note(text, member.entry.seed)
                continue
            member.joined = member.joined or event["event"] == "started"
            if event["event"] == "generation":
                member.row.hear(event)
            if event["event"] == "summary":
                member.entry.summary = {name: value for name, value in event.items() if name != "event"}
            self._view.event(member.row, event)

    # --- ends

    def _reap(self, member: Member) -> None:
        """Notice the end of a run's es-master, and what it means."""
        child, entry = member.child, member.entry
        code = None if child is None else child.ended()
        if child is None or code is None:
            return
        self._hear(member)
        self._selector.unregister(child.out)
        child.close()
        member.child = None
        entry.code = code if code >= 0 else 128 - code
        finished = (entry.summary or {}).get("state") == FINISHED
        if time.monotonic() - member.started > LONG_LIFE:
            member.failures = 0
        # The lease of one that was killed still stands; or Redis was away just when this one came.
        passing = (code == BUSY and member.failures > 0) or (code == AWAY and not member.joined)
        if code == EXIT_DONE and finished:
            entry.state = FINISHED
        elif code == EXIT_INTERRUPTED or (code < 0 and self._stop.asked):
            entry.state = STOPPED
        elif (code < 0 or passing) and member.failures < len(BACKOFF_SECONDS):
            self._start_later(member)
            return
        else:
            self._fail(member, child.last_words() or (f"its es-master was killed by {signal_name(code)}" if code < 0 else ""))
        member.row.state = entry.state
        self._save(RUNNING)

    def _start_later(self, member: Member) -> None:
        pause = BACKOFF_SECONDS[member.failures]
        member.failures += 1
        member.due, member.row.state = time.monotonic() + pause, RESTARTING
        self._view.note(f"its es-master ended with code {member.entry.code} and is started again in {pause:.0f} s", member.entry.seed)

    def _fail(self, member: Member, why: str) -> None:
        entry = member.entry
        entry.state, entry.why = FAILED, why
        self._first_failure = self._first_failure or entry.code or 1
        self._view.note(f"failed with exit code {entry.code}{': ' + why if why else ''}", entry.seed)

    def _tell_all(self) -> None:
        """Forward the wish to stop, once; what only waited to be started again stays as it is."""
        self._told = True
        self._signal(signal.SIGTERM)
        for member in self._members:
            if member.child is not None:
                member.row.state = STOPPING
            elif member.due is not None:
                member.due, member.entry.state, member.row.state = None, STOPPED, STOPPED

    def _signal(self, number: signal.Signals) -> None:
        for member in self._members:
            if member.child is not None:
                with suppress(OSError):
                    member.child.signal(number)

    def _leave(self) -> None:
        """End what still runs, the runs first: they need the server for an orderly end."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + LEAVE_SECONDS
        children = [member.child for member in self._members if member.child is not None]
        while any(child.ended() is None for child in children) and time.monotonic() < deadline:
            for child in children:
                child.hear()
            time.sleep(HEAR_SECONDS)
        self._signal(signal.SIGKILL)
        self._household.stop()

    def _conclude(self) -> int:
        """Tell and store what it came to; returns the exit code."""
        states = {entry.state for entry in self._record.entries}
        failed = FAILED in states and not self._stop.asked
        state = FINISHED if states == {FINISHED} else FAILED if failed else STOPPED
        self._save(state)
        self._view.ended(self._record)
        if state == FINISHED:
            return EXIT_DONE
        folder = f" --run-dir {self._folder}" if self._launch.run_dir is not None else ""
        url = "" if self._household.private else self._household.flag("--redis-url")
        self._view.note(f"go on with: {shown_command('es-master')} --resume {self._record.run}{folder}{url}")
        return self._first_failure if failed else EXIT_INTERRUPTED

    def _save(self, state: str) -> None:
        self._record.state = state
        self._record.save(self._folder)


def signal_name(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
