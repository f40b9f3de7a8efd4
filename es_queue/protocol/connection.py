"""Redis clients with explicit timeouts, which never re-send silently, and Retry, which does.

redis-py re-sends a command whose reply was lost, and may wait a minute for it. Every command here
may be sent again, unless a comment says that it never is.
"""

from __future__ import annotations

import ipaddress
import os
import random
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import redis
from redis.backoff import NoBackoff

from es_queue.credentials import FLAG, PASSWORD_FILE, password_of
from es_queue.credentials import with_password as with_password
from es_queue.errors import RedisError, UsageError
from es_queue.protocol.keys import RUNNING, RUNS, RunKeys
from es_queue.text import sanitize

SOCKET_SECONDS = 5.0
CONNECT_SECONDS = 5.0
MIN_VERSION = (6, 2)

# What is worth trying again: the server is away, loading, full, busy, or a replica for now.
OUTAGE_ERRORS = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.MasterDownError,
)
# The same as replies: the first word, or after a pipeline's "caused error:" or a script's dash.
TRANSIENT_ERROR = re.compile(
    r"(?:^|: |-)(?:READONLY|MISCONF|UNBLOCKED|MASTERDOWN|LOADING|OOM|BUSY)\b"
)

# Errors of redis-py about a URL that repeat no part of it.
SAFE_MESSAGES = (
    "protocol must be an integer",
    "protocol must be either 2 or 3",
    "Python wasn't built with SSL support",
    "cryptography is not installed.",
)

ANY_ERROR = redis.exceptions.RedisError
#: Of a server whose list of runs has another type.
MISTYPED_RUNS = (
    f"has a key {RUNS} of another program, not a sorted set: give another database number, such as "
    "/1"
)
#: What a URL can set after its "?", beside ssl_…; the rest are objects, or es-queue's own.
URL_SETTINGS = (
    *("db", "username", "password", "client_name", "protocol", "max_connections"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "health_check_interval"),
)


class UnreachableError(RedisError):
    """The server does not answer now, and may later."""


def is_outage(error: Exception) -> bool:
    """Whether the command may succeed later without any change here."""
    return isinstance(error, OUTAGE_ERRORS) or (
        isinstance(error, redis.exceptions.ResponseError)
        and TRANSIENT_ERROR.search(str(error)) is not None
    )


def is_silence(error: Exception) -> bool:
    """Whether the server did not respond at all; a loading or full one does."""
    if isinstance(error, redis.exceptions.BusyLoadingError) or "max number of clients" in str(
        error
    ):
        return False
    return isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError)


def refused_error(error: Exception, what: str = "a command") -> RedisError:
    return RedisError(
        f"Redis refused {what}: {first_line(error)}; check the user's rights, the server's "
        "settings and the run's keys"
    )


def connection_arguments() -> dict[str, Any]:
    """Arguments of every es-queue client, each with its own Retry."""
    return {
        "socket_timeout": SOCKET_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        "retry": redis.retry.Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
    }


def client_from_url(url: str) -> redis.Redis:
    """A client for redis://, rediss:// or unix:// URLs. Raises RedisError, which repeats nothing of
    the URL but a TLS file's name.
    """
    if is_torn(url):
        raise RedisError(
            "the Redis URL cannot be used: its port is not a number, or its password contains "
            "'/', '?' or '#': write %2F, %3F or %23"
        )
    parts = urlsplit(url)
    number = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and number and not number.isdecimal():
        raise RedisError(
            "the Redis URL cannot be used: the part after its host is no database number: use "
            "/0, or leave it out"
        )
    for name, _ in parse_qsl(parts.query):
        if name not in URL_SETTINGS and not name.startswith("ssl_"):
            raise RedisError(
                "the Redis URL cannot be used: after its '?' it can only set "
                f"{', '.join(URL_SETTINGS)} and ssl_…"
            )
    try:
        client = redis.Redis.from_url(url, **connection_arguments())
        settings = settings_of(client)
        client.connection_pool.connection_class(
            **settings
        )  # refuses settings that it does not know
    # Redis's own error: a TLS setting that does not exist.
    except (ValueError, TypeError, AttributeError, redis.exceptions.RedisError) as error:
        raise RedisError(f"the Redis URL cannot be used: {_describe_url_error(error)}") from None
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if settings.get(name) and not os.access(settings[name], os.R_OK):
            raise RedisError(
                f"the Redis URL names a file in {name} that cannot be read: {settings[name]}"
            )
    return client


