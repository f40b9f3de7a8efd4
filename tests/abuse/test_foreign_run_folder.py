"""A run folder from a stranger: what its private server would replay, and where its files lead."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from es_queue.errors import RedisError
from es_queue.util.file_lock import is_locked, read_pid
from master.services.append_only_file import unfit
from master.services.private_server import PrivateServer, server_binary
from master.services.seal import foreign, seal
from master.services.tcp_access import read_password
from master.storage.checkpoint import Checkpoints, decode, encode
from master.storage.replay_log import ReplayLog
from tests.abuse.servers import BOTH, SYSTEM
from tests.integration.household import wait_until
from tests.integration.processes import BIN, Processes, flags, quiet_digest, wait_for
from tests.parts import setup_of, trained

PIECE = "appendonly.aof.1.incr.aof"
MANIFEST = f"file {PIECE} seq 1 type i\n"
FORBIDDEN = {
    "CONFIG": ("CONFIG", "SET", "protected-mode", "no"),
    "ACL": ("ACL", "SETUSER", "stranger", "on", "nopass", "~*", "+@all"),
    "REPLICAOF": ("REPLICAOF", "127.0.0.1", "1"),
    "SLAVEOF": ("SLAVEOF", "127.0.0.1", "1"),
    "MODULE": ("MODULE", "LOAD", "/nowhere/module.so"),
    "DEBUG": ("DEBUG", "SLEEP", "0"),
    "EVAL": ("EVAL", "return redis.call('SET', 'x', '1')", "0"),
    "SCRIPT": ("SCRIPT", "LOAD", "return 1"),
    "FUNCTION": (
        "FUNCTION",
        "LOAD",
        "#!lua name=l\nredis.register_function('f', function() return 1 end)",
    ),
    "RESTORE": ("RESTORE", "x", "0", "junk"),
    "config": ("config", "set", "protected-mode", "no"),
}
SET = ("SET", "planted", "1")


def resp(*words: str) -> bytes:
    """One command as a server writes it."""
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words
    )


def plant(folder: Path, data: bytes, manifest: str = MANIFEST, name: str = PIECE) -> None:
    """A private server's folder that holds an append-only file, under this account's seal."""
    (folder / "appendonlydir").mkdir(parents=True)
    seal(folder)
    (folder / "appendonlydir" / name).write_bytes(data)
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text(manifest)


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


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_command_that_administers_the_server_is_replayed(
    server: PrivateServer, name: str
) -> None:
    plant(server.folder, resp("SELECT", "0") + resp(*SET) + resp(*FORBIDDEN[name]))
    server.start()
    with redis.Redis.from_url(server.url) as client:
        assert client.get("planted") is None
        assert client.config_get("protected-mode") == {"protected-mode": "yes"}
        assert client.acl_users() == ["default"]
        assert client.role()[0] == b"master"
        assert client.function_list() == []
    assert FORBIDDEN[name][0].upper() in server.refused
    assert "checkpoint" in server.refused
    kept = list(server.folder.glob("appendonlydir.refused-*"))
    assert len(kept) == 1 and (kept[0] / PIECE).exists()


def test_a_server_with_functions_in_its_base_file_does_not_load_them(
    server: PrivateServer, tmp_path: Path
) -> None:
    other = PrivateServer(tmp_path / "other", binary=server.binary)
    other.start()
    try:
        with redis.Redis.from_url(other.url) as client:
            client.config_set("aof-use-rdb-preamble", "yes")
            client.function_load(
                "#!lua name=l\nredis.register_function('f', function() return 1 end)"
            )
            client.bgrewriteaof()
            wait_until(
                lambda: (
                    list(other.folder.glob("appendonlydir/*.2.base.rdb"))
                    and not client.info("persistence")["aof_rewrite_in_progress"]
                )
            )
    finally:
        other.stop()
    shutil.copytree(other.folder / "appendonlydir", server.folder / "appendonlydir")
    seal(server.folder)
    server.start()
    with redis.Redis.from_url(server.url) as client:
        assert client.function_list() == []
    assert "snapshot" in server.refused


def test_own_data_comes_back_whole_after_a_rewrite_and_a_second_start(
    server: PrivateServer,
) -> None:
    server.start()
    with redis.Redis.from_url(server.url) as client:
        fill(client)
        before = dump(client)
        client.bgrewriteaof()
        wait_until(
            lambda: (
                not list(server.folder.glob("appendonlydir/*.1.base.*"))
                and not client.info("persistence")["aof_rewrite_in_progress"]
            )
        )
        client.set("later", "1")
    server.stop()
    server.start()
    assert server.refused == ""
    with redis.Redis.from_url(server.url) as client:
        assert client.getdel("later") == b"1"
        assert dump(client) == before


def fill(client: redis.Redis) -> None:
    """A key of each kind, with and without an end of life."""
    client.set("string", os.urandom(100))
    client.set("ends", "1", ex=1000)
    client.hset("hash", mapping={f"field {number}": number for number in range(200)})
    client.rpush("list", *range(300))
    client.sadd("set", *range(50), "word")
    client.zadd("sorted", {f"member {number}": number for number in range(200)})
    for _number in range(200):
        client.xadd("stream", {"result": os.urandom(50)}, maxlen=150, approximate=False)
    client.xadd("emptied", {"a": 1})
    client.xtrim("emptied", maxlen=0)


def dump(client: redis.Redis) -> dict[Any, object]:
    """What every key holds."""
    read: dict[Any, Callable[[Any], object]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": lambda key: (client.xrange(key), client.xinfo_stream(key)["last-generated-id"]),
    }
    return {key: read[client.type(key)](key) for key in client.scan_iter()}


def test_a_torn_end_is_loaded_up_to_the_last_whole_command(server: PrivateServer) -> None:
    plant(server.folder, resp("SELECT", "0") + resp(*SET) + resp("SET", "torn", "value")[:-7])
    server.start()
    with redis.Redis.from_url(server.url) as client:
        assert (client.get("planted"), client.get("torn")) == (b"1", None)
    assert server.refused == ""


@pytest.mark.parametrize("cut", range(len(resp(*SET))))
def test_a_file_cut_anywhere_is_fit(tmp_path: Path, cut: int) -> None:
    plant(tmp_path, resp("SELECT", "0") + resp(*SET)[:cut])
    assert unfit(tmp_path) == ""


@pytest.mark.parametrize(
    "data",
    [
        b"*3x\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\n1\r\n",
        b"*3\r\n$3\r\nSETxx$1\r\nx\r\n$1\r\n1\r\n",
        b"*1\n$4\nEXEC\n",
        b"#TS:1\r\n" + resp(*SET),
        b"\0" * 100,
        resp(*SET) + b"\0" * 50,
        b"*-1\r\n",
        b"*0\r\n",
        b"*1\r\n$-1\r\n",
        b"REDIS0011\xff",
        b"junk",
        b"*99999999999999\r\n",
        b"*1\r\n$99999999999\r\n",
    ],
)
def test_bytes_that_no_server_of_ours_writes_are_refused(tmp_path: Path, data: bytes) -> None:
    plant(tmp_path, data)
    assert unfit(tmp_path) != ""


@pytest.mark.parametrize(
    "manifest",
    [
        "file ../../elsewhere.aof seq 1 type i\n",
        "file /etc/hosts seq 1 type i\n",
        "junk\n",
        f"{MANIFEST}file other.aof seq 2 type i\n",
        "file appendonly.aof.7.incr.aof seq 7 type i\n",
        "#\n" * 100_000,
    ],
)
def test_a_manifest_that_names_other_files_is_refused(tmp_path: Path, manifest: str) -> None:
    plant(tmp_path, resp(*SET), manifest)
    assert unfit(tmp_path) != ""


def test_a_linked_file_or_folder_of_data_is_refused(tmp_path: Path) -> None:
    plant(tmp_path / "real", resp(*SET))
    (tmp_path / "file" / "appendonlydir").mkdir(parents=True)
    shutil.copy(
        tmp_path / "real/appendonlydir/appendonly.aof.manifest", tmp_path / "file/appendonlydir"
    )
    (tmp_path / "file" / "appendonlydir" / PIECE).symlink_to(
        tmp_path / "real" / "appendonlydir" / PIECE
    )
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "appendonlydir").symlink_to(tmp_path / "real" / "appendonlydir")
    assert unfit(tmp_path / "real") == ""
    assert "link" in unfit(tmp_path / "file")
    assert "link" in unfit(tmp_path / "folder")


def test_a_file_of_the_old_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "appendonly.aof").write_bytes(resp(*SET))
    assert "appendonly.aof" in unfit(tmp_path)


def test_a_folder_that_others_may_write_is_refused(server: PrivateServer) -> None:
    plant(server.folder, resp(*SET))
    server.folder.chmod(0o770)
    with pytest.raises(RedisError, match="chmod go-w"):
        server.start()


def test_a_folder_that_is_a_link_is_refused(server: PrivateServer, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    server.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RedisError, match="link"):
        server.start()


def test_a_link_in_the_folder_is_not_followed(server: PrivateServer, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    server.folder.mkdir(mode=0o700)
    (server.folder / "redis.log").symlink_to(victim)
    with pytest.raises(RedisError, match=r"redis\.log"):
        server.start()
    assert victim.read_text() == "mine\n"


def test_a_resumed_run_says_what_was_not_loaded_and_continues_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    def master(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "es-master"), *words, "--workers", "1"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    begun = master(
        "--env",
        "CartPole-v1",
        "--seed",
        "1",
        "--generations",
        "2",
        "--eval-every",
        "0",
        "--final-episodes",
        "1",
        "--run",
        "r",
    )
    assert begun.returncode == 0, begun.stderr
    data = tmp_path / "runs" / "r" / "redis" / "appendonlydir"
    piece = next(data.glob("*.incr.aof"))
    piece.write_bytes(piece.read_bytes() + resp(*FORBIDDEN["CONFIG"]))
    resumed = master("--resume", "r", "--generations", "3")
    assert resumed.returncode == 0, resumed.stderr
    said = resumed.stdout + resumed.stderr
    assert (
        "the private server's data was not loaded" in said
        and "CONFIG" in said
        and "generation 2" in said
    )
    assert list(data.parent.glob("appendonlydir.refused-*"))


def test_without_a_checkpoint_the_refused_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    plant(tmp_path / "runs" / "r" / "redis", resp(*FORBIDDEN["CONFIG"]))
    words = [str(BIN / "es-master"), "--resume", "r", "--workers", "0"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0 and "appendonlydir.refused-" in done.stderr, done.stderr


def test_a_run_does_not_continue_from_a_planted_archive(tmp_path: Path) -> None:
    def master(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(BIN / "es-master"), *words, "--workers", "1"]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    words = "--env CartPole-v1 --strategy map_elites --cells 3 --generations 2 --run r --seed 1"
    begun = master(*words.split(), "--population", "8", "--final-episodes", "1")
    assert begun.returncode == 0, begun.stderr
    shutil.rmtree(tmp_path / "runs/r/redis")
    file = max((tmp_path / "runs/r/checkpoints").glob("generation-*.npz"))
    with np.load(file) as saved:
        arrays = dict(saved)
    arrays["strategy.elite_cell"] = np.zeros_like(arrays["strategy.elite_cell"])
    np.savez(file, **arrays)
    resumed = master("--resume", "r", "--generations", "3")
    assert resumed.returncode == 6, resumed.stderr
    assert "cannot be resumed: its elites are not each in a cell" in resumed.stderr
    assert "Traceback" not in resumed.stderr


# --- whose folder it is


def test_plain_data_of_a_copied_folder_is_not_loaded(server: PrivateServer, tmp_path: Path) -> None:
    server.start()
    with redis.Redis.from_url(server.url) as client:
        client.set("own", "1")
    server.stop()
    shutil.copytree(server.folder, tmp_path / "copy")
    copy = PrivateServer(tmp_path / "copy", binary=server.binary)
    for one, value in ((copy, None), (PrivateServer(server.folder, server.binary), b"1")):
        one.start()
        try:
            with redis.Redis.from_url(one.url) as client:
                assert client.get("own") == value
        finally:
            one.stop()
        assert (str(tmp_path / "copy") in one.refused and "seal" in one.refused) == (one is copy)


def test_an_unpacked_folder_without_a_seal_is_not_loaded(server: PrivateServer) -> None:
    plant(server.folder, resp("SELECT", "0") + resp(*SET))
    (server.folder / "seal").unlink()
    server.start()
    with redis.Redis.from_url(server.url) as client:
        assert client.get("planted") is None
        client.set("own", "1")
    server.stop()
    again = PrivateServer(server.folder, server.binary)
    again.start()  # sealed now
    try:
        with redis.Redis.from_url(again.url) as client:
            assert client.get("own") == b"1"
    finally:
        again.stop()


def test_a_password_that_came_with_the_folder_opens_nothing(server: PrivateServer) -> None:
    password = "strangers-password-0123456789"
    plant(server.folder, resp("SELECT", "0") + resp(*SET))
    (server.folder / "seal").write_bytes(b"x" * 32)
    (server.folder / "password").write_text(password)
    server.start()
    assert password not in server.url and read_password(server.folder) is None


@pytest.mark.parametrize("what", ["missing", "other key", "long", "link", "pipe", "copied seal"])
def test_a_seal_that_does_not_fit_is_named(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    seal(folder)
    assert foreign(folder) == ""
    path = folder / "seal"
    if what == "other key":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    elif what == "long":
        path.write_bytes(path.read_bytes() + b"x")
    elif what == "copied seal":
        (tmp_path / "second").mkdir()
        shutil.copy(path, tmp_path / "second")
        folder = tmp_path / "second"
    else:
        path.rename(tmp_path / "kept")
        if what == "link":
            path.symlink_to(tmp_path / "kept")
        elif what == "pipe":
            os.mkfifo(path)
    assert str(folder) in foreign(folder) and "seal" in foreign(folder)


def test_without_a_place_for_a_key_the_server_starts_and_the_next_start_is_from_the_checkpoint(
    server: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("master.services.seal.host_private_directory", lambda: None)
    server.start()
    with redis.Redis.from_url(server.url) as client:
        client.set("own", "1")
    server.kill()
    wait_until(server.ensure)  # its own process starts it again with its data
    with redis.Redis.from_url(server.url) as client:
        assert client.get("own") == b"1" and server.refused == ""
    server.stop()
    again = PrivateServer(server.folder, server.binary)
    again.start()
    try:
        with redis.Redis.from_url(again.url) as client:
            assert client.get("own") is None
    finally:
        again.stop()
    assert "key" in again.refused and "checkpoint" in again.refused


def test_the_key_is_private_and_one_for_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folders = [tmp_path / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(len(folders)) as pool:
        list(pool.map(seal, folders))
    assert [foreign(folder) for folder in folders] == [""] * len(folders)
    (key,) = (tmp_path / "es-queue" / "keys").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    assert foreign(folders[0]) != ""


TINY: dict[str, Any] = {
    "env": "CartPole-v1",
    "seed": 5,
    "population": 8,
    "step_limit": 60,
    "eval_every": 0,
    "target_reward": "none",
    "final_episodes": 1,
    "generations": 150,
    "noise_size": 2**18,
}


def on_disk(folder: Path) -> int:
    """The generation of the newest checkpoint, -1 for none."""
    data = Checkpoints(folder).read_newest()
    return -1 if data is None else decode(data)[1].generation


@pytest.mark.parametrize("is_copy", [False, True], ids=["own", "copied"])
def test_a_resumed_run_adopts_what_its_own_server_kept_and_not_what_a_copy_holds(
    is_copy: bool, tmp_path: Path, processes: Processes
) -> None:
    folder = tmp_path / "runs" / "r"
    words = ("--workers", 1, "--json")
    master = processes.master("--run", "r", *flags(TINY), *words)
    wait_for(
        lambda: (
            master.events("generation")
            and master.events("generation")[-1]["generation"] > on_disk(folder) + 5
        ),
        "Redis is newer than the disk",
    )
    for number in (
        read_pid(folder / "guardian/guardian.lock"),
        read_pid(folder / "redis/server.lock"),
        master.process.pid,
    ):
        os.kill(number or 0, signal.SIGKILL)
    master.wait()
    wait_until(lambda: not is_locked(folder / "redis/server.lock"))
    kept = on_disk(folder)
    if is_copy:
        folder.rename(tmp_path / "original")
        shutil.copytree(
            tmp_path / "original", folder, ignore=shutil.ignore_patterns("*.sock"), symlinks=True
        )
    resumed = processes.master("--resume", "r", *words)
    assert resumed.wait() == 0, resumed.said()
    first = resumed.events("generation")[0]["generation"]
    assert (first > kept + 2) != is_copy, (first, kept, resumed.said())
    assert ("was not loaded, because the seal of" in resumed.said()) == is_copy
    assert resumed.events("summary")[-1]["digest"] == quiet_digest(TINY)


# --- what its settings name


#: Settings that name code: of the current folder, of a package, and of Python's own library.
NAMING: dict[str, dict[str, Any]] = {
    "loose file": {"env": "CartPole-v1", "strategy": "evil:Evil"},
    "environment": {"env": "subprocess:getoutput", "env_arg": {"cmd": "touch called"}},
    "objective": {"env": "", "objective": "subprocess:getoutput", "parameters": 4},
    "objective of a package": {"env": "", "objective": "numpy.testing:measure", "parameters": 4},
    "behaviour": {"env": "CartPole-v1", "strategy": "novelty", "behaviour": "os:system"},
    "policy": {"env": "CartPole-v1", "policy": "antigravity:Policy"},
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
