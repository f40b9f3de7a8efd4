"""A run folder from a stranger: what its private server would load, and where its files lead."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.errors import RedisError
from master.loop.checkpoint import Checkpoints, encode
from master.services.private_server import PrivateServer, server_binary
from master.services.tcp_access import read_password
from master.storage.replay import ReplayLog
from tests.abuse.servers import BOTH, SYSTEM
from tests.integration.processes import BIN, Processes
from tests.parts import setup_of, trained


def program(kind: str) -> str:
    return str(shutil.which("redis-server")) if kind == SYSTEM else server_binary()


@pytest.fixture(params=BOTH)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateServer]:
    """A private server that is not started."""
    server = PrivateServer(tmp_path / "redis", binary=program(request.param))
    try:
        yield server
    finally:
        server.stop()


def test_a_snapshot_in_the_folder_is_not_loaded(server: PrivateServer) -> None:
    server.start()
    with redis.Redis.from_url(server.url) as client:
        client.set("planted", "1")
        client.save()
    server.stop()
    (saved,) = server.folder.glob("*.rdb")
    shutil.copy(saved, server.folder / "dump.rdb")
    again = PrivateServer(server.folder, server.binary)
    again.start()
    try:
        with redis.Redis.from_url(again.url) as client:
            assert client.dbsize() == 0
    finally:
        again.stop()


def test_an_append_only_file_in_the_folder_is_not_replayed(server: PrivateServer) -> None:
    data = server.folder / "appendonlydir"
    data.mkdir(parents=True)
    server.folder.chmod(0o700)
    (data / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    (data / "appendonly.aof.1.incr.aof").write_bytes(
        b"*3\r\n$3\r\nSET\r\n$7\r\nplanted\r\n$1\r\n1\r\n"
    )
    server.start()
    with redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 0


def test_a_folder_that_others_may_write_is_refused(server: PrivateServer) -> None:
    server.folder.mkdir()
    server.folder.chmod(0o770)
    with pytest.raises(RedisError, match="chmod go-w"):
        server.start()


def test_a_link_in_the_folder_is_not_followed(server: PrivateServer, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    server.folder.mkdir(mode=0o700)
    (server.folder / "redis.log").symlink_to(victim)
    with pytest.raises(RedisError, match=r"redis\.log"):
        server.start()
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize(
    "command", ["es-status", "es-master --stop r", "es-master --purge r --yes"]
)
def test_a_strangers_server_in_the_folder_is_not_asked(command: str, tmp_path: Path) -> None:
    """Its answer could have any length."""
    folder = tmp_path / "r/redis"
    folder.mkdir(parents=True)
    (folder.parent / "config.json").write_text('{"env": "CartPole-v1"}')
    folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(folder / "redis.sock"))
        stranger.listen()
        stranger.settimeout(0)
        done = subprocess.run(
            [str(BIN / command.split()[0]), *command.split()[1:], "--runs-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        with pytest.raises(BlockingIOError):
            stranger.accept()
    assert done.returncode == (0 if command == "es-status" else 3), done.stderr
    assert "Traceback" not in done.stderr


def test_purge_does_not_follow_a_link_in_the_place_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "precious/kept").mkdir(parents=True)
    (tmp_path / "r").mkdir()
    (tmp_path / "r/redis").symlink_to(tmp_path / "precious")
    done = subprocess.run(
        [BIN / "es-master", "--purge", "r", "--yes", "--runs-dir", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 6 and done.stderr.count("\n") == 1 and "is a link" in done.stderr
    assert (tmp_path / "precious/kept").is_dir()


def test_a_password_that_came_with_the_folder_opens_nothing(server: PrivateServer) -> None:
    password = "strangers-password-0123456789"
    server.folder.mkdir(mode=0o700)
    (server.folder / "password").write_text(password)
    server.start()
    assert password not in server.url and read_password(server.folder) is None


# --- what its settings name


#: Settings that name code: of the current folder, of a package, and of Python's own library.
NAMING: dict[str, dict[str, Any]] = {
    "loose file": {"env": "CartPole-v1", "strategy": "evil:Evil"},
    "environment": {"env": "subprocess:getoutput", "env_arg": {"cmd": "touch called"}},
    "behaviour": {"env": "CartPole-v1", "strategy": "novelty", "behaviour": "os:system"},
}


@pytest.mark.parametrize("named", NAMING)
@pytest.mark.parametrize("word", ["--resume", "--replay", "--config"])
def test_a_folder_or_settings_file_brings_no_code_to_run_without_trust(
    word: str, named: str, processes: Processes
) -> None:
    settings = {"backend": "stock", **NAMING[named]}
    mark = processes.folder / "called"
    (processes.folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    setup = setup_of("pgpe")
    state = trained(setup)
    centre = setup.strategy.centre(setup.strategy.published(state.strategy))
    config = replace(setup.config, **settings)
    data = encode(config, setup.spec, "gift", state, centre)
    folder = processes.folder / "gift"
    folder.mkdir(mode=0o700)
    Checkpoints(folder).save(state.generation, data)
    log = ReplayLog(folder)
    log.lead_to(0, data)
    log.close()
    file = processes.folder / "settings.toml"
    arguments = "".join(f'[env_arg]\n{k} = "{v}"\n' for k, v in settings.pop("env_arg", {}).items())
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items() if value]
    file.write_text("".join(lines) + arguments)
    target = file if word == "--config" else folder
    words = () if word == "--replay" else ("--workers", 1)
    done = processes.master(word, target, *words)
    assert done.wait() in (2, 6) and "use --trust" in done.said(), done.said()
    assert not mark.exists()
    if named == "loose file" and word != "--replay":
        done = processes.master(word, target, "--trust", *words)
        assert done.wait() != 0 and mark.exists(), done.said()
