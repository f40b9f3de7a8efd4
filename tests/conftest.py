"""Fixtures that all folders share: a private Valkey server for the session, empty at the start of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from es_queue.protocol.connection import client_from_url
from master.household.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that only this pytest process uses (with xdist: each worker process has its own)."""
    server = EmbeddedServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def valkey_url(valkey_server: str) -> str:
    """The URL of the session's server, which is empty now."""
    with client_from_url(valkey_server) as client:
        client.flushall()
        client.config_set("maxmemory", 0)
    return valkey_server


@pytest.fixture
def redis_client(valkey_url: str) -> Iterator[redis.Redis]:
    """A client of the session's server, built as the product builds its own: explicit time-outs, no silent re-sending."""
    with client_from_url(valkey_url) as client:
        yield client
