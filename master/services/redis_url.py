"""Who else can reach a Redis, and read its traffic: problems, each with its fix."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from es_queue.protocol.connection import (
    ANY_ERROR,
    is_encrypted,
    is_local,
    is_open_to_anonymous,
    is_password_set,
    verifies_certificate,
)
from es_queue.text import sanitize, to_text

THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
GIVE_USERS = "give it users (python -m es_queue.acl FOLDER) or a password"


def network_problems(client: Any, name: str) -> list[tuple[str, str]]:
    """Problems with their fixes, worst first, from a few commands and a connection without
    credentials. Never raises. A firewall may still protect the server.
    """
    on_socket, on_this_machine = is_local(client)
    if on_socket:
        return []
    problems = []
    if is_open_to_anonymous(client):
        settings = read_settings(client) if on_this_machine else {}
        is_bound_openly = settings.get("protected-mode") == "no" and has_open_addresses(
            settings.get("bind", "").split()
        )
        if not on_this_machine or is_bound_openly:
            problems.append(
                (
                    f"Redis at {name} can be reached from other machines and requires NO PASSWORD, "
                    "so anyone who can reach it can read, change and end every run, and run code "
                    "on plain rq workers",
                    f"{GIVE_USERS}, or bind it to this machine",
                )
            )
        elif not settings and has_open_listeners(client):
            problems.append(
                (
                    f"Redis at {name} requires no password and listens on addresses beyond this "
                    "machine; whether other machines can connect is not known, because CONFIG is "
                    "refused",
                    GIVE_USERS,
                )
            )
    if is_password_set(client) and not on_this_machine and not is_encrypted(client):
        problems.append(
            (
                f"the password for Redis at {name} crosses the network in plain text",
                "use rediss:// (TLS) or a tunnel",
            )
        )
    if is_encrypted(client) and not verifies_certificate(client):
        problems.append(
            (
                f"the certificate of Redis at {name} is not verified (ssl_cert_reqs=none), so "
                "anyone on the network path can read and change everything",
                "name its authority with ?ssl_ca_certs=FILE instead",
            )
        )
    return problems


def network_warnings(client: Any, name: str) -> list[str]:
    """The problems as es-master prints them."""
    hint = "--insecure hides this warning"
    return [f"{problem}: {fix}; {hint}" for problem, fix in network_problems(client, name)]


def read_settings(client: Any) -> dict[str, str]:
    """Empty if CONFIG is refused, as it is on managed servers."""
    try:
        answers = {**client.config_get("bind"), **client.config_get("protected-mode")}
    except ANY_ERROR:
        return {}
    return {to_text(key): to_text(value) for key, value in answers.items()}


def has_open_listeners(client: Any) -> bool:
    """Whether INFO, from Redis 7 on, names a listener for other machines."""
    try:
        information = client.info("server")
    except ANY_ERROR:
        return False
    return any(
        listener.get("name") in ("tcp", "tls")
        and has_open_addresses([str(listener.get("bind", ""))])
        for name, listener in information.items()
        if name.startswith("listener") and isinstance(listener, Mapping)
    )


def has_open_addresses(addresses: Sequence[str]) -> bool:
    addresses_found = [address.lstrip("-") for address in addresses if address]
    return not addresses_found or any(address not in THIS_MACHINE for address in addresses_found)


def format_warning(text: str) -> str:
    return f"es-master: WARNING: {sanitize(text, 1000)}"


def is_same_terminal() -> bool:
    """Whether standard output and standard error have one reader."""
    return sys.stderr.isatty() and sys.stdout.isatty()
