"""Parameters from a replica of Redis, so that one server's network does not carry them to every
host.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from rq.timeouts import BaseTimeoutException

from es_queue.errors import DecodeError, RedisError
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    client_from_url,
    first_line,
    is_encrypted,
    is_local,
    limit_replies,
    redacted_url,
    settings_of,
    verifies_certificate,
)
from es_queue.protocol.redis_channel import PIECE, read_parameters
from es_queue.security.passwords import REPLICA_URL

if TYPE_CHECKING:
    import redis

#: A replica may have a publication so much later than the server that it copies.
LAG_SECONDS, LOOK_SECONDS = 1.0, 0.02
#: A replica that failed, or lacked so many publications in succession, is left alone for so long.
PAUSE_SECONDS, MOST_MISSES = 60.0, 3
#: One reply, and a whole publication at the slowest rate in bytes per second.
REPLY_SECONDS, READ_SECONDS, SLOWEST = 1.0, 2.0, 2**22
#: A handshake's reply and a piece's header are shorter.
SLACK = 2**14


class ParameterReplica:
    """Reads published parameters from a replica. It raises no errors: the run's Redis has what the
    replica does not.
    """

    def __init__(self, client: redis.Redis, run: str, report: Callable[[str], None]) -> None:
        """``report`` receives a sentence about the first failure after a success."""
        self._client, self._keys, self._report = client, keys.RunKeys(run), report
        self._paused_until, self._misses = -math.inf, 0
        self._is_reported = False

    def read(self, publication: str, size: int, digest: str) -> bytes | None:
        """``size`` bytes with ``digest``; None if the replica does not have them in time, or
        fails.
        """
        if time.monotonic() < self._paused_until:
            return None
        try:
            data = self._wait_for(self._keys.parameters(publication), size)
            if data is not None and bytes_digest(data) != digest:
                raise DecodeError("its parameters differ from those that were published")
            self._misses = 0 if data is not None else self._misses + 1
            if self._misses >= MOST_MISSES:
                raise RedisError(f"it had none of the last {MOST_MISSES} publications in time")
        except BaseTimeoutException:  # RQ's own timeout is no failure of the replica
            raise
        except Exception as error:  # whatever the client library raises for an odd reply
            self._pause(error)
            return None
        self._is_reported = self._is_reported and data is None
        return data

    def _wait_for(self, name: str, size: int) -> bytes | None:
        begun = time.monotonic()
        getrange = partial(self._getrange, begun + READ_SECONDS + size / SLOWEST)
        # Twice: yes, a read.
        while (data := read_parameters(getrange, name, size)) is None:
            if time.monotonic() >= begun + LAG_SECONDS:
                return None
            time.sleep(LOOK_SECONDS)
        return data

    def _getrange(self, deadline: float, *arguments: Any) -> Any:
        if time.monotonic() > deadline:
            raise RedisError("it sends too slowly")
        return self._client.getrange(*arguments)

    def _pause(self, error: Exception) -> None:
        self._paused_until = time.monotonic() + PAUSE_SECONDS
        with suppress(Exception):
            self._client.connection_pool.disconnect()  # a late reply may be on its way
        if not self._is_reported:
            self._is_reported = True
            self._report(
                f"the replica of {REPLICA_URL} does not serve parameters ({first_line(error)}): "
                f"they come from the run's Redis, and the replica is tried again every "
                f"{PAUSE_SECONDS:.0f} s"
            )


def replica_client(url: str, primary: redis.Redis) -> redis.Redis:
    """A client for a replica, which reads short replies in a short time. Without a user or password
    in its URL it uses those of ``primary``.

    Raises RedisError, also if the password would be less protected on its way to the replica.
    """
    client = client_from_url(url)
    settings, defaults = settings_of(client), settings_of(primary)
    if not (settings.get("username") or settings.get("password")):
        if defaults.get("password") and protection(client) < protection(primary):
            raise RedisError(
                "the password of the run's Redis would be less protected on its way to the "
                "replica: use rediss:// with a verified certificate, or put a user and password "
                "of the replica's own in its URL"
            )
        for name in ("username", "password"):
            settings[name] = defaults.get(name)
    settings.update(socket_timeout=REPLY_SECONDS, socket_connect_timeout=REPLY_SECONDS)
    return limit_replies(client, PIECE + SLACK, REPLY_SECONDS)


def protection(client: redis.Redis) -> int:
    """How well its connection hides a password: 2 on this host or by TLS with a verified
    certificate, 1 by TLS without one, 0 in plain text.
    """
    if is_local(client)[1]:
        return 2
    return is_encrypted(client) * (1 + verifies_certificate(client))


def replica_from_environment(
    primary: redis.Redis, run: str, report: Callable[[str], None]
) -> ParameterReplica | None:
    """The replica that the user has named, None without one or if its URL cannot be used."""
    url = os.environ.get(REPLICA_URL, "")
    if not url:
        return None
    try:
        client = replica_client(url, primary)
    except RedisError as error:
        report(f"{REPLICA_URL} is {redacted_url(url)[:200]!r}: {error}")
        return None
    return ParameterReplica(client, run, report)
