"""Secrets that users give: the password of Redis, and the token of a page.

Redis's password comes from the first of: the URL; the file of --redis-password-file;
ES_QUEUE_REDIS_PASSWORD; the file that ES_QUEUE_REDIS_PASSWORD_FILE names. Two different ones are an
error, except that the flag overrides the environment. The token of es-status's page and of workers'
metrics is in ES_QUEUE_WEB_TOKEN, or in the file that ES_QUEUE_WEB_TOKEN_FILE names.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from es_queue.errors import RedisError, UsageError
from es_queue.files import open_file

PASSWORD, PASSWORD_FILE = "ES_QUEUE_REDIS_PASSWORD", "ES_QUEUE_REDIS_PASSWORD_FILE"
TOKEN, TOKEN_FILE = "ES_QUEUE_WEB_TOKEN", "ES_QUEUE_WEB_TOKEN_FILE"
FLAG = "--redis-password-file"
#: What is wrong with a URL that cannot be taken apart.
TORN = (
    "its port is not a number, an IPv6 address has no brackets, or its password contains '/', '?', "
    "'#' or '[': write %2F, %3F, %23 or %5B"
)
#: Bytes of a secret's file; a key or a certificate in its place is refused.
MAX_BYTES = 1024

Warn = Callable[[str], None]


def secret_from_environment(
    variable: str, kind: str, warn: Warn | None = None
) -> tuple[str | None, str]:
    """The secret in ``variable`` or in the file that ``variable_FILE`` names, and that source.
    Raises UsageError, which never contains a secret.

    kind: "password" or "token"; warn: is called about a file that other users may read
    """
    direct, path = os.environ.get(variable), os.environ.get(f"{variable}_FILE")
    if not path:
        return direct or None, variable
    secret = secret_in_file(Path(path), f"{variable}_FILE", warn)
    if direct and direct != secret:
        raise UsageError(
            f"{variable} and the file of {variable}_FILE give two different {kind}s: unset "
            "one of them"
        )
    return secret, f"{variable}_FILE"


def secret_in_file(path: Path, source: str, warn: Warn | None = None) -> str:
    """The only line of a file. ``source``: what named it, for the error. Raises UsageError."""
    try:
        with open_file(path, follow=True) as file:
            about, raw = os.fstat(file.fileno()), file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{source} names {path}, which cannot be read "
            f"({getattr(error, 'strerror', None) or 'no path'}): give a file that you may "
            "read"
        ) from None
    if warn is not None and is_readable_by_others(about):
        warn(f"other users of this host may read the password in {path}: chmod 600 {path}")
    text = ""
    with suppress(UnicodeDecodeError):
        text = raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    if len(raw) > MAX_BYTES or not text or not text.isprintable():
        raise UsageError(
            f"{source} names {path}, which holds no password: it must be one line of UTF-8 "
            f"text of at most {MAX_BYTES} bytes"
        )
    return text


def is_readable_by_others(about: os.stat_result) -> bool:
    """Whether other users can read a file. A group with only this user does not count, as for a
    secret that Kubernetes gives to a pod.
    """
    given = about.st_uid == 0 != os.geteuid() and about.st_gid in (os.getegid(), *os.getgroups())
    return bool(about.st_mode & (stat.S_IROTH if given else stat.S_IRGRP | stat.S_IROTH))


# --- the password of Redis


def with_password(url: str, file: Path | None = None, warn: Warn | None = None) -> str:
    """``url`` with its password: its own, else the file's, else the environment's. Raises
    UsageError for an unusable file, and for a URL whose password differs from another given one,
    RedisError for one that its password has torn.
    """
    if is_torn(url):
        raise RedisError(f"the Redis URL cannot be used: {TORN}")
    if file is None:
        given, source = secret_from_environment(PASSWORD, "password", warn)
    else:
        given, source = secret_in_file(file, FLAG, warn), FLAG
    if given is None:
        return url
    url_password = password_of(url)
    if url_password is None:
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        return urlunsplit(parts._replace(netloc=f"{name}:{quote(given, safe='')}@{host}"))
    if url_password != given:
        raise UsageError(
            f"the Redis URL and {source} give two different passwords: leave one of them out"
        )
    return url


def password_of(url: str) -> str | None:
    """Decoded; None if the URL has none, or is not a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:  # the client's own error about the URL is better
        return None
    _, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    if colon and password:
        return unquote(password)
    query_passwords = parse_qs(parts.query).get("password")
    return query_passwords[0] if query_passwords else None


def is_torn(url: str) -> bool:
    """Whether a password with "/", "?" or "#" broke the URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return True
    if "@" in parts.netloc or (parts.scheme == "unix" and not parts.netloc):
        return parts.scheme != "unix" and "@" in parts.path
    query_parts = [part for part in parts.query.split("&") if not part.startswith("ssl_")]
    return any("@" in part for part in (parts.path, parts.fragment, *query_parts))


def environment_without_redis(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a child without Redis, or with another URL in RQ_REDIS_URL."""
    named = (PASSWORD, PASSWORD_FILE, "RQ_REDIS_URL", "REDIS_URL")
    return {name: value for name, value in environment.items() if name not in named}


def redact_address(complaint: str) -> str:
    before, address, _ = complaint.partition("://")
    return before.rpartition(" ")[0] + " an address" if address else complaint


# --- who is answered over HTTP: requests for a Host of the server's own that show the token

#: What an address, a cookie and a header can hold without quotes.
ALLOWED_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}", re.ASCII)
#: A Host header: a name or an address, and perhaps a port.
HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)


def token_from_environment(warn: Warn | None = None) -> str | None:
    """The token that the user has set, None without one. Raises UsageError."""
    token, source = secret_from_environment(TOKEN, "token", warn)
    if token and not ALLOWED_TOKEN.fullmatch(token):
        raise UsageError(
            f"{source} gives a token that cannot be used: it must have 16 to 512 letters, digits "
            "and . _ ~ - only, as  python -c 'import secrets; print(secrets.token_urlsafe())'  "
            "prints"
        )
    return token


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
    """Whether a Host header names this server: a loopback name or address, or one of ``hosts``.

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
