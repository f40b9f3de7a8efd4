"""GuardianClient: the master's side of its guardian: start it, adopt the one of a dead master, start it again, end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from es_queue.errors import RedisError, RunBusyError, RunFolderError
from es_queue.noise import FOLDER_VARIABLE
from es_queue.private_folder import no_link
from es_queue.protocol.clocks import Clocks
from es_queue.protocol.connection import safe_name
from es_queue.protocol.passwords import without_redis
from master.household.embedded import START_SECONDS, EmbeddedServer, server_binary
from master.household.files import READY, Files, Spec
from master.household.listen import settled
from master.household.local_workers import default_workers
from master.household.locks import is_locked, pid_in, take_lock, try_lock, write_pid
from master.options import Launch
from master.place import Place

#: To end in order takes a guardian at most this long: workers 10 + 1.2 + 10 s, the server twice 10 s.
STOP_SECONDS = 45.0
KILL_SECONDS = 2.0
#: It may first have to end a server that hangs, and to wait for one that loads much data.
READY_SECONDS = START_SECONDS + 30.0
POLL_SECONDS = 0.01

#: With -P: the current folder's own packages must not shadow ours, which need not be installed.
PROGRAM = "import sys; sys.argv[1] in sys.path or sys.path.insert(0, sys.argv[1]); from master.household.guardian import main; main()"


class GuardianClient:
    """The guardian in ``folder``, for the master that may start and end it. All methods are for one thread.

    environment: what the guardian gets in place of this process's own; a URL with a password goes this way
    server:      the private server that it keeps, if it does, to see that of another living master
    adopted:     the guardian is that of a master before us, and so are its server and workers
    """

    def __init__(self, folder: Path, spec: Spec, environment: dict[str, str], server: EmbeddedServer | None) -> None:
        self._files, self._spec, self._environment, self._server = Files(folder), spec, environment, server
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_lock: int | None = None
        self._launched = self._released = False
        self._news = 0
        self.adopted = False

    def start(self) -> None:
        """Have a guardian that is ready: a dead master's, if it does what is wanted, else one of our own.

        Beside another living master there is nothing to start: its server is used. Raises RedisError or
        RunFolderError in the sentence with which the guardian has failed.
        """
        self._files.prepare()
        deadline = time.monotonic() + START_SECONDS
        while not self._own():
            if self._server is None or self._server.alive():
                return
            if time.monotonic() > deadline:
                raise RedisError(f"the private server of another es-master does not answer: look at {self._files.folder} and end that es-master")
            time.sleep(POLL_SECONDS)
        lock = try_lock(self._files.guardian_lock)
        if lock is None:
            if self._adoptable():
                self.adopted = True
                self._news = self._files.news_end()
                return
            self._end()
            lock = self._freed_lock()
        self._launch(lock)

    def ensure(self) -> bool:
        """Start a guardian again if it has ended; says whether that was so."""
        if self._process is not None:
            self._process.poll()
        lock = try_lock(self._files.guardian_lock)
        if lock is None:
            return False
        self._own()
        self._launch(lock)
        return True

    def news(self) -> list[str]:
        """What the guardian has had to start again since the last call, in sentences."""
        found, self._news = self._files.read_news(self._news)
        return found

    def stop(self) -> None:
        """End workers and server in order, unless they are another living master's; returns when they are gone."""
        if not self._released and self._files.folder.is_dir() and (self._launched or self._own()):
            self._end()
        self.release()

    def release(self) -> None:
        """Be its master no longer, and leave it to itself: it ends when nobody leads the run."""
        self._released, self._launched = True, False
        if self._owner_lock is not None:
            os.close(self._owner_lock)
            self._owner_lock = None

    def kill(self) -> None:
        """End everything at once; waits for little."""
        if not self._launched and self._owner_lock is None:
            return
        self._signal(signal.SIGINT)
        if not self._wait_gone(KILL_SECONDS):
            self._signal(signal.SIGKILL)

    # --- starting

    def _own(self) -> bool:
        if self._owner_lock is None:
            self._owner_lock = take_lock(self._files.owner_lock)
            if self._owner_lock is not None:
                write_pid(self._owner_lock, os.getpid())
        return self._owner_lock is not None

    def _adoptable(self) -> bool:
        """Whether the living guardian is ready and does what is wanted."""
        with suppress(OSError, RunFolderError):
            return self._files.read_state()[0] == READY and self._files.read_spec() == self._spec
        return False

    def _freed_lock(self) -> int:
        lock = take_lock(self._files.guardian_lock)
        if lock is None:
            raise RunFolderError(f"another guardian has just been started in {self._files.folder}; try again")
        return lock

    def _launch(self, lock: int) -> None:
        """Start a guardian that inherits ``lock``, and wait until it is ready."""
        files, home = self._files, str(Path(__file__).resolve().parents[2])
        self._launched, self._process = True, None
        try:
            files.state.unlink(missing_ok=True)
            files.news.unlink(missing_ok=True)
            self._news = 0
            os.ftruncate(lock, 0)
            with os.fdopen(os.open(files.spec, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "w") as file:
                file.write(self._spec.to_json())
            with open(files.log, "ab", opener=no_link) as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", PROGRAM, home, str(files.folder), str(lock)], env={**without_redis(os.environ), **self._environment},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[lock], start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise RunFolderError(f"the guardian of the run cannot be started in {files.folder}: {error.strerror or error}") from error
        finally:
            os.close(lock)
        self._wait_ready()

    def _wait_ready(self) -> None:
        process, deadline = self._process, time.monotonic() + READY_SECONDS
        assert process is not None
        while self._files.read_state()[0] != READY:
            if time.monotonic() > deadline:
                raise RunFolderError(f"the guardian of the run is not ready after {READY_SECONDS:.0f} s; {self._files.log_tail()}")
            if process.poll() is not None:
                raise self._files.read_state()[1] or RunFolderError(f"the guardian of the run ended with code {process.returncode}; {self._files.log_tail()}")
            time.sleep(POLL_SECONDS)

    # --- ending

    def _end(self) -> None:
        """SIGTERM, then SIGKILL, with which the kernel ends workers and server too."""
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            self._signal(number)
            if self._wait_gone(seconds):
                return
        raise RunFolderError(f"the guardian in {self._files.folder} cannot be ended: end process {pid_in(self._files.guardian_lock)} and try again")

    def _signal(self, number: signal.Signals) -> None:
        """Signal the guardian; its pid counts only while the lock shows that it lives, so no stranger is hit."""
        with suppress(OSError):
            if self._process is not None:
                self._process.send_signal(number)
            elif is_locked(self._files.guardian_lock) and (pid := self._pid()):
                os.kill(pid, number)

    def _pid(self) -> int | None:
        """The pid of a guardian that is not our child. Raises RunBusyError for one on another host."""
        with suppress(OSError, RunFolderError):
            host = self._files.read_spec().host
            if host != self._spec.host:
                raise RunBusyError(f"server and workers of run {self._spec.run} still run on {host}: resume there, or try again in {self._spec.clocks['grace']:.0f} s")
        return pid_in(self._files.guardian_lock)

    def _wait_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            gone = self._process.poll() is not None if self._process is not None else not is_locked(self._files.guardian_lock)
            if gone or time.monotonic() > deadline:
                return gone
            time.sleep(POLL_SECONDS)


def guardian_for(launch: Launch, place: Place, clocks: Clocks, server: EmbeddedServer | None, modules: Sequence[str] = ()) -> GuardianClient | None:
    """The guardian of a run's private server and local workers, not started; None for a run that has neither.

    Raises UsageError for a --listen that cannot be, RedisError where there is no server's program.
    """
    count = launch.workers
    if count is None:
        count = default_workers() if server is not None else 0
    if server is None and count == 0:
        return None
    noise = None if launch.noise_dir is None else str(launch.noise_dir.absolute())
    spec = Spec(
        run=place.run, server=None if server is None else str(server.folder), binary=None if server is None else server_binary(),
        listen=None if server is None or launch.listen is None else str(settled(launch.listen, server.folder)),
        redis="" if launch.redis_url is None else safe_name(launch.redis_url), workers=count, queue=launch.queue, noise=noise,
        logs=str((place.run_dir / "logs").absolute()), clocks=dict(clocks.__dict__), modules=list(modules),
    )  # fmt: skip
    environment = {} if launch.redis_url is None else {"RQ_REDIS_URL": launch.redis_url}
    if noise is not None:
        environment[FOLDER_VARIABLE] = noise
    return GuardianClient(place.run_dir / "guardian", spec, environment, server)
