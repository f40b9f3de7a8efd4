"""Warnings about a Redis that others can reach or read on the way."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from es_queue.protocol.connection import (
    ANY_ERROR,
    is_encrypted,
    is_local,
    is_open_to_anonymous,
    is_password_set,
    verifies_certificate,
)
from es_queue.security.bounded_reads import to_text
from es_queue.security.sanitize import sanitize

SETTINGS = ("bind", "protected-mode")
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
SILENCE_HINT = "--insecure hides this warning"


# --- the network


@dataclass(frozen=True)
class NetworkExposure:
    """Who else can reach a server, and read its traffic.

    local: by a socket, or this machine's own address; strangers: whether it serves clients without
    a password, None if unknown; settings: the CONFIG values that it reveals
    information: INFO's fields; secret: whether the URL has a password; encrypted: by TLS; verified:
    with a check of the server's certificate
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


def read_exposure(client: Any, name: str) -> NetworkExposure:
    """A few commands, and a connection without credentials. Never raises."""
    on_socket, on_this_machine = is_local(client)
    has_password = is_password_set(client)
    if on_socket:
        return NetworkExposure(name, True, True, secret=has_password)
    serves_anyone = is_open_to_anonymous(client)
    settings: dict[str, str] = {}
    information: dict[str, Any] = {}
    if on_this_machine and serves_anyone:
        try:
            for setting in SETTINGS:
                settings |= {
                    to_text(key): to_text(value)
                    for key, value in client.config_get(setting).items()
                }
        except ANY_ERROR:  # CONFIG is switched off on managed servers
            settings = {}
        try:
            information = client.info("server")
        except ANY_ERROR:
            information = {}
    return NetworkExposure(
        name,
        False,
        on_this_machine,
        serves_anyone,
        settings,
        information,
        has_password,
        is_encrypted(client),
        verifies_certificate(client),
    )


def network_warnings(exposure: NetworkExposure) -> list[str]:
    """Worst first."""
    warnings = []
    if exposure.strangers and is_exposed(exposure):
        warnings.append(
            f"Redis at {exposure.name} can be reached from other machines and requires NO "
            f"PASSWORD: anyone who can reach it can read, change and end every run, and run "
            f"code on plain rq workers. Give it users (python -m es_queue.security.acl) "
            f"or a password, or bind it to this machine; {SILENCE_HINT}"
        )
    elif (
        exposure.strangers
        and exposure.local
        and not exposure.settings
        and has_open_listeners(exposure.information)
    ):
        warnings.append(
            f"Redis at {exposure.name} requires no password and listens on addresses beyond "
            f"this machine; whether other machines can connect is not known, because CONFIG is "
            f"refused. Give it users (python -m "
            f"es_queue.security.acl) or a password; {SILENCE_HINT}"
        )
    if exposure.secret and not exposure.local and not exposure.encrypted:
        warnings.append(
            f"the password for Redis at {exposure.name} crosses the network in plain text: "
            f"use rediss:// (TLS) or a tunnel; {SILENCE_HINT}"
        )
    if exposure.encrypted and not exposure.verified:
        warnings.append(
            f"the certificate of Redis at {exposure.name} is not verified (ssl_cert_reqs=none), "
            f"so anyone on the network path can read and change everything: name its authority "
            f"with ?ssl_ca_certs=FILE instead; {SILENCE_HINT}"
        )
    return warnings


def is_exposed(exposure: NetworkExposure) -> bool:
    """As far as is known: a firewall may still be before the server."""
    return not exposure.on_socket and (not exposure.local or is_bound_openly(exposure.settings))


def is_bound_openly(settings: Mapping[str, str]) -> bool:
    if settings.get("protected-mode") != "no":
        return False
    return has_open_addresses(settings.get("bind", "").split())


def has_open_listeners(information: Mapping[str, Any]) -> bool:
    """Whether INFO, from Redis 7 on, names a listener for other machines."""
    listeners = [
        listener
        for name, listener in information.items()
        if name.startswith("listener") and isinstance(listener, Mapping)
    ]
    return any(
        listener.get("name") in ("tcp", "tls")
        and has_open_addresses([str(listener.get("bind", ""))])
        for listener in listeners
    )


def has_open_addresses(addresses: Sequence[str]) -> bool:
    addresses_found = [address.lstrip("-") for address in addresses if address]
    return not addresses_found or any(address not in THIS_MACHINE for address in addresses_found)


def format_warning(text: str) -> str:
    return f"es-master: WARNING: {sanitize(text, 1000)}"


def is_same_terminal() -> bool:
    """Whether standard output and standard error have one reader."""
    return sys.stderr.isatty() and sys.stdout.isatty()