def tested_client(url: str) -> redis.Redis:
    """``client_from_url`` after one PING. Raises RedisError for a problem of TLS or password."""
    client = client_from_url(url)
    try:
        client.ping()
    except redis.exceptions.AuthenticationError as error:
        raise authentication_error(redacted_url(url), error) from None
    except redis.exceptions.RedisError as error:
        if problem := find_tls_problem(client, error):
            raise RedisError(f"Redis at {redacted_url(url)} cannot be used: {problem}") from None
    return client


def _describe_url_error(error: Exception) -> str:
    """The error in a URL, without any part of it, which may be a password."""
    message = str(error)
    if "schemes" in message:
        return message.split(";")[0]
    if "ssl_" in message and "unexpected keyword" in message:
        return "it has TLS settings, so it must begin with rediss://"
    if message in SAFE_MESSAGES:
        return message
    if "Certificate Requirements" in message:
        return "its ssl_cert_reqs must be none, optional or required"
    setting = re.match(r"Invalid value for '(\w{1,40})' in connection URL", message)
    if setting:
        return f"its {setting[1]} has an invalid value"
    return "use redis://USER@HOST:PORT/DB, rediss:// for TLS, or unix://PATH"


class RedisWithPassword(redis.Redis):
    """For RQ_CONNECTION_CLASS: ``rq`` itself then takes the password from es-queue's variables."""

    @classmethod
    def from_url(cls, url: str, *arguments: Any, **more: Any) -> redis.Redis:
        return super().from_url(with_password(url), *arguments, **more)


def clone_client(connection: redis.Redis) -> redis.Redis:
    """An es-queue client for the server, user and database of RQ's connection."""
    pool = connection.connection_pool
    arguments = {**pool.connection_kwargs, **connection_arguments()}
    arguments.pop("client_name", None)
    return redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, **arguments)
    )


# --- others who can read the connection


CREDENTIALS = (
    "username",
    "password",
    "credential_provider",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
)


def settings_of(client: redis.Redis) -> dict[str, Any]:
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    return settings


def is_open_to_anonymous(client: redis.Redis) -> bool | None:
    """Whether the server accepts clients without user, password or certificate; None if unknown."""
    pool = client.connection_pool
    arguments = {
        name: value for name, value in pool.connection_kwargs.items() if name not in CREDENTIALS
    }
    anonymous = redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, **arguments)
    )
    try:
        return bool(anonymous.ping())
    except (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError):
        return False
    except (redis.exceptions.RedisError, OSError):
        return None
    finally:
        anonymous.close()


def is_local(client: redis.Redis) -> tuple[bool, bool]:
    """(whether it uses a Unix socket, whether it uses that or a loopback address)."""
    settings = settings_of(client)
    if settings.get("path"):
        return True, True
    return False, is_loopback(str(settings.get("host", "localhost")))


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine; an unknown name is not."""
    try:
        addresses = {
            about[4][0] for about in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        }
        return bool(addresses) and all(
            ipaddress.ip_address(str(address).partition("%")[0]).is_loopback
            for address in addresses
        )
    except (OSError, ValueError):  # UnicodeError is a ValueError
        return False


def is_encrypted(client: redis.Redis) -> bool:
    return issubclass(client.connection_pool.connection_class, redis.SSLConnection)


def verifies_certificate(client: redis.Redis) -> bool:
    """Whether a TLS connection verifies the server's certificate."""
    return settings_of(client).get("ssl_cert_reqs", "required") not in ("none", ssl.CERT_NONE)


def is_password_set(client: redis.Redis) -> bool:
    return bool(settings_of(client).get("password"))


# --- URLs


def redacted_url(url: str) -> str:
    """The URL for display, without its password, the part after a "?", and a user without a
    password, which may be a misplaced one.
    """
    if is_torn(url):
        return f"{url.partition(':')[0]}://***"
    parts = urlsplit(url)
    user, separator, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    redacted_user = (
        "***" if name and password_of(url) is None else f"{name}{':***' if colon else ''}"
    )
    return f"{parts.scheme}://{redacted_user}{separator}{host}{parts.path}"


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


