"""The password of a Redis connection: from its URL, a file or the environment, never from a command
line.

The first source with a password is used:

1. the URL, in RQ_REDIS_URL (or in --redis-url, which shows it to every user of the host);
2. the file of --redis-password-file;
3. ES_QUEUE_REDIS_PASSWORD, or the file that ES_QUEUE_REDIS_PASSWORD_FILE names.

Two different passwords are an error, except that the flag overrides the environment. The URL
contains the user's name. A private server has its own password and ignores all this.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from es_queue.errors import UsageError
from es_queue.files import open_file

PASSWORD = "ES_QUEUE_REDIS_PASSWORD"
PASSWORD_FILE = "ES_QUEUE_REDIS_PASSWORD_FILE"
VARIABLES = (PASSWORD, PASSWORD_FILE)
FLAG = "--redis-password-file"
#: Bytes of a password file; a key or a certificate in its place is refused.
MAX_BYTES = 1024

Warn = Callable[[str], None]


def password_from_environment(warn: Warn | None = None) -> str | None:
    """The password from the environment, or from the file that it names; None without either.

    warn: is called about a file that other users may read. Raises UsageError, which never contains
    a password.
    """
    direct, path = os.environ.get(PASSWORD), os.environ.get(PASSWORD_FILE)
    if not path:
        return direct or None
    password = password_in_file(Path(path), PASSWORD_FILE, warn)
    if direct and direct != password:
        raise UsageError(
            f"{PASSWORD} and the file of {PASSWORD_FILE} give two different passwords: unset "
            "one of them"
        )
    return password


def with_password(url: str, file: Path | None = None, warn: Warn | None = None) -> str:
    """``url`` with its password: its own, else the file's, else the environment's.

    Raises UsageError for an unusable file, and for a URL whose password differs from another given
    one.
    """
    given = password_from_environment(warn) if file is None else password_in_file(file, FLAG, warn)
    if given is None:
        return url
    url_password = password_of(url)
    if url_password is None:
        return _insert_password(url, given)
    if url_password != given:
        source = (
            FLAG
            if file is not None
            else " or ".join(name for name in VARIABLES if os.environ.get(name))
        )
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


def password_in_file(path: Path, source: str, warn: Warn | None = None) -> str:
    """The only line of a file. ``source``: what named the file, for the error. Raises
    UsageError.
    """
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
    return _parse_line(raw, path, source)


def is_readable_by_others(about: os.stat_result) -> bool:
    """Whether other users can read a file. A group with only this user does not count, as for a
    secret that Kubernetes gives to a pod.
    """
    given = about.st_uid == 0 != os.geteuid() and about.st_gid in (os.getegid(), *os.getgroups())
    return bool(about.st_mode & (stat.S_IROTH if given else stat.S_IRGRP | stat.S_IROTH))


def environment_without_redis(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a child without Redis, or with another one, whose URL with the password
    goes into RQ_REDIS_URL.
    """
    return {
        name: value
        for name, value in environment.items()
        if name not in (*VARIABLES, "RQ_REDIS_URL", "REDIS_URL")
    }


def redact_address(complaint: str) -> str:
    before, address, _ = complaint.partition("://")
    return before.rpartition(" ")[0] + " an address" if address else complaint


def _parse_line(raw: bytes, path: Path, source: str) -> str:
    try:
        text = raw.decode("utf-8") if len(raw) <= MAX_BYTES else ""
    except UnicodeDecodeError:
        text = ""
    text = text.removesuffix("\n").removesuffix("\r")
    if not text or not text.isprintable():
        raise UsageError(
            f"{source} names {path}, which holds no password: it must be one line of UTF-8 "
            f"text of at most {MAX_BYTES} bytes"
        )
    return text


def _insert_password(url: str, password: str) -> str:
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0] if at else ""
    return urlunsplit(parts._replace(netloc=f"{name}:{quote(password, safe='')}@{host}"))
