"""The Redis that a person names: its URL with the password, and what is unsafe about the way to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from es_queue.errors import UsageError
from es_queue.protocol.connection import (
    ANY_ERROR,
    is_encrypted,
    is_local,
    lets_strangers_in,
    owns_secret,
    verifies,
)
from es_queue.protocol.passwords import password_of, with_password
from master.wording import printable

SCHEMES = ("redis://", "rediss://", "unix://")
SHOWN_PASSWORD = (
    "every user of this host can read the password on the command line: leave it out of --redis-url, "
    "and give it by --redis-password-file, by ES_QUEUE_REDIS_PASSWORD, or in RQ_REDIS_URL"
)
SETTINGS = ("bind", "protected-mode")
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
SILENCE = "--insecure silences this"


def named_url(flag: str | None, password_file: str | None, warn: Callable[[str], None]) -> str | None:
    """The URL of the flag, else of RQ's own variable, else of the usual one, with its password; None where there is none.

    warn: hears what is unsafe about where the password stands. Raises UsageError, in which no URL is shown.
    """
    for source, url in {"--redis-url": flag, "RQ_REDIS_URL": os.environ.get("RQ_REDIS_URL"), "REDIS_URL": os.environ.get("REDIS_URL")}.items():
        if url and not url.startswith(SCHEMES):
            raise UsageError(f"{source} is no address of Redis: use redis://host:port/db, rediss:// for TLS, or unix://path")
        if url:
            return completed(url, flag, password_file, warn)
    if password_file is not None:
        raise UsageError("--redis-password-file is for a Redis that is named, and a private server needs none: give --redis-url or set RQ_REDIS_URL")
    return None


def completed(url: str, flag: str | None, password_file: str | None, warn: Callable[[str], None]) -> str:
    """``url`` with its password. flag: what was given on the command line."""
    if flag and password_of(flag) is not None:
        warn(SHOWN_PASSWORD)
    return with_password(url, None if password_file is None else Path(password_file), warn)


# --- the network


@dataclass(frozen=True)
class Reach:
    """Who else may reach a server, and read what goes there.

    local: by a socket, or this machine's own address; strangers: whether it serves clients without a password, None
    where that cannot be told; settings: those of CONFIG that it tells; information: INFO's fields; secret: we have a
    password; encrypted: by TLS; verified: with a look at the server's certificate
    """

    name: str
    on_socket: bool = False
    local: bool = False
    strangers: bool | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    information: Mapping[str, Any] = field(default_factory=dict)
    secret: bool = False
    encrypted: bool = False
    verified: bool = True


def reach_of(client: Any, name: str) -> Reach:
    """Ask a server, once: a few commands and a connection without credentials. Never raises for what it may not ask."""
    on_socket, local = is_local(client)
    secret = owns_secret(client)
    if on_socket:
        return Reach(name, True, True, secret=secret)
    strangers = lets_strangers_in(client)
    settings: dict[str, str] = {}
    information: dict[str, Any] = {}
    if local and strangers:
        try:
            for one in SETTINGS:
                settings |= {as_text(key): as_text(value) for key, value in client.config_get(one).items()}
        except ANY_ERROR:  # CONFIG is switched off on managed servers
            settings = {}
        try:
            information = client.info("server")
        except ANY_ERROR:
            information = {}
    return Reach(name, False, local, strangers, settings, information, secret, is_encrypted(client), verifies(client))


def network_warnings(reach: Reach) -> list[str]:
    """Sentences for what is unsafe, the worst first; none where all is well."""
    found = []
    if reach.strangers and exposed(reach):
        found.append(
            f"Redis at {reach.name} can be reached from other machines and wants NO PASSWORD: whoever reaches it can read, change and end every run, "
            f"and run code on plain rq workers. Give it users (python -m es_queue.acl) or a password, or bind it to this machine; {SILENCE}"
        )
    elif reach.strangers and reach.local and not reach.settings and open_listeners(reach.information):
        found.append(
            f"Redis at {reach.name} wants no password and listens on other addresses than this machine's own; whether it lets other machines in "
            f"is not known, for CONFIG is refused. Give it users (python -m es_queue.acl) or a password; {SILENCE}"
        )
    if reach.secret and not reach.local and not reach.encrypted:
        found.append(f"the password for Redis at {reach.name} crosses the network in plain text: use rediss:// (TLS) or a tunnel; {SILENCE}")
    if reach.encrypted and not reach.verified:
        found.append(
            f"the certificate of Redis at {reach.name} is not verified (ssl_cert_reqs=none), so anybody on the way can read and change everything: "
            f"name its authority by ?ssl_ca_certs=FILE instead; {SILENCE}"
        )
    return found


def exposed(reach: Reach) -> bool:
    """Whether other machines reach the server, as far as is known; a firewall may still be before it."""
    return not reach.on_socket and (not reach.local or bound_openly(reach.settings))


def bound_openly(settings: Mapping[str, str]) -> bool:
    """Whether other machines reach the server by its own settings."""
    if settings.get("protected-mode") != "no":
        return False
    return open_addresses(settings.get("bind", "").split())


def open_listeners(information: Mapping[str, Any]) -> bool:
    """Whether INFO, from Redis 7 on, names a listener for other machines."""
    listeners = [one for name, one in information.items() if name.startswith("listener") and isinstance(one, Mapping)]
    return any(one.get("name") in ("tcp", "tls") and open_addresses([str(one.get("bind", ""))]) for one in listeners)


def open_addresses(addresses: Sequence[str]) -> bool:
    found = [one.lstrip("-") for one in addresses if one]
    return not found or any(one not in THIS_MACHINE for one in found)


def warning_line(text: str) -> str:
    return f"es-master: WARNING: {printable(text, 1000)}"


def seen_already() -> bool:
    """Whether what goes to standard error is read where standard output is: then once is enough."""
    return sys.stderr.isatty() and sys.stdout.isatty()


def as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
