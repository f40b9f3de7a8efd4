"""Large parameters come from a replica of Redis, and from Redis itself whenever that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol import keys, replica
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.redis_channel import RedisMasterChannel, RedisWorkerChannel
from es_queue.protocol.replica import ParameterReplica, replica_from_environment
from tests.abuse.servers import WHEEL, serving
from tests.contract.places import P0, P1, RUN, wait_until, worker_name
from tests.faults.servers import free_port
from tests.leaks import simple_password
from workers.parameter_cache import ParameterCache

DATA = os.urandom(3 * 2**20 + 5)
SIZE, DIGEST = len(DATA), bytes_digest(DATA)
PASSWORD = simple_password("replica")


class Pair:
    """A server with a password, its replica, and a worker's way to parameters over both."""

    def __init__(self, primary: int, copy: int) -> None:
        self.primary: Any = client_from_url(f"redis://:{PASSWORD}@127.0.0.1:{primary}")
        self.copy: Any = client_from_url(f"redis://:{PASSWORD}@127.0.0.1:{copy}")
        self.copy_url = f"redis://127.0.0.1:{copy}"
        self.notes: list[str] = []

    def replica(self) -> ParameterReplica:
        found = replica_from_environment(self.primary, RUN, self.notes.append)
        assert found is not None
        return found

    def get(self, reader: ParameterReplica, publication: str = P0) -> object:
        """As a worker does; its host has no cache."""
        channel = RedisWorkerChannel(self.primary, RUN, worker_name(1))
        return ParameterCache("run").get(
            publication,
            SIZE,
            DIGEST,
            lambda: reader.read(publication, SIZE),
            lambda: channel.parameters(publication, SIZE),
        )

    def is_linked(self) -> bool:
        return bool(self.copy.info("replication").get("master_link_status") == "up")

    def reads(self, server: redis.Redis) -> int:
        about: Any = server.info("commandstats")
        return int(about.get("cmdstat_getrange", {}).get("calls", 0))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr("workers.parameter_cache.host_private_directory", lambda: None)
    port, secret = free_port(), ("--requirepass", PASSWORD, "--repl-diskless-sync-delay", 0)
    copying = ("--replicaof", f"127.0.0.1 {port}", "--masterauth", PASSWORD)
    with (
        serving(WHEEL, tmp_path / "primary", *secret, port=port),
        serving(WHEEL, tmp_path / "copy", *secret, *copying) as copy,
    ):
        pair = Pair(port, copy)
        monkeypatch.setenv(replica.VARIABLE, pair.copy_url)
        RedisMasterChannel(pair.primary, RUN).stage(P0, DATA)
        wait_until(pair.is_linked)
        yield pair
        pair.primary.close()
        pair.copy.close()


def test_a_worker_reads_large_parameters_from_the_replica_with_the_servers_password(
    pair: Pair,
) -> None:
    assert pair.get(pair.replica()) == DATA
    assert (pair.reads(pair.primary), pair.reads(pair.copy)) == (0, 4)
    assert pair.notes == []


def test_what_the_replica_lacks_or_has_damaged_comes_from_the_server(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "LAG_SECONDS", 0.0)
    pair.copy.replicaof("NO", "ONE")
    name = keys.RunKeys(RUN).parameters(P0)
    pair.copy.setrange(name, 7, b"damaged")
    assert pair.get(pair.replica()) == DATA
    RedisMasterChannel(pair.primary, RUN).stage(P1, DATA)
    assert pair.get(pair.replica(), P1) == DATA


def test_a_replica_that_fails_is_left_alone_for_a_minute(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(replica.VARIABLE, f"redis://127.0.0.1:{free_port()}")
    reader = pair.replica()
    assert [pair.get(reader), pair.get(reader)] == [DATA, DATA]
    assert len(pair.notes) == 1 and "for 60 s they come from the run's Redis" in pair.notes[0]
    assert PASSWORD not in pair.notes[0]


def test_a_url_that_cannot_be_used_is_reported_without_its_password(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(replica.VARIABLE, f"http://:{PASSWORD}@host")
    assert replica_from_environment(pair.primary, RUN, pair.notes.append) is None
    assert "the Redis URL cannot be used" in pair.notes[0] and PASSWORD not in pair.notes[0]
    monkeypatch.delenv(replica.VARIABLE)
    assert replica_from_environment(pair.primary, RUN, pair.notes.append) is None
    assert len(pair.notes) == 1