def has_secret(url: str) -> bool:
    """Whether the URL has a secret, which belongs in the environment, not on a command line."""
    return redacted_url(url) != url


def validate_server(client: redis.Redis, name: str, scripts: bool = True) -> None:
    """Raises RedisError unless the server is fit for a run: version, eviction, cluster, role, the
    type of the list of runs, and, for a master, ``scripts``. Raises UnreachableError for a server
    that does not answer.
    """
    try:
        information: Any = client.info()
    except redis.exceptions.AuthenticationError as error:
        raise authentication_error(name, error) from None
    except redis.exceptions.NoPermissionError as error:
        raise RedisError(
            f"Redis at {name} grants this user too few rights ({error}); INFO is needed to "
            "check the server"
        ) from None
    except OUTAGE_ERRORS as error:
        if problem := find_tls_problem(client, error):
            raise RedisError(f"Redis at {name} cannot be used: {problem}") from None
        raise UnreachableError(
            f"Redis at {name} cannot be reached ({first_line(error)}); start it or correct "
            "--redis-url"
        ) from None
    except redis.exceptions.RedisError as error:
        if "HELLO" in str(error):  # a connection's first word, unknown before Redis 6
            raise RedisError(
                f"Redis at {name} is older than version 6.0, but 6.2 or later is needed (or Valkey)"
            ) from None
        if "DB index" in str(error):
            raise RedisError(
                f"Redis at {name} does not have that database: use a smaller number, such as /0"
            ) from None
        raise RedisError(f"Redis at {name} answered with an error: {first_line(error)}") from None
    for reason in unfit_reasons(information):
        raise RedisError(f"Redis at {name} {reason}")
    try:
        client.zrange(RUNS, 0, 0)  # which every user may do
    except ANY_ERROR as error:
        if "WRONGTYPE" in str(error):
            raise RedisError(f"Redis at {name} {MISTYPED_RUNS}") from None
    for words in (("EVALSHA", "0" * 40, 0), ("SCRIPT", "LOAD", "return 1")) if scripts else ():
        with suppress(redis.exceptions.NoScriptError, redis.exceptions.NoPermissionError):
            try:
                client.execute_command(*words)  # type: ignore[no-untyped-call]
            except redis.exceptions.ResponseError as error:
                if "unknown command" not in str(error):
                    raise
                raise RedisError(
                    f"Redis at {name} does not know {words[0]}, but es-queue needs Lua scripts: "
                    "allow EVALSHA and SCRIPT there (rename-command), or use another server"
                ) from None


def authentication_error(name: str, error: Exception) -> RedisError:
    """The error of a server that requires a user or password, or refused it. name: a safe one"""
    name = re.sub(r"^(\w+)://[^@/:][^@/]*@", r"\1://***@", name)  # a user may be a password
    if "HELLO" in str(error) or "NOAUTH" in str(error):
        where = f"put it in the URL, in RQ_REDIS_URL, or in a file ({FLAG}, {PASSWORD_FILE})"
        return RedisError(
            f"Redis at {name} requires a password: {where}; if it has users (ACL), name the "
            "user in the URL: redis://worker@host"
        )
    return RedisError(
        f"Redis at {name} refused the user or password ({sanitize(first_line(error))}); "
        f"check RQ_REDIS_URL, --redis-url or {FLAG}"
    )


def find_tls_problem(client: redis.Redis, error: Exception) -> str | None:
    """Advice if TLS may prevent the connection; None for another cause."""
    tls = ("ssl", "certificate", "eof", "timeout", "pipe") if is_encrypted(client) else ()
    text = str(error).lower()
    is_failure = isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError)
    if not is_failure or not any(word in text for word in ("closed", "reset", "protocol", *tls)):
        return None
    # A server's refusal meets a read or a write by chance, and each words it differently.
    ended = any(word in text for word in ("while reading", "while writing", "closed by server"))
    cause = "the server closed the connection" if ended else sanitize(first_line(error))
    return (
        f"{cause}; use rediss:// for a port with TLS and redis:// for one "
        "without, and check ssl_ca_certs, ssl_certfile and ssl_keyfile"
    )


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


