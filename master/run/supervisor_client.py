"""SupervisorClient: starts, restarts and ends the supervisor, or adopts that of a dead master."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from es_queue.errors import RedisError, RunBusyError, RunFolderError
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from es_queue.protocol.connection import redacted_url
from es_queue.protocol.timing import Clocks
from es_queue.security.passwords import environment_without_redis
from es_queue.security.private_directory import replacing
from es_queue.util.cores import default_workers
from es_queue.util.file_lock import take_lock, try_lock, write_pid
from master.run.launch import Launch
from master.run.run_paths import RunPaths
from master.services.child_process import LockedProcess, end_in_order, log_tail, module_command
from master.services.private_server import START_SECONDS, PrivateServer, server_binary
from master.services.supervisor_files import READY, SupervisorFiles, SupervisorSpec
from master.services.tcp_access import resolve_listen_address

LOGGER = logging.getLogger("es_queue.services")
#: To end in order takes a supervisor at most this long: workers 10 + 1.2 + 10 s, the server twice
#: 10 s.
STOP_SECONDS = 45.0
KILL_SECONDS = 2.0
#: It may first have to end a server that hangs, and to wait for one that loads much data.
READY_SECONDS = START_SECONDS + 30.0
POLL_SECONDS = 0.01
NOTE_AFTER_SECONDS = 2.0


class SupervisorClient:
    """The supervisor in ``folder``, for the master that may start and end it. All methods are for
    one thread.

    environment: of the supervisor, in place of this process's own; it carries a URL with a password
    server:      the private server that it keeps, if any; it shows whether another living master
    owns it
    """

    def __init__(
        self,
        folder: Path,
        spec: SupervisorSpec,
        environment: dict[str, str],
        server: PrivateServer | None,
    ) -> None:
        self._files, self._spec, self._environment, self._server = (
            SupervisorFiles(folder),
            spec,
            environment,
            server,
        )
        self._child = LockedProcess(self._files.supervisor_lock)
        self._owner_lock: int | None = None
        self._is_launched = self._is_released = False
        self._news_offset = 0

    @property
    def local_workers(self) -> int:
        """How many workers the supervisor keeps running."""
        return self._spec.workers

    def start(self) -> None:
        """Make sure that a supervisor is ready: a dead master's, if its spec is equal, else a new
        one.

        If another living master has one, its server is used and nothing is started. Raises
        RedisError or RunFolderError with the supervisor's own sentence.
        """
        self._files.prepare()
        deadline = time.monotonic() + START_SECONDS
        while not self._acquire_ownership():
            if self._server is None or self._server.is_alive():
                return
            if time.monotonic() > deadline:
                raise RedisError(
                    "the private server of another es-master does not respond: look at "
                    f"{self._files.folder} and end that es-master"
                )
            time.sleep(POLL_SECONDS)
        lock = try_lock(self._files.supervisor_lock)
        if lock is None:
            if self._is_adoptable():
                self._news_offset = self._files.news_end()
                return
            self._end()
            lock = take_lock(self._files.supervisor_lock)
            if lock is None:
                raise RunFolderError(
                    f"another supervisor was just started in {self._files.folder}; try again"
                )
        self._launch(lock)

    def ensure(self) -> bool:
        """Restart an ended supervisor; returns whether it had ended."""
        self._child.exit_code()  # one that has ended does not stay a zombie
        lock = try_lock(self._files.supervisor_lock)
        if lock is None:
            return False
        self._acquire_ownership()
        self._launch(lock)
        return True

    def read_news(self) -> list[str]:
        news, self._news_offset = self._files.read_news(self._news_offset)
        return news

    def stop(self) -> None:
        """End workers and server in order, unless another living master uses them."""
        if (
            not self._is_released
            and self._files.folder.is_dir()
            and (self._is_launched or self._acquire_ownership())
        ):
            self._end()
        self.release()

    def release(self) -> None:
        """Release the supervisor, which ends when no master leads the run."""
        self._is_released, self._is_launched = True, False
        if self._owner_lock is not None:
            os.close(self._owner_lock)
            self._owner_lock = None

    def kill(self) -> None:
        if not self._is_launched and self._owner_lock is None:
            return
        self._refuse_other_host()
        steps = ((signal.SIGINT, KILL_SECONDS), (signal.SIGKILL, 0.0))
        end_in_order(self._child.signal, self._child.is_gone, steps)

    # --- starting

    def _acquire_ownership(self) -> bool:
        if self._owner_lock is None:
            self._owner_lock = take_lock(self._files.owner_lock)
            if self._owner_lock is not None:
                write_pid(self._owner_lock, os.getpid())
        return self._owner_lock is not None

    def _is_adoptable(self) -> bool:
        with suppress(OSError, RunFolderError):
            return self._files.read_state()[0] == READY and self._files.read_spec() == self._spec
        return False

    def _launch(self, lock: int) -> None:
        """Start a supervisor, which inherits ``lock``, and wait until it is ready."""
        files = self._files
        self._is_launched = True
        try:
            files.state.unlink(missing_ok=True)
            files.news.unlink(missing_ok=True)
            self._news_offset = 0
            with replacing(files.spec, mode=0o600) as file:
                file.write(self._spec.to_json().encode())
            command = module_command("master.services.supervisor", str(files.folder), str(lock))
            environment = {**environment_without_redis(os.environ), **self._environment}
            self._child.start(lock, command, files.log, environment)
        except OSError as error:
            raise RunFolderError(
                f"the run's supervisor cannot be started in {files.folder}: "
                f"{error.strerror or error}"
            ) from error
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while self._files.read_state()[0] != READY:
            if time.monotonic() > deadline:
                raise RunFolderError(
                    f"the run's supervisor is not ready after {READY_SECONDS:.0f} s; "
                    f"{log_tail(self._files.log)}"
                )
            if (code := self._child.exit_code()) is not None:
                raise self._files.read_state()[1] or RunFolderError(
                    f"the run's supervisor ended with code {code}; {log_tail(self._files.log)}"
                )
            time.sleep(POLL_SECONDS)

    # --- ending

    def _end(self) -> None:
        """SIGTERM, then SIGKILL, after which the kernel also ends workers and server."""
        self._refuse_other_host()
        steps = ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS))
        if not end_in_order(self._child.signal, self._child.is_gone, steps):
            raise RunFolderError(
                f"the supervisor in {self._files.folder} cannot be stopped: end process "
                f"{self._child.read_pid()} and try again"
            )
        self._child.reap()

    def _refuse_other_host(self) -> None:
        """Raises RunBusyError for a supervisor on another host, on which its pid is valid."""
        if self._child.is_child or self._child.is_gone():
            return
        with suppress(OSError, RunFolderError):
            host = self._files.read_spec().host
            if host != self._spec.host:
                raise RunBusyError(
                    f"server and workers of run {self._spec.run} still run on {host}: resume "
                    f"there, or try again in {self._spec.clocks['grace']:.0f} s"
                )


class SupervisorWatch:
    """``supervisor``: None for a run with neither a private server nor local workers."""

    def __init__(self, supervisor: SupervisorClient | None) -> None:
        self._supervisor = supervisor

    def handle_outage(self, seconds: float, trouble: str = "") -> None:
        """Redis did not answer, or refused by ``trouble``."""
        if not self.check() and seconds > NOTE_AFTER_SECONDS:
            LOGGER.warning(
                f"Redis refuses commands ({trouble}); trying again"
                if trouble
                else "Redis does not answer; trying again"
            )

    def check(self) -> bool:
        """Report and restart; returns whether there was anything."""
        if self._supervisor is None:
            return False
        news = self._supervisor.read_news()
        if self._supervisor.ensure():
            news.append(
                "the supervisor of the server and the local workers ended: all of them were "
                "restarted"
            )
        for text in news:
            LOGGER.warning(text)
        return bool(news)


def make_supervisor_client(
    launch: Launch,
    paths: RunPaths,
    clocks: Clocks,
    server: PrivateServer | None,
    modules: Sequence[str] = (),
) -> SupervisorClient | None:
    """The supervisor of a run's private server and local workers, not started; None for a run that
    has neither.

    Raises UsageError for an impossible --listen, RedisError if there is no server program.
    """
    count = launch.workers
    if count is None:
        count = default_workers() if server is not None else 0
    if server is None and count == 0:
        return None
    noise = None if launch.noise_dir is None else str(launch.noise_dir.absolute())
    spec = SupervisorSpec(
        run=paths.run,
        server=None if server is None else str(server.folder),
        binary=None if server is None else server_binary(),
        listen=None
        if server is None or launch.listen is None
        else str(resolve_listen_address(launch.listen, server.folder)),
        redis="" if launch.redis_url is None else redacted_url(launch.redis_url),
        workers=count,
        queue=launch.queue,
        noise=noise,
        logs=str((paths.run_dir / "logs").absolute()),
        clocks=dict(clocks.__dict__),
        modules=list(modules),
    )
    environment = {}
    if launch.redis_url is not None:
        environment["RQ_REDIS_URL"] = launch.redis_url
    if noise is not None:
        environment[FOLDER_VARIABLE] = noise
    return SupervisorClient(paths.run_dir / "guardian", spec, environment, server)
