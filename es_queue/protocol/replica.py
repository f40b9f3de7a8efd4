"""Parameters from a replica of Redis, so that one server's network does not carry them to every
host.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from es_queue.errors import RedisError
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    ANY_ERROR,
    client_from_url,
    first_line,
    redacted_url,
    settings_of,
)
from es_queue.protocol.redis_channel import read_parameters

if TYPE_CHECKING:
    import redis

VARIABLE = "ES_QUEUE_REPLICA_URL"
#: A replica may have a publication so much later than the server that it copies.
LAG_SECONDS, LOOK_SECONDS = 1.0, 0.02
#: A replica that failed is left alone for so long.
PAUSE_SECONDS = 60.0


class ParameterReplica:
    """Reads published parameters from a replica. It raises no errors: the run's Redis has what the
    replica does not. The reader checks the digest.
    """

    def __init__(self, client: redis.Redis, run: str, report: Callable[[str], None]) -> None:
        """``report`` receives a sentence about each failure."""
        self._client, self._keys, self._report = client, keys.RunKeys(run), report
        self._paused_until = -math.inf

    def read(self, publication: str, size: int) -> bytes | None:
        """``size`` bytes; None if the replica does not have them in time, or fails."""
        deadline = time.monotonic() + LAG_SECONDS
        if time.monotonic() < self._paused_until:
            return None
        name = self._keys.parameters(publication)
        try:
            # Twice: yes, a read.
            while (data := read_parameters(self._client.getrange, name, size)) is None:
                if time.monotonic() >= deadline:
                    return None
                time.sleep(LOOK_SECONDS)
        except ANY_ERROR as error:
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            self._report(
                f"the replica of {VARIABLE} does not serve parameters ({first_line(error)}): for "
                f"{PAUSE_SECONDS:.0f} s they come from the run's Redis"
            )
            return None
        return data


def replica_client(url: str, primary: redis.Redis) -> redis.Redis:
    """A client for a replica. Without a user or password in its URL it uses those of ``primary``.
    Raises RedisError.
    """
    client = client_from_url(url)
    settings, defaults = settings_of(client), settings_of(primary)
    if not (settings.get("username") or settings.get("password")):
        for name in ("username", "password"):
            settings[name] = defaults.get(name)
    return client


def replica_from_environment(
    primary: redis.Redis, run: str, report: Callable[[str], None]
) -> ParameterReplica | None:
    """The replica that the user has named, None without one or if its URL cannot be used."""
    url = os.environ.get(VARIABLE, "")
    if not url:
        return None
    try:
        client = replica_client(url, primary)
    except RedisError as error:
        report(f"{VARIABLE} is {redacted_url(url)[:200]!r}: {error}")
        return None
    return ParameterReplica(client, run, report)