def unfit_reasons(information: dict[str, Any]) -> list[str]:
    """Why a server is unsuitable, from INFO only, because managed servers disable CONFIG. A colon
    precedes the fix.
    """

    def number(name: str, missing: int = 0) -> float:
        value = information.get(name, missing)
        return value if isinstance(value, int | float) else missing

    reasons = []
    if "sentinel" in (information.get("redis_mode"), information.get("server_mode")):
        reasons.append(
            "is a Sentinel, which stores nothing: give the URL of the server that it watches"
        )
    version_text = str(information.get("valkey_version") or information.get("redis_version", "0.0"))
    version = tuple(int(part) for part in version_text.split(".")[:2] if part.isdecimal())
    if version < MIN_VERSION:
        reasons.append(
            f"has version {sanitize(version_text, 20)}, which is too old: use 6.2 or later, or "
            "Valkey"
        )
    policy = information.get("maxmemory_policy", "noeviction")
    if number("maxmemory") > 0 and policy != "noeviction":
        reasons.append(
            f"has maxmemory-policy {sanitize(policy, 40)}, which would silently drop parameters "
            "and claims: set it to noeviction"
        )
    if number("cluster_enabled"):
        reasons.append(
            "runs in cluster mode, which neither RQ nor multi-key scripts can use: use a single "
            "server"
        )
    if information.get("role") == "slave" and number("slave_read_only", 1):
        reasons.append("is a read-only replica: give the URL of its master")
    return reasons


def format_limits(client: Any) -> str:
    """How much of its limits the server uses, by their settings; empty if it does not say."""
    words = list[str]()
    with suppress(ANY_ERROR):
        about = client.info()
        if most := about.get("maxmemory"):
            used, most = (f"{size / 2**20:.1f} MB" for size in (about["used_memory"], most))
            words.append(f"{used} of maxmemory {most} are used")
        if most := about.get("maxclients"):
            words.append(f"{about['connected_clients']} of maxclients {most} are connected")
    return ", ".join(words)


# --- the Redis that the user names

SCHEMES = ("redis://", "rediss://", "unix://")
#: ``--redis-url private``: a private server, whatever the environment or the run names.
URL_FLAG, PRIVATE = "--redis-url", "private"
SHOWN_PASSWORD = (
    "every user of this host can read the password on the command line: remove it from "
    "--redis-url, and use --redis-password-file, ES_QUEUE_REDIS_PASSWORD or RQ_REDIS_URL"
)


def url_from_environment() -> str | None:
    return os.environ.get("RQ_REDIS_URL") or os.environ.get("REDIS_URL") or None


def named_url(
    flag: str | None, password_file: str | None, warn: Callable[[str], None]
) -> tuple[str | None, str]:
    """The URL of the flag, else of the environment, with its password, and what named it; None if
    there is none, or if the flag is "private".

    warn: called about an unsafe place of the password. Raises UsageError, which contains no URL.
    """
    if flag == PRIVATE:
        return None, URL_FLAG
    for source, url in {
        URL_FLAG: flag,
        "RQ_REDIS_URL": os.environ.get("RQ_REDIS_URL"),
        "REDIS_URL": os.environ.get("REDIS_URL"),
    }.items():
        if url and not url.startswith(SCHEMES):
            raise UsageError(
                f"{source} is not a Redis address: use redis://host:port/db, rediss:// for "
                "TLS, or unix://path"
            )
        if url:
            return add_password(url, flag, password_file, warn), source
    return None, ""


def add_password(
    url: str, flag: str | None, password_file: str | None, warn: Callable[[str], None]
) -> str:
    if flag and password_of(flag) is not None:
        warn(SHOWN_PASSWORD)
    return with_password(url, None if password_file is None else Path(password_file), warn)


# --- sending again

OUTAGE_SECONDS = 120.0

T = TypeVar("T")


def backoff_delays() -> Iterator[float]:
    """Growing, jittered pauses between tries, in seconds."""
    pause = 0.02
    while True:
        yield pause * (0.5 + random.random() / 2)
        pause = min(1.0, pause * 2)


