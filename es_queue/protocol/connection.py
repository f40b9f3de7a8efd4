"""Redis clients with explicit timeouts, which never re-send silently, and Retry, which does.

By itself, redis-py re-sends a command whose reply was lost, and may wait a minute for it. Every
command here may be sent again, unless a comment says that it never is.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import redis
from redis.backoff import EqualJitterBackoff, NoBackoff

from es_queue.credentials import FLAG, PASSWORD_FILE, TORN, is_torn, password_of
from es_queue.credentials import with_password as with_password
from es_queue.errors import RedisError, UsageError
from es_queue.protocol.keys import RUNNING, RUNS, RunKeys
from es_queue.protocol.messages import MAX_TASK
from es_queue.text import sanitize

SOCKET_SECONDS = 5.0
MIN_VERSION = (6, 2)

ANY_ERROR = redis.exceptions.RedisError
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


class UnreachableError(RedisError):
    """The server does not answer now, and may later."""


def is_outage(error: Exception) -> bool:
    """Whether the command may succeed later without any change here."""
    return isinstance(error, OUTAGE_ERRORS) or (
        isinstance(error, redis.exceptions.ResponseError)
        and TRANSIENT_ERROR.search(str(error)) is not None
    )


def refused_error(error: Exception, what: str = "a command") -> RedisError:
    return RedisError(
        f"Redis refused {what}: {first_line(error)}; check the user's rights, the server's "
        "settings and the run's keys"
    )


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


# --- clients

#: What a URL can set after its "?", beside ssl_…; the rest are objects, or es-queue's own.
URL_SETTINGS = (
    *("db", "username", "password", "client_name", "protocol", "max_connections"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive", "health_check_interval"),
)
NAMES_SETTING = re.compile(rf"\b(ssl_\w{{1,40}}|{'|'.join(URL_SETTINGS)})\b")


def connection_arguments() -> dict[str, Any]:
    """Arguments of every es-queue client, each with its own Retry."""
    return {
        "socket_timeout": SOCKET_SECONDS,
        "socket_connect_timeout": SOCKET_SECONDS,
        "retry": redis.retry.Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
    }


def client_from_url(url: str) -> redis.Redis:
    """A client for redis://, rediss:// or unix:// URLs. Raises RedisError, which repeats nothing of
    the URL but its TLS settings.
    """
    problem, settings = problem_of_url(url), dict[str, Any]()
    if not problem:
        try:
            client = redis.Redis.from_url(url, **connection_arguments())
            settings = settings_of(client)
            # refuses settings that it does not know
            client.connection_pool.connection_class(**settings)
        except ANY_ERROR as error:  # a TLS setting that does not exist
            problem = first_line(error)
        except (ValueError, TypeError, AttributeError) as error:
            setting = NAMES_SETTING.search(str(error))
            named = f"its {setting[1]} does not fit: " if setting else ""
            problem = (
                f"{named}use redis://USER@HOST:PORT/DB, rediss:// for TLS and its ssl_ settings, "
                "or unix://PATH"
            )
    if problem:
        raise RedisError(f"the Redis URL cannot be used: {problem}")
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if settings.get(name) and not os.access(settings[name], os.R_OK):
            raise RedisError(
                f"the Redis URL names a file in {name} that cannot be read: {settings[name]}"
            )
    return client


def problem_of_url(url: str) -> str:
    """What redis-py would not notice, or would show with the password; empty if nothing."""
    if is_torn(url):
        return TORN
    parts = urlsplit(url)
    number = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and number and not number.isdecimal():
        return "the part after its host is no database number: use /0, or leave it out"
    names = {name for name, _ in parse_qsl(parts.query) if not name.startswith("ssl_")}
    if names - {*URL_SETTINGS}:
        return f"after its '?' it can only set {', '.join(URL_SETTINGS)} and ssl_…"
    return ""


def tested_client(url: str) -> redis.Redis:
    """``client_from_url`` after one PING. Raises RedisError unless the server only is away."""
    client = client_from_url(url)
    try:
        client.ping()
    except ANY_ERROR as error:
        problem = explained(client, redacted_url(url), error)
        if not isinstance(problem, UnreachableError):
            raise problem from None
    return client


class RedisWithPassword(redis.Redis):
    """For RQ_CONNECTION_CLASS: ``rq`` itself then takes the password from es-queue's variables."""

    @classmethod
    def from_url(cls, url: str, *arguments: Any, **more: Any) -> redis.Redis:
        return super().from_url(with_password(url), *arguments, **more)


def clone_client(connection: redis.Redis, without: Sequence[str] = ("client_name",)) -> redis.Redis:
    """An es-queue client for the server, user and database of another client, such as RQ's."""
    settings = {**settings_of(connection), **connection_arguments()}
    kept = {name: value for name, value in settings.items() if name not in without}
    connection_class = connection.connection_pool.connection_class
    return redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=connection_class, **kept)
    )


# --- others who can read the connection

CREDENTIALS = (
    *("username", "password", "credential_provider"),
    *("ssl_certfile", "ssl_keyfile", "ssl_password"),
)


def settings_of(client: redis.Redis) -> dict[str, Any]:
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    return settings


def is_open_to_anonymous(client: redis.Redis) -> bool | None:
    """Whether the server accepts clients without user, password or certificate; None if unknown."""
    anonymous = clone_client(client, CREDENTIALS)
    try:
        return bool(anonymous.ping())
    except (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError):
        return False
    except (ANY_ERROR, OSError):
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
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses = {str(about[4][0]).partition("%")[0] for about in found}
        return bool(addresses) and all(ipaddress.ip_address(one).is_loopback for one in addresses)
    except (OSError, ValueError):  # UnicodeError is a ValueError
        return False


def is_encrypted(client: redis.Redis) -> bool:
    return issubclass(client.connection_pool.connection_class, redis.SSLConnection)


def verifies_certificate(client: redis.Redis) -> bool:
    """Whether a TLS connection verifies the server's certificate."""
    return settings_of(client).get("ssl_cert_reqs", "required") not in ("none", ssl.CERT_NONE)


def is_password_set(client: redis.Redis) -> bool:
    return bool(settings_of(client).get("password"))


# --- the URL that the user names

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
    variables = {name: os.environ.get(name) for name in ("RQ_REDIS_URL", "REDIS_URL")}
    for source, url in {URL_FLAG: flag, **variables}.items():
        if url and not url.startswith(SCHEMES):
            raise UsageError(
                f"{source} is not a Redis address: use redis://host:port/db, rediss:// for "
                "TLS, or unix://path"
            )
        if url:
            if flag and password_of(flag) is not None:
                warn(SHOWN_PASSWORD)
            file = None if password_file is None else Path(password_file)
            return with_password(url, file, warn), source
    return None, ""


def redacted_url(url: str) -> str:
    """The URL for display, without its password, the part after a "?", and a user without a
    password, which may be a misplaced one.
    """
    if is_torn(url):
        return f"{url.partition(':')[0]}://***"
    parts = urlsplit(url)
    user, separator, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    shown = "***" if name and password_of(url) is None else f"{name}{':***' if colon else ''}"
    return f"{parts.scheme}://{shown}{separator}{host}{parts.path}"


def has_secret(url: str) -> bool:
    """Whether the URL has a secret, which belongs in the environment, not on a command line."""
    return redacted_url(url) != url


# --- servers that a run cannot use

#: The fix for a server that does not respond.
START_SERVER = "start it, or correct RQ_REDIS_URL or --redis-url"
#: Of a server whose list of runs has another type.
MISTYPED_RUNS = (
    f"has a key {RUNS} of another program, not a sorted set: give another database number, such as "
    "/1"
)


def validate_server(client: redis.Redis, name: str, scripts: bool = True) -> None:
    """Raises RedisError unless the server is fit for a run; UnreachableError if it does not answer.

    scripts: whether a master's Lua scripts are needed
    """
    try:
        information: Any = client.info()
    except ANY_ERROR as error:
        raise explained(client, name, error) from None
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


def explained(client: redis.Redis, name: str, error: Exception) -> RedisError:
    """The error of a server's first reply in one sentence with its fix; an UnreachableError if it
    may pass.

    name: the server's, without a password
    """
    text, reason, tls = str(error), sanitize(first_line(error)), tls_advice(client, error)
    if isinstance(error, redis.exceptions.AuthenticationError):
        name = re.sub(r"^(\w+)://[^@/:][^@/]*@", r"\1://***@", name)  # a user may be a password
        problem = (
            f"refused the user or password ({reason}); check RQ_REDIS_URL, --redis-url or {FLAG}"
        )
        if "HELLO" in text or "NOAUTH" in text:
            problem = (
                f"requires a password: put it in the URL, in RQ_REDIS_URL, or in a file ({FLAG}, "
                f"{PASSWORD_FILE}); if it has users (ACL), name the user in the URL: "
                "redis://worker@host"
            )
    elif isinstance(error, redis.exceptions.NoPermissionError):
        problem = f"grants this user too few rights ({reason}): it needs +info and +@read on es:*"
    elif tls:
        problem = f"cannot be used: {tls}"
    elif is_outage(error) or isinstance(error, OSError):
        return UnreachableError(f"Redis at {name} cannot be reached ({reason}); {START_SERVER}")
    elif "HELLO" in text:  # a connection's first word, unknown before Redis 6
        problem = "is older than version 6.0, but 6.2 or later is needed (or Valkey)"
    elif "DB index" in text:
        problem = "does not have that database: use a smaller number, such as /0"
    else:
        problem = f"answered with an error: {reason}"
    return RedisError(f"Redis at {name} {problem}")


def tls_advice(client: redis.Redis, error: Exception) -> str:
    """Advice if TLS may prevent the connection; empty for another cause."""
    tls = ("ssl", "certificate", "eof", "timeout", "pipe") if is_encrypted(client) else ()
    text = str(error).lower()
    is_failure = isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError)
    if not is_failure or not any(word in text for word in ("closed", "reset", "protocol", *tls)):
        return ""
    # A server's refusal meets a read or a write by chance, and each words it differently.
    ended = any(word in text for word in ("while reading", "while writing", "closed by server"))
    cause = "the server closed the connection" if ended else sanitize(first_line(error))
    return (
        f"{cause}; use rediss:// for a port with TLS and redis:// for one "
        "without, and check ssl_ca_certs, ssl_certfile and ssl_keyfile"
    )


def unfit_reasons(information: dict[str, Any]) -> list[str]:
    """Why a server is unsuitable, from INFO only, because managed servers disable CONFIG. A colon
    precedes the fix.
    """

    def number(name: str, missing: int = 0) -> float:
        value = information.get(name, missing)
        return value if isinstance(value, int | float) else missing

    text = str(information.get("valkey_version") or information.get("redis_version", "0.0"))
    version = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    policy = information.get("maxmemory_policy", "noeviction")
    reasons = {
        "is a Sentinel, which stores nothing: give the URL of the server that it watches": (
            "sentinel" in (information.get("redis_mode"), information.get("server_mode"))
        ),
        f"has version {sanitize(text, 20)}, which is too old: use 6.2 or later, or Valkey": (
            version < MIN_VERSION
        ),
        f"has maxmemory-policy {sanitize(policy, 40)}, which would silently drop parameters and "
        "claims: set it to noeviction": number("maxmemory") > 0 and policy != "noeviction",
        "runs in cluster mode, which neither RQ nor multi-key scripts can use: use a single "
        "server": number("cluster_enabled"),
        "is a read-only replica: give the URL of its master": (
            information.get("role") == "slave" and number("slave_read_only", 1)
        ),
    }
    return [reason for reason, is_so in reasons.items() if is_so]


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


# --- sending again

OUTAGE_SECONDS = 120.0
#: Pauses of 0.02 to 1 s between tries, less a random part of up to a half.
PAUSES = EqualJitterBackoff(base=0.01, cap=1.0)

T = TypeVar("T")


class Retry:
    """Repeats a command until the server responds; only for commands that may be sent twice.

    on_outage: called after each failure with the seconds of the outage; its exception ends it
    outages: failures so far; last_error: the server's last refusal, empty if it did not respond

    Raises RedisError when the server stays away or refuses the command.
    """

    def __init__(
        self, seconds: float = OUTAGE_SECONDS, on_outage: Callable[[float], None] = lambda _: None
    ) -> None:
        self.seconds, self.on_outage = seconds, on_outage
        self.outages, self.last_error = 0, ""
        self._since: float | None = None
        self._refusing = False
        self._ended: deque[float] = deque(maxlen=1000)
        self._retry = redis.retry.Retry(PAUSES, -1, (ANY_ERROR,))

    def __call__(self, call: Callable[[], T]) -> T:
        began = time.monotonic()

        def fail(error: Exception) -> None:
            if isinstance(error, redis.exceptions.AuthenticationError):
                raise RedisError(f"Redis refused the user or password: {error}") from None
            if not is_outage(error):
                raise refused_error(error) from None
            lasted, elapsed = self.record_failure(error, began), time.monotonic() - began
            if elapsed > self.seconds:
                raise RedisError(
                    f"Redis has been unreachable or full for {elapsed:.0f} s: {first_line(error)}"
                ) from None
            self.on_outage(lasted)

        result = self._retry.call_with_retry(call, fail)
        self._record_success()
        return result

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
        is_silent = isinstance(
            error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError
        )
        if isinstance(error, redis.exceptions.BusyLoadingError) or "max number of" in str(error):
            is_silent = False  # a loading or full server responds
        return self._record_outage("" if is_silent else first_line(error), began)

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


# --- reads of values that others write: a key of another type counts as missing

MAX_FIELD, MAX_CONFIG = 2**15, 2**20  # bytes


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
    """None for a key of another type. All other errors are raised: an outage must not look like a
    missing key.
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


# --- a run


class Store:
    """What every side of a run needs: a client, the run's keys, and retries."""

    def __init__(self, client: redis.Redis, run: str, retry: Retry | None) -> None:
        self.run, self.keys, self.retry = run, RunKeys(run), retry or Retry()
        self._client: Any = client

    def _command(self, name: str, *arguments: Any, **options: Any) -> Any:
        """The reply to a command that is sent again until the server responds."""
        return self.retry(partial(getattr(self._client, name), *arguments, **options))

    @property
    def outages(self) -> int:
        """How often the server did not respond; after a change, heartbeats may have lapsed (rule
        7).
        """
        return self.retry.outages

    def progress_field(self, name: str, most: int = MAX_FIELD) -> str | None:
        """A field of the run's progress as a master last wrote it; None if missing or too long."""
        read = partial(read_field, self._client, self.keys.progress, name, most)
        return decode_text(self.retry(read))

    def config(self) -> bytes | None:
        """The run's configuration, None if there is no such run."""
        return self._read(self.keys.config, MAX_CONFIG)

    def task(self) -> bytes | None:
        """The header of the open publication."""
        return self._read(self.keys.task, MAX_TASK)

    def _read(self, key: str, most: int) -> bytes | None:
        """At most a byte more than there may be."""
        return self._command("getrange", key, 0, most) or None
