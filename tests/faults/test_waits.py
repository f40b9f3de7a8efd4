"""No call to Redis waits longer than it says: measured where bytes are sent and received, against
servers that say nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import redis

from es_queue.protocol.connection import backoff_delays, client_from_url, clone_client


class Stock(redis.Redis):
    """What RQ has: a client that waits for seven minutes and tries again ten times."""

    def __init__(self) -> None:
        super().__init__(socket_timeout=415, socket_connect_timeout=60)


@pytest.mark.parametrize(
    "build",
    [
        lambda: client_from_url("redis://localhost"),
        lambda: client_from_url("rediss://localhost"),
        lambda: client_from_url("unix:///nowhere"),
        lambda: client_from_url("redis://localhost?retry_on_timeout=yes"),
        lambda: clone_client(Stock()),
    ],
    ids=["tcp", "tls", "unix", "a URL that wishes more tries", "like RQ's"],
)
def test_every_client_says_how_long_it_waits_and_sends_nothing_again_by_itself(
    build: Callable[[], redis.Redis],
) -> None:
    arguments = build().connection_pool.connection_kwargs
    assert (arguments["socket_timeout"], arguments["socket_connect_timeout"]) == (5.0, 5.0)
    assert arguments["retry"].get_retries() == 0 and not arguments["retry_on_error"]


def test_a_server_that_is_back_is_tried_within_a_second() -> None:
    tries = list(itertools.islice(backoff_delays(), 50))
    assert max(tries) <= 1.0 and min(tries[10:]) >= 0.5, "neither later than that, nor in circles"
