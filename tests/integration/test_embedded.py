"""The embedded server: real processes, real signals, real sockets."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from es_queue.errors import RedisError
from es_queue.private_files import try_lock
from master.services.private_server import PrivateServer
from tests.integration.household import linux_only, pid_of, running

MASTER = """
import pathlib, sys, threading, time
from master.services.private_server import PrivateServer
server = PrivateServer(pathlib.Path(sys.argv[1]))
t = threading.Thread(target=server.start); t.start(); t.join()
print("ready", flush=True)
time.sleep(600)
"""


def is_free(lock: Path) -> bool:
    """Whether nobody leads the server of this lock's folder."""
    file = try_lock(lock)
    if file is not None:
        os.close(file)
    return file is not None


def test_only_its_user_can_reach_the_server(server: PrivateServer, client: redis.Redis) -> None:
    assert server.folder.stat().st_mode & 0o777 == 0o700
    assert (server.folder / "redis.sock").stat().st_mode & 0o777 == 0o700
    assert client.config_get("port") == {"port": "0"}


def test_the_server_writes_no_data_to_disk_and_evicts_nothing(
    client: redis.Redis,
) -> None:
    wanted = {
        "appendonly": "no",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    assert client.config_get(*wanted) == wanted


@pytest.mark.redis_server
@pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on the PATH")
def test_the_operating_systems_server_serves_too(tmp_path: Path) -> None:
    server = PrivateServer(tmp_path, binary=shutil.which("redis-server"))
    server.start()
    try:
        assert server.is_alive()
    finally:
        server.stop()


def test_neither_data_nor_the_socket_outlives_a_stop(
    server: PrivateServer, client: redis.Redis
) -> None:
    client.set("key", "value")
    server.stop()
    assert not server.is_alive()
    assert not (server.folder / "redis.sock").exists()
    server.start()
    assert client.get("key") is None


def test_a_path_too_long_for_a_socket_gets_a_short_private_one(tmp_path: Path) -> None:
    server = PrivateServer(tmp_path / ("deep" * 30))
    server.start()
    try:
        socket = Path((server.folder / "redis.sock.path").read_text())
        assert server.is_alive()
        assert server.url == f"unix://{socket}"
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        server.stop()
        assert not socket.parent.exists()
        server.start()
        assert server.url == f"unix://{socket}"  # a client of the first finds the second
    finally:
        server.stop()
    assert not socket.parent.exists()


def test_a_second_owner_uses_the_first_ones_server_and_leaves_it_running(
    server: PrivateServer, client: redis.Redis
) -> None:
    guest = PrivateServer(server.folder)
    guest.start()
    assert pid_of(guest) == pid_of(server)
    guest.stop()
    assert server.is_alive()


@linux_only
def test_a_killed_masters_server_ends_before_a_second_one_starts_and_leaves_no_data(
    tmp_path: Path, start_other: Callable[..., subprocess.Popen[str]]
) -> None:
    master = start_other(MASTER, tmp_path)
    server = PrivateServer(tmp_path)
    pid = pid_of(server)
    with redis.Redis.from_url(server.url) as client:
        client.set("made by", "the first master")
        master.kill()
        master.wait()
        server.start()
        try:
            assert not running(pid)
            assert not is_free(server.folder / "owner.lock")
            assert client.get("made by") is None
        finally:
            server.stop()


def test_a_guest_starts_a_server_of_its_own_when_the_other_master_is_gone(
    server: PrivateServer, client: redis.Redis
) -> None:
    guest = PrivateServer(server.folder)
    guest.start()
    assert guest.watch() == []
    server.stop()
    try:
        assert guest.watch() == [
            "the private server of another es-master ended, and another one was started"
        ]
        assert client.ping()
    finally:
        guest.stop()


def test_a_server_that_cannot_start_is_explained_by_the_end_of_its_log(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no memory\nexit 1\n")
    program.chmod(0o700)
    server = PrivateServer(tmp_path / "redis", binary=str(program))
    with pytest.raises(
        RedisError, match=r"ended with code 1 .*in a row; .*redis\.log ends: no memory"
    ):
        server.start()
    assert is_free(server.folder / "owner.lock")
