"""The Redis that the user names: the URL of a flag or of the environment, with the password."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from es_queue.errors import UsageError
from es_queue.security.passwords import password_of, with_password

SCHEMES = ("redis://", "rediss://", "unix://")
SHOWN_PASSWORD = (
    "every user of this host can read the password on the command line: remove it from "
    "--redis-url, and use --redis-password-file, ES_QUEUE_REDIS_PASSWORD or RQ_REDIS_URL"
)


def named_url(
    flag: str | None, password_file: str | None, warn: Callable[[str], None]
) -> str | None:
    """The URL of the flag, else of RQ's own variable, else of the usual one, with its password;
    None if there is none.

    warn: called about an unsafe place of the password. Raises UsageError, which contains no URL.
    """
    for source, url in {
        "--redis-url": flag,
        "RQ_REDIS_URL": os.environ.get("RQ_REDIS_URL"),
        "REDIS_URL": os.environ.get("REDIS_URL"),
    }.items():
        if url and not url.startswith(SCHEMES):
            raise UsageError(
                f"{source} is not a Redis address: use redis://host:port/db, rediss:// for "
                "TLS, or unix://path"
            )
        if url:
            return add_password(url, flag, password_file, warn)
    if password_file is not None:
        raise UsageError(
            "--redis-password-file belongs to a named Redis, and a private server needs no "
            "password: give --redis-url or set RQ_REDIS_URL"
        )
    return None


def add_password(
    url: str, flag: str | None, password_file: str | None, warn: Callable[[str], None]
) -> str:
    if flag and password_of(flag) is not None:
        warn(SHOWN_PASSWORD)
    return with_password(url, None if password_file is None else Path(password_file), warn)