class Retry:
    """Repeats a command until the server responds; only for commands that may be sent twice.

    on_outage: called after each failure with the seconds of the outage; its exception ends it
    outages: failures so far; last_error: the server's last refusal, empty if it did not respond

    Raises RedisError when the server stays away or refuses the command.
    """

    def __init__(
        self, seconds: float = OUTAGE_SECONDS, on_outage: Callable[[float], None] = lambda _: None
    ) -> None:
        self.seconds = seconds
        self.on_outage = on_outage
        self.outages = 0
        self.last_error = ""
        self._since: float | None = None
        self._refusing = False
        self._ended: deque[float] = deque(maxlen=1000)

    def give_up_after(self, seconds: float) -> None:
        """Limit the time to retry, without callbacks."""
        self.seconds, self.on_outage = seconds, lambda _: None

    def pop_ended_outages(self) -> list[float]:
        """Seconds of each outage that ended since the last call; none during another one."""
        if self._since is not None:
            return []
        seconds = list(self._ended)
        self._ended.clear()
        return seconds

    def record_failure(self, error: Exception, began: float | None = None) -> float:
        """Record that a command that began at that monotonic time failed in an outage; returns the
        outage's seconds so far.
        """
        return self._record_outage("" if is_silence(error) else first_line(error), began)

    def record_refusal(self, reason: str) -> None:
        """Record that the server refuses writes, which reads do not end; an empty reason does."""
        self._refusing = bool(reason)
        if reason:
            self.on_outage(self._record_outage(reason))
        else:
            self._record_success()

    def _record_outage(self, reason: str, began: float | None = None) -> float:
        self.outages += 1
        self.last_error = reason
        if self._since is None:
            self._since = time.monotonic() if began is None else began
        return time.monotonic() - self._since

    def _record_success(self) -> None:
        if self._since is not None and not self._refusing:
            self._ended.append(time.monotonic() - self._since)
            self._since = None

    def __call__(self, call: Callable[[], T]) -> T:
        began = time.monotonic()
        for pause in backoff_delays():
            try:
                result = call()
                self._record_success()
                return result
            except redis.exceptions.AuthenticationError as error:
                raise RedisError(f"Redis refused the user or password: {error}") from None
            except redis.exceptions.RedisError as error:
                if not is_outage(error):
                    raise refused_error(error) from None
                lasted = self.record_failure(error, began)
                elapsed = time.monotonic() - began
                if elapsed > self.seconds:
                    raise RedisError(
                        f"Redis has been unreachable or full for {elapsed:.0f} s: "
                        f"{first_line(error)}"
                    ) from None
                self.on_outage(lasted)
                time.sleep(pause)
        raise AssertionError("pauses never end")


# --- reads of values that others write: a key of another type counts as missing

MAX_FIELD = 2**15  # bytes


def none_on_wrong_type(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        if str(error).startswith("WRONGTYPE"):
            return None
        raise


def read_field(client: Any, key: str, name: str, most: int = MAX_FIELD) -> bytes | None:
    """None if it is missing, or too long."""
    value: bytes | None = client.hget(key, name) if 0 < client.hstrlen(key, name) <= most else None
    return value


def replies_of(pipeline: Any) -> list[Any]:
    """Of its commands; None for a key of another type. Raises all other errors: an outage must not
    look like a missing key.
    """
    replies = pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception) and "WRONGTYPE" not in str(reply):
            raise reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


def runs_in_training(client: Any, runs: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Queue and number of workers of those runs that train and have a master, as it counts them."""
    pipeline = client.pipeline(transaction=False)
    for each in map(RunKeys, runs):
        pipeline.hmget(each.progress, "state", "queue", "workers").exists(each.master)
    replies, found = iter(replies_of(pipeline)), {}
    for run, fields, has_master in zip(runs, replies, replies, strict=True):
        state, queue, workers = map(decode_text, fields or (None, None, None))
        if state == RUNNING and has_master:
            # Python refuses to read a number of thousands of digits.
            is_number = re.fullmatch("[0-9]{1,10}", workers or "")
            found[run] = (queue or "", int(is_number[0]) if is_number else 0)
    return found


def decode_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")
