"""Where the page is served, and who may name it: a page on loopback is for this host's own browsers."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from contextlib import suppress
from functools import cache

from es_queue.errors import UsageError
from master.household.listen import Address, parse

LOOPBACK, PORT = "127.0.0.1", 8642
#: A Host header: a name or an address, and perhaps a port.
HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)
#: Names that nobody can register, so that no stranger's page can have one of them lead here (DNS rebinding).
RESERVED = (".localhost", ".local", ".internal", ".home.arpa", ".svc")


def chosen(text: str) -> Address:
    """``ADDRESS:PORT`` with what it leaves open: loopback, and a port of our own. Raises UsageError."""
    given = parse(text, "web")
    return Address(given.host or LOOPBACK, given.port or PORT)


def is_loopback(host: str) -> bool:
    """Whether an address or name is this host for itself alone."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost" or host.lower().endswith(".localhost")


def may_ask(header: str | None, *, local: bool) -> bool:
    """Whether a request with this Host header is for us. local: the page is on loopback.

    A page of a stranger's name that resolves to us may read what we answer; names that are nobody's, and addresses, cannot be his.
    """
    match = HOST.fullmatch(header or "")
    if match is None:
        return False
    host = (match["six"] or match["name"]).lower().rstrip(".")
    if is_loopback(host):
        return True
    return not local and (is_address(host) or "." not in host or host.endswith(RESERVED) or host in own_names())


def is_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


@cache
def own_names() -> frozenset[str]:
    """This machine's names."""
    return frozenset(name.lower() for name in (socket.gethostname(), socket.getfqdn()))


def unusable(address: Address, error: OSError) -> UsageError:
    """One sentence for an address that cannot be listened on."""
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"web cannot be served at {address}: something else listens there; give another port, such as --web {Address(address.host, free_port(address))}")
    if error.errno == errno.EACCES:
        return UsageError(f"web cannot be served at {address}: this user may not listen there; use a port from 1024 on")
    return UsageError(f"web cannot be served at {address}: {error.strerror or error}; give an address of this host, or a port alone (:{PORT}); a RUN stands before --web")


def free_port(address: Address) -> int:
    """A port after the given one on which nothing listens now; the next one where that cannot be told."""
    following = range(address.port + 1, min(address.port + 20, 65536))
    for port in following:
        with suppress(OSError), socket.create_server((address.host, port), family=family_of(address)):
            return port
    return min(address.port + 1, 65535)


def family_of(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET
