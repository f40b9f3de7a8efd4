"""Redis clients, built in this one place with explicit timeouts and no silent re-sending.

redis-py re-sends a command whose reply was lost and may wait a minute doing so; which of our commands may be
sent twice stands beside each of them in ``redis_channel``, so the clients themselves never retry.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from es_queue.errors import RedisError

SOCKET_SECONDS = 5.0
CONNECT_SECONDS = 5.0
OLDEST = (6, 2)

# What is worth trying again: the server is away, restarting, still loading, full, or a replica for now.
OUTAGES = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.MasterDownError,
)
# The same as replies; their word stands first, after a pipeline's "caused error:", or after a dash in a script's error.
PASSING = re.compile(r"(?:^|: |-)(?:READONLY|MISCONF|UNBLOCKED|MASTERDOWN|LOADING|OOM)\b")

# All that a command may end in: outages, and a server that refuses (READONLY, NOPERM, MISCONF …).
ANY_ERROR = redis.exceptions.RedisError


def is_outage(error: Exception) -> bool:
    """Whether a command may succeed a little later, with nobody changing anything about us."""
    return isinstance(error, OUTAGES) or (isinstance(error, redis.exceptions.ResponseError) and PASSING.search(str(error)) is not None)


def is_silence(error: Exception) -> bool:
    """Whether the server did not answer at all; one that is loading, or has too many clients, does."""
    if isinstance(error, redis.exceptions.BusyLoadingError) or "max number of clients" in str(error):
        return False
    return isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError)


def refusal(error: Exception, what: str = "a command") -> RedisError:
    """The one sentence for a command that Redis will not carry out now or later."""
    return RedisError(f"Redis refused {what}: {short(error)}; look at its rights, its settings and the run's keys")


def explicit() -> dict[str, Any]:
    """The arguments that every client of ours has. A fresh Retry each: clients must not share one."""
    return {
        "socket_timeout": SOCKET_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
    }


def client_from_url(url: str) -> redis.Redis:
    """A client for redis://, rediss:// or unix:// URLs. Raises RedisError for anything else."""
    try:
        return redis.Redis.from_url(url, **explicit())
    except (ValueError, TypeError) as error:
        raise RedisError(f"the Redis URL cannot be used: {str(error).split(';')[0]}") from None


def client_like(connection: redis.Redis) -> redis.Redis:
    """A client of our own for the server of RQ's connection; TLS, user and database stay as they are."""
    pool = connection.connection_pool
    arguments = {**pool.connection_kwargs, **explicit()}
    arguments.pop("client_name", None)
    return redis.Redis(connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, **arguments))


def safe_name(url: str) -> str:
    """The URL without its password, for people; what follows a "?" may hold one too, and goes."""
    parts = urlsplit(url)
    user, separator, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    hidden = f"{name}{':***' if colon else ''}{separator}{host}"
    return f"{parts.scheme}://{hidden}{parts.path}"


def holds_secret(url: str) -> bool:
    """Whether something of the URL is not for people: then it belongs into the environment, not on a command line."""
    return safe_name(url) != url


def url_from_environment() -> str | None:
    return os.environ.get("RQ_REDIS_URL") or os.environ.get("REDIS_URL") or None


def refuse_unfit(client: redis.Redis, name: str) -> None:
    """Raise RedisError in one sentence unless the server is fit for a run: version, eviction, cluster, role."""
    try:
        information: Any = client.info()
    except redis.exceptions.AuthenticationError as error:
        if "HELLO" in str(error) or "NOAUTH" in str(error):
            raise RedisError(f"Redis at {name} wants a password: put it into the URL, in RQ_REDIS_URL") from None
        raise RedisError(f"Redis at {name} refused the user or password ({error}); check RQ_REDIS_URL or --redis-url") from None
    except redis.exceptions.NoPermissionError as error:
        raise RedisError(f"Redis at {name} lets this user do too little ({error}); INFO is needed to check the server") from None
    except OUTAGES as error:
        raise RedisError(f"Redis at {name} cannot be reached ({short(error)}); start it or correct --redis-url") from None
    except redis.exceptions.RedisError as error:
        if "HELLO" in str(error):  # a connection's first word, unknown before Redis 6
            raise RedisError(f"Redis at {name} is older than version 6.0, but 6.2 or later is needed (or Valkey)") from None
        raise RedisError(f"Redis at {name} answered with an error: {short(error)}") from None
    for reason in _reasons(information):
        raise RedisError(f"Redis at {name} {reason}")


def short(error: Exception) -> str:
    """The first line of what a server or a socket said."""
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


def _reasons(information: dict[str, Any]) -> list[str]:
    """What makes a server unfit, from INFO alone: CONFIG is switched off on managed servers."""
    found = []
    shown = str(information.get("valkey_version") or information.get("redis_version", "0.0"))
    version = tuple(int(part) for part in shown.split(".")[:2] if part.isdigit())
    if version < OLDEST:
        found.append(f"has version {shown}, but 6.2 or later is needed (or Valkey)")
    policy = information.get("maxmemory_policy", "noeviction")
    if int(information.get("maxmemory", 0)) > 0 and policy != "noeviction":
        found.append(f"has maxmemory-policy {policy}, which would silently drop parameters and claims: set it to noeviction")
    if int(information.get("cluster_enabled", 0)):
        found.append("runs in cluster mode, which neither RQ nor multi-key scripts can use: give a single server")
    if information.get("role") == "slave" and int(information.get("slave_read_only", 1)):
        found.append("is a read-only replica: give the URL of its master")
    return found
