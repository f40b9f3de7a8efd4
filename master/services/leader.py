"""The lock of the folder of a run or study, and its file ``master.json``: who leads it, since when,
and on which server.

The server's lease decides between masters on one server. The lock keeps a second master on another
server out of the folder, also on a file system that several hosts share.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from es_queue.command_line import format_command
from es_queue.credentials import password_of, with_password
from es_queue.errors import DecodeError, RedisError, RunBusyError
from es_queue.files import parse_json, read_file
from es_queue.private_files import no_link, try_lock
from es_queue.protocol.connection import redacted_url, tested_client
from es_queue.protocol.control import ControlClient
from es_queue.protocol.keys import Clocks
from es_queue.run_folder import LEADER_FILE, NamedRun
from es_queue.text import sanitize
from master.services.private_server import PrivateServer
from master.services.tcp_access import account_key

LOGGER = logging.getLogger("es_queue.run")
MOST_BYTES = 4096
#: Settings of a URL that hold no secret.
PUBLIC_SETTINGS = (
    *("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
    *("ssl_cert_reqs", "ssl_check_hostname"),
)


@dataclass(frozen=True)
class Leader:
    """The last master of a folder. url: of a named server, without its password, empty for a
    private server; ended: in order; seal: this account's, of the other fields that matter
    """

    run: str
    url: str
    host: str
    pid: int
    since: float
    ended: bool = False
    seal: str = ""

    def sealed(self) -> str:
        """A folder can be a stranger's: only a URL that this account wrote gets its password."""
        return hmac.digest(account_key(), f"{self.run} {self.url}".encode(), "sha256").hex()

    @property
    def is_trusted(self) -> bool:
        return hmac.compare_digest(self.seal.encode(), self.sealed().encode())

    @property
    def is_here(self) -> bool:
        return self.host == platform.node()

    def is_on(self, run: NamedRun, url: str) -> bool:
        """Whether ``url`` names the server of ``run``, which this leads."""
        return is_same_server(self.url, url) if self.url else is_own_private(run, url)

    @property
    def server(self) -> str:
        return redacted_url(self.url) if self.url else f"a private server of {self.host}"

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return sanitize(f"{self.host} pid {self.pid} leads it since {since} on {self.server}", 300)


def read_leader(folder: Path) -> Leader | None:
    """None without a valid record. Its texts are untrusted."""
    with suppress(OSError, DecodeError, ValueError, TypeError, OverflowError):
        about = parse_json(read_file(folder / LEADER_FILE, MOST_BYTES), MOST_BYTES)
        leader = Leader(**about)
        kinds = {"pid": int, "since": float, "ended": bool}
        if all(type(value) is kinds.get(name, str) for name, value in asdict(leader).items()):
            str(leader)  # raises for an impossible time or URL
            return leader
    return None


def leader_of(run: NamedRun) -> Leader | None:
    """The newer record of the run's folder and its study's."""
    found = map(read_leader, {run.folder, run.server_folder.parent})
    return max(filter(None, found), key=lambda leader: leader.since, default=None)


def public_url(url: str) -> str:
    """The URL without its password and other secrets."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    # A user without a password may be a misplaced one.
    user = user.partition(":")[0] if password_of(url) is not None else ""
    settings = [pair for pair in parse_qsl(parts.query) if pair[0] in PUBLIC_SETTINGS]
    public = f"{parts.scheme}://{user}{at if user else ''}{host}{parts.path}"
    return f"{public}?{urlencode(settings)}" if settings else public


def is_same_server(first: str, second: str) -> bool:
    """Whether two URLs name one server and database, whatever their users."""
    return _place(first) == _place(second)


def _place(url: str) -> tuple[str, int, str, str]:
    try:
        parts = urlsplit(url)
        number = dict(parse_qsl(parts.query)).get("db") or "0"
        if parts.scheme == "unix":
            return "", 0, parts.path, number
        host = (parts.hostname or "localhost").replace("localhost", "127.0.0.1")
        return host, parts.port or 6379, "", parts.path.strip("/") or number
    except ValueError:
        return url, 0, "", ""


def is_own_private(run: NamedRun, url: str) -> bool:
    """Whether the URL is that of the private server in the run's or its study's folder."""
    if not url.startswith("unix:"):
        return False
    with suppress(RedisError):
        return is_same_server(url, PrivateServer(run.server_folder).url)
    return False


class FolderLock:
    """The lock of a run's folder for this process. url: of a named server, empty for a private
    one.
    """

    def __init__(self, run: NamedRun, url: str, clocks: Clocks) -> None:
        self._run, self._clocks, self._path = run, clocks, run.folder / LEADER_FILE
        self._descriptor: int | None = None
        self._record = Leader(
            run.run, public_url(url) if url else "", platform.node(), os.getpid(), time.time()
        )

    def take(self, leased: bool = True) -> None:
        """leased: whether a lease decides between masters on one server, as for every run but no
        study.

        Raises RunBusyError if a living master leads the folder on another server, RunFolderError
        for a folder that cannot be locked.
        """
        if self._descriptor is not None:
            return
        self._descriptor = try_lock(self._path, mode=0o666)
        former = read_leader(self._run.folder)
        if former is None or former.ended:
            if self._descriptor is None:
                raise RunBusyError(
                    f"run {self._run.run} is live: another es-master has just started in "
                    f"{self._run.folder}; wait a second, or start another run"
                )
            return
        mine = self._record.url
        is_same = is_same_server(former.url, mine) if mine and former.url else former.is_here
        if leased and is_same and bool(mine) == bool(former.url):
            return
        # The kernel has released the lock of a master that ended on this host.
        if self._descriptor is None or (not former.is_here and self._is_led(former, leased)):
            self.release()
            stop = f"{format_command('es-master')} --stop {self._run.word}"
            there = "" if former.url or former.is_here else " there"
            raise RunBusyError(
                f"run {self._run.run} is live: {former}; stop it first{there} ({stop}), or start "
                "another run"
            )

    def _is_led(self, former: Leader, leased: bool) -> bool:
        """Ask the server of a master on another host, else see whether it still touches the file: a
        lock can be unknown to other hosts.
        """
        if leased and former.url and former.is_trusted:
            with suppress(RedisError), tested_client(with_password(former.url)) as client:
                return ControlClient(client, self._run.run).lease_status().holder is not None
        seconds = self._clocks.lease + self._clocks.renew
        LOGGER.info(f"waiting {seconds:.0f} s, because the run may be live: {former}")
        first, deadline = self._touched(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._touched() != first:
                return True
            time.sleep(min(0.1, self._clocks.renew))
        return False

    def _touched(self) -> int:
        with open(self._path, "rb", opener=no_link) as file:  # opened, so that NFS looks again
            return os.fstat(file.fileno()).st_mtime_ns

    def write(self) -> None:
        """Record this process as the master, once it has the lease."""
        self._record = replace(self._record, seal=self._record.sealed())
        text = json.dumps(asdict(self._record)).encode()
        with open(self._path, "rb+", opener=no_link) as file:
            file.write(text + b"\n")  # in place: the lock is the file's
            file.truncate()

    def beat(self) -> None:
        """Show other hosts a sign of life, and take the lock if a master that hung still had it."""
        with suppress(Exception):
            if self._descriptor is None:
                self._descriptor = try_lock(self._path, mode=0o666)
            os.utime(self._path)

    def mark_ended(self) -> None:
        if self._record.seal:
            self._record = replace(self._record, ended=True)
            with suppress(OSError):
                self.write()

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
