"""``--listen``: the private server on TCP, its password, and the lines for other hosts."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import re
import secrets
import socket
from base64 import urlsafe_b64encode
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from es_queue.acl import WORKER
from es_queue.config.settings import short
from es_queue.errors import RedisError, UsageError
from es_queue.files import read_file
from es_queue.private_files import (
    cache_folder,
    create_new,
    host_private_directory,
    is_private,
    random_name,
    replacing,
)

#: Every address of this machine.
ALL_ADDRESSES = "0.0.0.0"
MOST_PORT = 65535
ADDRESS = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]*))(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)
PASSWORD = re.compile(r"[A-Za-z0-9_-]{20,200}", re.ASCII)
KEY_NAME, PROCESS_KEY = "run-folders.key", secrets.token_bytes(32)
#: Of each file that others come in by: password, address, URL.
MOST_BYTES = 1000
#: Reserved for documentation (RFC 5737): nothing is sent there, the kernel only says which way it
#: would go.
UNROUTED_ADDRESS = ("192.0.2.1", 9)


@dataclass(frozen=True)
class Address:
    """A host name or address of this machine, empty for none, and a port, 0 for none."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, name: str = "listen") -> Address:
    """``HOST:PORT``, ``HOST``, ``:PORT`` or nothing; an IPv6 address is in brackets. name: the
    flag's. Raises UsageError.
    """
    match = ADDRESS.fullmatch(text)
    port = int(match["port"] or 0) if match else 0
    if match is None or (match["port"] and not 0 < port <= MOST_PORT) or not _is_host(match):
        raise UsageError(
            f"{name} is {short(text)}: use HOST:PORT, HOST or :PORT, with a port from 1 to "
            f"{MOST_PORT} and an IPv6 address in brackets"
        )
    return Address(match["six"] or match["name"] or "", port)


def _is_host(match: re.Match[str]) -> bool:
    """Not just a number, which would be a port, and no broken IPv6 address."""
    six = match["six"]
    return ":" in six and is_address(six) if six else not (match["name"] or "").isdigit()


def is_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def resolve_listen_address(text: str, folder: Path) -> Address:
    """The address to listen on. Parts that ``text`` leaves open are as last time, else all
    addresses and a free port.

    ``folder`` is the server's. Raises UsageError, and RedisError for a host that is not this
    machine's.
    """
    requested, former = parse_address(text), Address("", 0)
    with suppress(OSError, ValueError, UsageError):
        stored = parse_address(read_file(folder / "listen", MOST_BYTES).decode().strip())
        former = stored if stored.host and stored.port else former
    host = requested.host or (former.host if not requested.port else "") or ALL_ADDRESSES
    return Address(host, requested.port or former.port or find_bindable_port(Address(host, 0)))


