"""Who is answered over HTTP by the page of es-status and by the metrics of workers: requests for a
Host of its own that show the token.

The token is in ES_QUEUE_WEB_TOKEN, or in the file that ES_QUEUE_WEB_TOKEN_FILE names. It is in no
command line and no log.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from es_queue.errors import UsageError
from es_queue.security.passwords import password_in_file

TOKEN, TOKEN_FILE = "ES_QUEUE_WEB_TOKEN", "ES_QUEUE_WEB_TOKEN_FILE"
#: What an address, a cookie and a header can hold without quotes.
ALLOWED_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}", re.ASCII)
#: A Host header: a name or an address, and perhaps a port.
HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)


def token_from_environment(warn: Callable[[str], None] | None = None) -> str | None:
    """The token that the user has set, None without one.

    warn: is called about a file that other users may read. Raises UsageError, which never contains
    a token.
    """
    token, path, source = os.environ.get(TOKEN), os.environ.get(TOKEN_FILE), TOKEN
    if path:
        in_file, source = password_in_file(Path(path), TOKEN_FILE, warn), TOKEN_FILE
        if token and token != in_file:
            raise UsageError(
                f"{TOKEN} and the file of {TOKEN_FILE} give two different tokens: unset one of them"
            )
        token = in_file
    if token and not ALLOWED_TOKEN.fullmatch(token):
        raise UsageError(
            f"{source} gives a token that cannot be used: it must have 16 to 512 letters, digits "
            "and . _ ~ - only, as  python -c 'import secrets; print(secrets.token_urlsafe())'  "
            "prints"
        )
    return token or None


def has_token(environ: Mapping[str, Any], token: str, cookie: str | None = None) -> bool:
    """Whether a WSGI request shows the token, as a bearer's or in its address, or has the cookie
    ``NAME=VALUE``.
    """
    scheme, _, bearer = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() == "bearer" and is_token(bearer.strip(), token):
        return True
    # Not http.cookies: it drops all cookies if another server of this host set an odd one.
    shown = environ.get("HTTP_COOKIE", "").split(";") if cookie is not None else []
    return has_token_in_address(environ, token) or any(
        is_token(part.strip(), cookie or "") for part in shown
    )


def has_token_in_address(environ: Mapping[str, Any], token: str) -> bool:
    shown = parse_qs(environ.get("QUERY_STRING", "")).get("token", ())
    return any(is_token(one, token) for one in shown)


def is_token(shown: str, token: str) -> bool:
    """Compares in the same time wherever they differ."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), token.encode())


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def is_host_allowed(header: str | None, hosts: Collection[str] = ()) -> bool:
    """Whether a request with this Host header is for this server: under a loopback name or address,
    or one of ``hosts``.

    Any other name can be a stranger's that leads here (DNS rebinding), whose page could read the
    reply.
    """
    match = HOST.fullmatch(header or "")
    if match is None:
        return False
    host = plain_host(match)
    return is_loopback(host) or host in hosts


def listening_hosts(address: str) -> frozenset[str]:
    """The Host of a server that listens on this name or address; none if it is all addresses."""
    match = HOST.fullmatch(f"[{address}]" if ":" in address else address)
    host = plain_host(match) if match is not None else ""
    with suppress(ValueError):
        host = "" if ipaddress.ip_address(host).is_unspecified else host
    return frozenset({host} if host else ())


def plain_host(match: re.Match[str]) -> str:
    """Lower case, no dot behind it, an address in its short form."""
    host = (match["six"] or match["name"]).lower().rstrip(".")
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    return host
