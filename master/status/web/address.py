"""The address of the page, and the host names under which it answers."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
from collections.abc import Collection, Iterable
from contextlib import suppress

from es_queue.errors import UsageError
from es_queue.security.sanitize import sanitize
from master.services.tcp_access import Address, is_address, parse_address

LOOPBACK, DEFAULT_PORT = "127.0.0.1", 8642
#: A Host header: a name or an address, and perhaps a port.
HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)


def parse_web_address(text: str) -> Address:
    """``ADDRESS:PORT`` with what it leaves open: loopback, and a port of our own. Raises
    UsageError.
    """
    given = parse_address(text, "web")
    return Address(given.host or LOOPBACK, given.port or DEFAULT_PORT)


def is_loopback(host: str) -> bool:
    """Whether an address or name is this host for itself alone."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def named_hosts(names: Iterable[str]) -> frozenset[str]:
    """The values of --web-host as Host headers have them.

    Raises UsageError for a value that is no name and no address.
    """
    hosts = set[str]()
    for name in names:
        match = HOST.fullmatch(f"[{name}]" if ":" in name and not name.startswith("[") else name)
        if match is None or match["port"] or (match["six"] and not is_address(match["six"])):
            raise UsageError(
                f"--web-host is {sanitize(name, 80)!r}: give the name or address by which a "
                "browser reaches the page, without http:// and port, such as node7.example; "
                "repeat the flag for more"
            )
        hosts.add(plain_host(match))
    return frozenset(hosts)


def is_host_allowed(header: str | None, hosts: Collection[str] = ()) -> bool:
    """Whether a request with this Host header is for us: under a loopback name or address, or one
    of ``hosts``.

    Any other name may be a stranger's that leads here (DNS rebinding), whose page could read the
    reply.
    """
    match = HOST.fullmatch(header or "")
    if match is None:
        return False
    host = plain_host(match)
    return is_loopback(host) or host in hosts


def hosts_of(address: Address, names: Iterable[str]) -> frozenset[str]:
    """The names and addresses besides loopback's under which a page at this address answers.

    Raises UsageError.
    """
    anywhere = is_address(address.host) and ipaddress.ip_address(address.host).is_unspecified
    return named_hosts([*names, *([] if anywhere else [address.host])])


def plain_host(match: re.Match[str]) -> str:
    """A matched host in its one spelling: lower case, no dot behind it, an address in its short
    form."""
    host = (match["six"] or match["name"]).lower().rstrip(".")
    return str(ipaddress.ip_address(host)) if is_address(host) else host


def bind_error(address: Address, error: OSError) -> UsageError:
    """One sentence for an address that cannot be listened on."""
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"web cannot be served at {address}: another program listens there; give another "
            f"port, such as --web {Address(address.host, find_free_port(address))}"
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"web cannot be served at {address}: this user may not listen there; use a port "
            "from 1024 on"
        )
    return UsageError(
        f"web cannot be served at {address}: {error.strerror or error}; give an address of "
        f"this host, or only a port (:{DEFAULT_PORT}); RUN comes before --web"
    )


def find_free_port(address: Address) -> int:
    """A port after the given one on which nothing listens now; the next one where that cannot be
    told.
    """
    following = range(address.port + 1, min(address.port + 20, 65536))
    for port in following:
        with (
            suppress(OSError),
            socket.create_server((address.host, port), family=address_family(address)),
        ):
            return port
    return min(address.port + 1, 65535)


def address_family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET
