"""Large parameters come from a replica of Redis, and from Redis itself whenever that fails."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rq.timeouts import JobTimeoutException

from es_queue.errors import DecodeError, RedisError
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol import keys, replica
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.redis_channel import RedisMasterChannel, RedisWorkerChannel, read_parameters
from es_queue.protocol.replica import (
    ParameterReplica,
    replica_client,
    replica_from_environment,
)
from es_queue.security.passwords import REPLICA_URL
from tests.abuse.servers import WHEEL, serving
from tests.cases import each_case
from tests.contract.places import P0, P1, RUN, stop_listening, wait_until, worker_name
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
            lambda: reader.read(publication, SIZE, DIGEST),
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
        monkeypatch.setenv(REPLICA_URL, pair.copy_url)
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
    monkeypatch.setenv(REPLICA_URL, f"redis://127.0.0.1:{free_port()}")
    reader = pair.replica()
    assert [pair.get(reader), pair.get(reader)] == [DATA, DATA]
    assert len(pair.notes) == 1 and "the replica is tried again every 60 s" in pair.notes[0]
    assert PASSWORD not in pair.notes[0]


def test_a_url_that_cannot_be_used_is_reported_without_its_password(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPLICA_URL, f"http://:{PASSWORD}@host")
    assert replica_from_environment(pair.primary, RUN, pair.notes.append) is None
    assert "the Redis URL cannot be used" in pair.notes[0] and PASSWORD not in pair.notes[0]
    monkeypatch.delenv(REPLICA_URL)
    assert replica_from_environment(pair.primary, RUN, pair.notes.append) is None
    assert len(pair.notes) == 1


# --- servers that are no replica


HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"
SMALL = 300_000


class OddServer:
    """Answers HELLO as Redis does, or with ``hello``; GETRANGE by ``answer``."""

    def __init__(self, answer: Callable[[socket.socket], None], hello: bytes = HELLO) -> None:
        self._answer, self._hello = answer, hello
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0

    def close(self) -> None:
        stop_listening(self._listener)

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while request := connection.recv(2**16):
                if b"HELLO" in request:
                    connection.sendall(self._hello)
                elif b"GETRANGE" in request:
                    self._answer(connection)
                else:
                    connection.sendall(b"+OK\r\n" * request.count(b"*"))


@contextmanager
def odd_server(
    answer: Callable[[socket.socket], None], hello: bytes = HELLO
) -> Iterator[OddServer]:
    server = OddServer(answer, hello)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(5)


def sending(reply: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(reply)


def reader_of(url: str, notes: list[str]) -> ParameterReplica:
    primary: Any = client_from_url("redis://127.0.0.1:1")
    return ParameterReplica(replica_client(url, primary), RUN, notes.append)


@each_case(
    ("reply", "hello"),
    [
        (b":7\r\n", HELLO),
        (b"*1\r\n:7\r\n", HELLO),
        (b"_\r\n", HELLO),
        (b"$abc\r\n", HELLO),
        (b"HTTP/1.1 400\r\n\r\n", HELLO),
        (b"*1\r\n" * 3000, HELLO),
        (b"$300001\r\n" + b"x" * 300_001 + b"\r\n", HELLO),
        (b"", b"+OK\r\n"),
    ],
)
def test_a_server_with_odd_replies_is_reported_once_and_left_alone(
    reply: bytes, hello: bytes
) -> None:
    notes: list[str] = []
    with odd_server(sending(reply), hello) as server:
        reader = reader_of(server.url, notes)
        assert [reader.read(P0, SMALL, DIGEST) for _ in range(3)] == [None] * 3
        assert server.connections == 1
    assert len(notes) == 1 and "does not serve parameters" in notes[0]


@each_case("piece", [7, [b"x"], None, bytes(9)])
def test_a_piece_of_another_type_or_length_is_refused(piece: object) -> None:
    with pytest.raises(DecodeError, match="not a string of at most 8 bytes"):
        read_parameters(lambda *_: piece, "name", 8)


def drip(connection: socket.socket) -> None:
    for letter in b"$300000\r\n" + b"x" * 100:
        connection.sendall(bytes([letter]))
        time.sleep(0.1)  # what this server is


def flood(connection: socket.socket) -> None:
    connection.sendall(b"$400000000\r\n")
    for _ in range(400):
        connection.sendall(bytes(2**20))


@each_case(("answer", "reason"), [(drip, "took longer than 1 s"), (flood, "is larger than")])
def test_a_slow_or_large_reply_is_not_read_to_its_end(
    answer: Callable[[socket.socket], None], reason: str
) -> None:
    notes: list[str] = []
    with odd_server(answer) as server:
        reader, begun = reader_of(server.url, notes), time.monotonic()
        assert reader.read(P0, SMALL, DIGEST) is None
        assert time.monotonic() - begun < 4.0
    assert reason in notes[0]


class Client:
    """As redis-py's; each GETRANGE raises or returns what comes next."""

    def __init__(self, *replies: object) -> None:
        self._replies = list(replies)
        self.connection_pool = self
        self.disconnected = 0

    def disconnect(self) -> None:
        self.disconnected += 1

    def getrange(self, name: str, start: int, end: int) -> object:
        reply = self._replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        return reply


def test_a_publication_in_many_slow_pieces_has_one_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=seconds.__next__, sleep=print)
    monkeypatch.setattr(replica, "time", clock)
    notes: list[str] = []
    client: Any = Client(*[bytes(2**20)] * 64)
    assert ParameterReplica(client, RUN, notes.append).read(P0, 64 * 2**20, DIGEST) is None
    assert "it sends too slowly" in notes[0]
    assert 16 <= next(seconds) <= 22


@each_case("error", [KeyboardInterrupt(), SystemExit(1), JobTimeoutException()])
def test_a_signal_to_end_passes_through_a_read(error: BaseException) -> None:
    client: Any = Client(error)
    with pytest.raises(type(error)):
        ParameterReplica(client, RUN, print).read(P0, 8, DIGEST)


def test_a_replica_that_lacks_three_publications_in_succession_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica, "LAG_SECONDS", 0.0)
    notes: list[str] = []
    client: Any = Client(b"", b"", DATA[:8], b"", b"", b"", AssertionError("asked in its pause"))
    reader, right = ParameterReplica(client, RUN, notes.append), bytes_digest(DATA[:8])
    found = [reader.read(P0, 8, right) for _ in range(8)]
    assert found == [None, None, DATA[:8], None, None, None, None, None]
    assert len(notes) == 1 and "it had none of the last 3 publications in time" in notes[0]


def test_damaged_parameters_are_reported_once_also_after_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica, "PAUSE_SECONDS", 0.0)
    notes: list[str] = []
    client: Any = Client(b"damaged!", b"damaged!", DATA[:8], b"damaged!")
    reader, right = ParameterReplica(client, RUN, notes.append), bytes_digest(DATA[:8])
    assert [reader.read(P0, 8, right) for _ in range(2)] == [None, None]
    assert len(notes) == 1 and "differ from those that were published" in notes[0]
    assert reader.read(P0, 8, right) == DATA[:8]
    assert reader.read(P0, 8, right) is None
    assert len(notes) == 2 and client.disconnected == 3


# --- the password


OWN = simple_password("own")
UNVERIFIED = "?ssl_cert_reqs=none"


@each_case(
    ("primary", "url", "password"),
    [
        ("redis", "redis://192.0.2.2", PASSWORD),
        ("rediss", "rediss://192.0.2.2", PASSWORD),
        ("rediss", "redis://127.0.0.1", PASSWORD),
        ("rediss", "unix:///replica", PASSWORD),
        ("rediss", f"redis://:{OWN}@192.0.2.2", OWN),
        ("rediss", "redis://192.0.2.2", None),
        ("rediss", f"rediss://192.0.2.2{UNVERIFIED}", None),
    ],
)
def test_redis_password_goes_only_to_a_replica_that_is_reached_as_safely(
    primary: str, url: str, password: str | None
) -> None:
    server: Any = client_from_url(f"{primary}://:{PASSWORD}@192.0.2.1")
    if password is None:
        with pytest.raises(RedisError, match="use rediss://") as refused:
            replica_client(url, server)
        assert PASSWORD not in str(refused.value)
    else:
        client = replica_client(url, server)
        assert client.connection_pool.connection_kwargs["password"] == password