def find_bindable_port(address: Address) -> int:
    """The port if it is free there now; a free one for port 0. Raises RedisError."""
    try:
        candidates = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(candidates[0][0], socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(candidates[0][4])
            return int(probe.getsockname()[1])
    except OSError as error:
        raise RedisError(_format_bind_error(address, error)) from None


def _format_bind_error(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {address.port} of {address.host} is in use by another program: end that one, "
            "or give --listen another port"
        )
    if error.errno == errno.EACCES:
        return f"port {address.port} cannot be opened by this user: give --listen a port above 1023"
    return (
        f"--listen cannot use {address.host} ({error.strerror or error}): give an address of "
        "this machine, or :PORT for all of them"
    )


# --- the files in the server's folder


def write_private(path: Path, text: str) -> None:
    """Only its owner can read it. Raises RedisError."""
    try:
        with replacing(path, mode=0o600) as file:
            file.write(text.encode())
    except OSError as error:
        raise RedisError(f"{path} cannot be written: {error.strerror}") from None


def read_password(folder: Path) -> str | None:
    """None for a server that has never listened. Raises RedisError."""
    path = folder / "password"
    try:
        text = read_file(path, MOST_BYTES).decode("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RedisError(f"{path} cannot be read ({type(error).__name__}): remove it") from None
    if not PASSWORD.fullmatch(text):
        raise RedisError(f"{path} does not contain a password of es-queue: remove it")
    return text


def write_join_files(folder: Path, address: Address) -> None:
    """Write the owner's password, kept for the run's life, and the URL by which workers of other
    hosts join, with their own password. Raises RedisError.
    """
    password = make_password(folder)
    write_private(folder / "password", password + "\n")
    write_private(folder / "listen", f"{address}\n")
    write_private(
        folder / "url",
        f"redis://{WORKER}:{workers_password(password)}@"
        f"{Address(reachable_address(address.host), address.port)}\n",
    )


def workers_password(password: str) -> str:
    """The password of the user worker; ``password``: the owner's, which it does not reveal."""
    return (
        urlsafe_b64encode(hmac.digest(password.encode(), b"worker", "sha256")).decode().rstrip("=")
    )


def remove_join_files(folder: Path) -> None:
    """If the run listens again, it has the same password. Raises RedisError."""
    try:
        for name in ("password", "url"):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise RedisError(f"{folder} cannot be written: {error.strerror}") from None


def make_password(folder: Path) -> str:
    """The owner's password of a folder's server: a signature with the account's key."""
    code = hmac.digest(account_key(), str(folder.absolute()).encode(), "sha256")
    return urlsafe_b64encode(code).decode().rstrip("=")


def account_key() -> bytes:
    """This account's key, made when first needed; another one per process if it cannot be stored,
    so that a password then lasts as long as the process.
    """
    folders = [host_private_directory()]
    with suppress(RuntimeError):  # no home
        folders.insert(0, cache_folder() / "keys")
    for folder in folders:
        with suppress(OSError):
            if folder is None or not is_private(folder):
                continue
            path = folder / KEY_NAME
            if not path.exists():
                fresh = random_name(path)
                try:
                    with os.fdopen(create_new(fresh, 0o600), "wb") as file:
                        file.write(PROCESS_KEY)
                    with suppress(FileExistsError):
                        os.link(fresh, path)  # one process of several makes it
                finally:
                    fresh.unlink(missing_ok=True)
            if len(key := read_file(path, len(PROCESS_KEY))) == len(PROCESS_KEY):
                return key
    return PROCESS_KEY


def reachable_address(host: str) -> str:
    """The address for other machines; this one's name if no interface leads outwards."""
    if host not in (ALL_ADDRESSES, "::"):
        return host
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(UNROUTED_ADDRESS)
        return str(probe.getsockname()[0])
    return socket.gethostname()


# --- what people read


def join_instructions(folder: Path, queue: str, variables: str = "") -> dict[str, str]:
    """How a worker of another host joins a server, whose password is not shown; empty for a server
    that does not listen.

    variables: assignments of environment variables before the worker's command
    """
    worker = f"rq worker{'' if queue == 'default' else ' ' + quote(queue)}"
    path = folder.absolute() / "url"
    try:
        parts = urlsplit(read_file(path, MOST_BYTES).decode().strip())
        host, port = parts.hostname or "", parts.port or 0
        parse_address(str(Address(host, port)))
        if host.startswith("-"):
            raise ValueError("ssh would read the host as an option")
    except (OSError, ValueError, UsageError):
        return {}
    local = host == "localhost" or host.startswith("127.") or host == "::1"
    source = socket.gethostname() if local else f"[{host}]" if ":" in host else host
    tunnel = (
        f"ssh -f -N -L {quote(f'{port}:{Address(host, port)}')} {quote(source)} && "
        if local
        else ""
    )
    join = (
        f"scp {quote(f'{source}:{path}')} es-queue-url && {tunnel}{variables}"
        f'RQ_REDIS_URL="$(cat es-queue-url)" {worker}'
    )
    warning = (
        f"{Address(host, port)}, by password, not encrypted: for a trusted network; else "
        "--listen 127.0.0.1 and an ssh tunnel"
    )
    return {
        "join": join,
        "listens": f"{Address(host, port)}, for ssh tunnels from other hosts" if local else warning,
    }
