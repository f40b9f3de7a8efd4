"""The doctor's checks of Redis and of this host: pure functions of what was told."""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from es_queue import host
from es_queue.errors import RedisError, UsageError
from es_queue.noise import NoiseTable
from es_queue.protocol.connection import _reasons
from master.console import SafeStream
from master.doctor import examine as door
from master.doctor import host as doctor_host
from master.doctor import rights as doctor_rights
from master.doctor.environment import Tried, Wanted, try_out
from master.doctor.examine import doctor, exit_code
from master.doctor.finding import FAILED, OK, WARNING, Finding, failed, ok, warning
from master.doctor.look import refused_command
from master.doctor.server import ServerLook, check_server
from master.doctor.show import lines_of, plain_line

SOUND: dict[str, Any] = {
    "redis_version": "7.0.15", "maxmemory": 0, "maxmemory_policy": "noeviction", "aof_enabled": 1, "used_memory": 2 * 10**6,
    "total_system_memory": 10**10, "role": "master", "cluster_enabled": 0, "connected_clients": 5, "maxclients": 10_000,
}  # fmt: skip
MB = 2**20


def server(information: dict[str, Any] | None = None, **more: Any) -> dict[str, Finding]:
    given = {"ping": 0.001, "strangers": False, "ahead": 0.0, "encrypted": True, **more}
    found = check_server(ServerLook("redis://host", information={**SOUND, **(information or {})}, **given))
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


def test_a_sound_server_has_nothing_to_mend() -> None:
    found = server()
    assert {one.state for one in found.values()} == {OK} and not any(one.fix for one in found.values())
    assert "1.0 ms" in found["redis"].text and next(iter(found)) == "redis"


@pytest.mark.parametrize(
    ("told", "name", "state", "word"),
    [
        ({"redis_version": "6.0.9"}, "version", FAILED, "6.0.9"),
        ({"redis_version": "6.2.1"}, "version", OK, "need 7"),
        ({"redis_version": "\x1b[2Jx"}, "version", FAILED, "\\x1b"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "version", OK, "Valkey 9.1.2"),
        ({"maxmemory": 10**9, "maxmemory_policy": "allkeys-lru"}, "eviction", FAILED, "allkeys-lru"),
        ({"maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, "eviction", OK, "no memory limit"),
        ({"maxmemory": 10**9}, "eviction", OK, "1.0 GB"),
        ({"cluster_enabled": 1}, "role", FAILED, "cluster"),
        ({"role": "slave"}, "role", FAILED, "replica"),
        ({"role": "slave", "slave_read_only": 0}, "role", OK, "single server"),
        ({"aof_enabled": 0}, "persistence", WARNING, "goes on from its checkpoint"),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, "persistence", FAILED, "append-only"),
        ({"aof_enabled": 0, "rdb_last_bgsave_status": "err"}, "persistence", FAILED, "snapshot"),
        ({"loading": 1}, "persistence", WARNING, "loading"),
        ({"maxmemory": 1000 * MB, "used_memory": 930 * MB}, "memory", WARNING, "left of its limit"),
        ({"maxmemory": 100 * MB, "used_memory": 50 * MB}, "memory", WARNING, "52 MB left"),
        ({"maxmemory": 1000 * MB, "used_memory": 800 * MB, "mem_fragmentation_ratio": 1.44}, "memory", OK, "fragmentation 1.4"),
        ({"used_memory": 95 * 10**8}, "memory", WARNING, "the machine has 10.0 GB"),
        ({"connected_clients": 9_950}, "connections", WARNING, "about 8 more"),
    ],
)  # fmt: skip
def test_what_is_not_well_is_told_with_its_figures_and_a_fix(told: dict[str, Any], name: str, state: str, word: str) -> None:
    one = server(told)[name]
    assert (one.state, word in one.text) == (state, True), one
    assert bool(one.fix) == (state != OK)
    others = {other.name: other.state for other in server(told).values() if other.name not in (name, "eviction")}
    assert set(others.values()) == {OK}


@pytest.mark.parametrize(
    "told", [{"redis_version": "5.0.1"}, {"maxmemory": 5 * 10**9, "maxmemory_policy": "volatile-ttl"}, {"cluster_enabled": 1}, {"role": "slave"}]
)
def test_a_server_that_a_master_would_refuse_is_never_well(told: dict[str, Any]) -> None:
    assert _reasons({**SOUND, **told}) and any(one.state == FAILED for one in server(told).values())


@pytest.mark.parametrize("value", ["", "nan", "x" * 500, "\x1b[2J", None, [], -5])
def test_odd_figures_of_a_server_neither_crash_nor_reach_the_terminal(value: Any) -> None:
    found = server(dict.fromkeys([*SOUND, "valkey_version", "loading", "mem_fragmentation_ratio", "connected_slaves"], value))
    assert not any(re.search(r"[\x00-\x1f]", one.text) for one in found.values())


def test_a_user_without_info_is_told_so_in_one_line() -> None:
    found = server(denied={"info": "this user may not INFO"})
    assert found["server"].state == WARNING and "this user may not INFO" in found["server"].text and "+info" in found["server"].fix
    assert not {"version", "memory", "persistence"} & set(found)


@pytest.mark.parametrize(
    ("settings", "denied", "more", "state"),
    [
        ({"save": "3600 1"}, {}, {}, OK),
        ({"save": ""}, {}, {}, WARNING),
        ({}, {"config": "no"}, {"rdb_saves": 3}, OK),
        ({}, {"config": "no"}, {"rdb_saves": 0}, WARNING),
    ],
)  # fmt: skip
def test_snapshots_count_as_persistence_where_they_are_known_to_be_taken(settings: dict[str, str], denied: dict[str, str], more: Any, state: str) -> None:
    assert server({"aof_enabled": 0, **more}, settings=settings, denied=denied)["persistence"].state == state


@pytest.mark.parametrize(
    ("told", "name", "setting"),
    [({"aof_enabled": 0}, "persistence", "appendonly yes"), ({"maxmemory": 10**9, "maxmemory_policy": "allkeys-lru"}, "eviction", "maxmemory-policy noeviction")],
)
def test_a_setting_to_change_is_named_with_who_may_change_it(told: dict[str, Any], name: str, setting: str) -> None:
    words, command = server(told)[name].fix.split("\n")
    assert f"{setting} in redis.conf" in words and "administrator" in words and command == f"redis-cli CONFIG SET {setting}"


OPEN = {"protected-mode": "no", "bind": "* -::*"}
LISTENS = {"listener0": {"name": "tcp", "bind": "-::*", "port": 6379}}


@pytest.mark.parametrize(
    ("look", "state", "word"),
    [
        ({"on_socket": True, "strangers": True}, OK, "socket"),
        ({"strangers": False, "settings": OPEN}, OK, "refused"),
        ({"strangers": None, "settings": OPEN}, OK, "could not be told"),
        ({"strangers": True}, WARNING, "without it"),
        ({"strangers": True, "on_loopback": True}, OK, "not known"),
        ({"strangers": True, "on_loopback": True, "information": LISTENS}, WARNING, "is not known"),
        ({"strangers": True, "on_loopback": True, "settings": OPEN}, WARNING, "without it"),
        ({"strangers": True, "on_loopback": True, "settings": {**OPEN, "protected-mode": "yes"}}, OK, "this machine alone"),
        ({"strangers": True, "on_loopback": True, "settings": {**OPEN, "bind": "127.0.0.1 -::1"}}, OK, "this machine alone"),
        ({"strangers": True, "on_loopback": True, "settings": {**OPEN, "bind": ""}}, WARNING, "without it"),
    ],
)  # fmt: skip
def test_an_open_server_is_warned_of_only_where_that_is_sure(look: dict[str, Any], state: str, word: str) -> None:
    one = server(**look)["network"]
    assert one.state == state and (word if word != "without it" else "use it without a password") in one.text


@pytest.mark.parametrize(
    ("look", "state", "word"),
    [
        ({}, OK, "is verified"),
        ({"verified": False}, WARNING, "not verified"),
        ({"encrypted": False}, WARNING, "plain text"),
        ({"encrypted": False, "on_socket": True}, OK, "none is needed"),
        ({"encrypted": False, "on_loopback": True}, OK, "none is needed"),
    ],
)  # fmt: skip
def test_what_crosses_the_network_in_plain_text_is_warned_of(look: dict[str, Any], state: str, word: str) -> None:
    one = server(**look)["encryption"]
    assert one.state == state and word in one.text and bool(one.fix) == (state == WARNING)


@pytest.mark.parametrize(("ahead", "words"), [(0.01, "agrees"), (12.3, "12.3 s ahead"), (-7.0, "7.0 s behind")])
def test_another_clock_is_only_a_note(ahead: float, words: str) -> None:
    one = server(ahead=ahead)["clock"]
    assert one.state == OK and words in one.text


def test_a_refusal_of_the_server_becomes_a_few_words() -> None:
    assert refused_command("User viewer has no permissions to run the 'config|get' command") == "this user may not CONFIG GET"
    assert refused_command("this user has no permissions to run the 'info' command or its subcommand") == "this user may not INFO"
    assert refused_command("No permissions to access a key") == "this user may not read these keys"
    assert "\x1b" not in refused_command("\x1b[2J")


# --- rights

MASTER, WORKER = doctor_rights.master_commands("walker-1", "q"), doctor_rights.worker_commands("walker-1", "q")


@pytest.mark.parametrize(
    ("as_master", "as_worker", "state", "words"),
    [
        ([], [], OK, "all that master and workers do"),
        (MASTER, [], OK, "what a worker does"),
        ([], WORKER[:1], OK, "what a master does"),
        (MASTER, [("INCRBY", "es:walker-1:seatno", "1")], FAILED, "INCRBY es:walker-1:seatno"),
        (MASTER, WORKER, WARNING, "may look"),
        (None, None, WARNING, "may look"),
    ],
)  # fmt: skip
def test_a_users_rights_are_told_by_what_it_may_be(as_master: Any, as_worker: Any, state: str, words: str) -> None:
    one = doctor_rights.check_rights("ann", as_master, as_worker)
    assert one.state == state and words in one.text and bool(one.fix) == (state != OK)


def test_what_a_user_misses_is_granted_command_by_command_and_for_all_runs() -> None:
    missing = [
        ("EXPIRE", "es:walker-1:todo", "60"), ("EXPIRE", "es:walker-1:workers", "60"), ("HSET", "es:walker-1:worker:doctor-1-000000", "host", ""),
        ("SUBSCRIBE", "rq:pubsub:doctor"), ("SADD", "rq:queues", "rq:queue:q"), ("SCRIPT", "LOAD", "return 1"),
    ]  # fmt: skip
    line = doctor_rights.rights_fix("a b", "worker", missing).split("\n")[1]
    assert line == (
        "redis-cli ACL SETUSER 'a b' '(-@all +expire ~es:*:todo ~es:*:workers)' '(-@all +hset ~es:*:worker:*)' "
        "'(-@all +subscribe &rq:pubsub:*)' '(-@all +sadd ~rq:queue:* ~rq:queues)' '(-@all +script|load)'"
    )
    whole = doctor_rights.rights_fix("ann", "master", MASTER).split("\n")[1]
    assert whole.startswith("redis-cli ACL SETUSER ann '(&rq:pubsub:* ~es:* ~rq:* ") and "reset" not in whole and "+evalsha" in whole


# --- this host


def test_packages_that_others_shadow_are_named() -> None:
    here = doctor_host.folders()
    assert doctor_host.check_packages(here, here).state == OK
    for found, seen in (({**here, "workers": Path("/x/workers")}, here), (here, {**here, "workers": Path("/x/workers")})):
        one = doctor_host.check_packages(found, seen)
        assert one.state == FAILED and "/x/workers" in one.text and "'workers'" in one.text
    assert "nowhere" in doctor_host.check_packages({**here, "master": None}, here).text


def test_two_distributions_of_box2d_come_with_the_lines_that_mend_them() -> None:
    one = doctor_host.check_box2d("box2d 2.3.10 and box2d-py 2.3.5")
    assert one.state == WARNING and "\npip uninstall --yes box2d-py\npip install --force-reinstall --no-deps box2d" in one.fix
    assert doctor_host.check_box2d("box2d 2.3.10").state == OK
    missing = doctor_host.check_box2d("", "host-b")
    assert missing.state == WARNING and "host-b" in missing.text


def test_a_missing_package_fails_and_envpool_does_not() -> None:
    assert doctor_host.check_versions(host.versions()).state == OK
    one = doctor_host.check_versions("es-queue 0.1.0, python 3.11.7, numpy 2.4.6, redis 8.0, gymnasium 1.4, msgpack 1.1")
    assert one.state == FAILED and one.fix.endswith("pip install rq")
    assert doctor_host.check_envpool("").state == doctor_host.check_envpool("1.2.5").state == OK


def test_a_full_disk_is_named() -> None:
    one = doctor_host.check_disks({"run folder": 10**6, "noise tables": 10**12, "temporary files": None})
    assert one.state == WARNING and "run folder" in one.fix and "noise" not in one.fix
    assert doctor_host.check_disks({"run folder": 10**9}).state == OK


def test_noise_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    one = doctor_host.check_noise(doctor_host.look_at_noise(2**12, tmp_path), "a" * 32)
    assert one.state == OK and "not built yet" in one.text and not list(tmp_path.iterdir())


def test_noise_is_held_against_the_runs_and_against_its_own_digest(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    table = NoiseTable.open(2**12, tmp_path)
    look = doctor_host.look_at_noise(2**12, tmp_path)
    assert doctor_host.check_noise(look, table.digest).state == OK and doctor_host.check_noise(look, None).state == OK
    other = doctor_host.check_noise(look, "a" * 32)
    assert other.state == FAILED and table.digest in other.text and "a" * 32 in other.text
    assert table.path is not None
    data = bytearray(table.path.read_bytes())
    data[100] ^= 1
    table.path.chmod(0o600)
    table.path.write_bytes(data)
    damaged = doctor_host.check_noise(doctor_host.look_at_noise(2**12, tmp_path), table.digest)
    assert damaged.state == FAILED and "damaged" in damaged.text and str(table.path) in damaged.fix


def test_a_noise_folder_that_others_may_write_to_fails_in_a_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = NoiseTable.open(2**12, tmp_path).path
    assert path is not None
    path.chmod(0o666)
    assert doctor_host.check_noise(doctor_host.look_at_noise(2**12, tmp_path), None).state == FAILED


# --- environments

PLAGUES = '''
import os, signal, time
import gymnasium
from tests.tiny import Quad
class Crash(Quad):
    def reset(self, **_):
        os.kill(os.getpid(), signal.SIGSEGV)
class Leave(Quad):
    def reset(self, **_):
        os._exit(7)
class Hang(Quad):
    def reset(self, **_):
        time.sleep(1000)
class Loud(Quad):
    def reset(self, **rest):
        os.write(1, b"x" * 10**6); os.write(2, b"y" * 10**6)
        return super().reset(**rest)
for one in (Crash, Leave, Hang, Loud):
    gymnasium.register(one.__name__ + "-v0", one, max_episode_steps=5)
'''


@pytest.fixture
def plagues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plagues.py").write_text(PLAGUES)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("plagues")
def test_an_environment_that_crashes_or_hangs_does_not_take_the_doctor_with_it() -> None:
    began = time.monotonic()
    names = ("Crash", "Leave", "Loud", "Hang", "None")
    found = try_out([Wanted(f"plagues:{name}-v0") for name in names], seconds=8.0)
    by_name = dict(zip(names, found, strict=True))
    assert "SIGSEGV" in by_name["Crash"].error and "code 7" in by_name["Leave"].error and "hangs" in by_name["Hang"].error
    assert "there is no environment" in by_name["None"].error
    assert by_name["Loud"].error == "" and "3 observations" in by_name["Loud"].like
    assert time.monotonic() - began < 60


def test_a_module_that_is_not_there_is_told_with_where_it_is_looked_for() -> None:
    (tried,) = try_out([Wanted("no_such_module_here:X-v0")])
    one = doctor_host.check_environment(tried)
    assert one.state == FAILED and "no_such_module_here" in one.text and "PYTHONPATH" in one.fix


BROKEN = """
import argparse, io, sys
for name in ("numpy", "gymnasium", "rq"):
    sys.modules[name] = None
from master.console import SafeStream
from master.doctor.examine import doctor
out = io.StringIO()
code = doctor(argparse.Namespace(run=None, redis_url=None, run_dir=None), list, SafeStream(out), as_json=False)
print(code, out.getvalue())
"""


def test_packages_that_cannot_be_imported_do_not_take_the_doctor_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gymnasium.py").write_text("raise ImportError('it is broken')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).resolve().parents[2]}")
    done = subprocess.run([sys.executable, "-P", "-c", BROKEN], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("3 failed   redis"), done.stderr
    assert re.search(r"failed +environment +CartPole-v1: ImportError: it is broken", done.stdout)
    assert re.search(r"failed +noise .*numpy", done.stdout)


def test_what_an_environment_says_cannot_reach_the_terminal() -> None:
    one = doctor_host.check_environment(Tried("\x1b[2J", error="\x1b[31m\npip install \x1b x"))
    assert not re.search(r"[\x00-\x1f]", one.text + one.fix.replace("\n", "")) and one.fix.count("\n") == 1


# --- what is shown


def test_exit_codes_say_what_failed_first_of_all_redis() -> None:
    bad = {name: failed(name, "x", "y") for name in ("redis", "version", "environment", "packages", "listening")}
    assert exit_code([ok("redis", ""), warning("memory", "", "")]) == 0
    assert exit_code(list(bad.values())) == 3 and exit_code([bad["version"], bad["packages"]]) == 3
    assert exit_code([bad["packages"], bad["environment"]]) == 5
    assert exit_code([bad["packages"]]) == exit_code([bad["listening"]]) == 2


def test_a_line_in_a_pipe_is_one_line_and_has_no_sign() -> None:
    line = plain_line(failed("version", "too \x1b old", "get it by\npip install x"))
    assert line == "failed   version        too \\x1b old; fix: get it by pip install x"


def test_on_a_terminal_text_is_wrapped_and_commands_stand_whole() -> None:
    command = "rq worker --url redis://" + "h" * 80
    lines = lines_of(failed("listening", "word " * 40, f"start one {'soon ' * 20}by\n{command}"), 79)
    assert lines[-1] == f"    {command}" and all(len(line) <= 79 for line in lines[:-1])
    assert sum("fix:" in line for line in lines) == 1
    path = "/long" * 30
    assert any(path in line for line in lines_of(failed("packages", f"it is {path} there", ""), 79))


class Terminal(io.StringIO):
    encoding = "ascii"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_a_terminal_that_lacks_the_signs_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    from master.doctor.show import show_findings

    out = Terminal()
    show_findings([ok("redis", "it answers"), warning("memory", "little is left", "add some"), failed("rq", "suspended", "let it go on by\nrq resume")], SafeStream(out))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert plain.startswith("+ ok      redis          it answers\n! warning memory") and "x failed  rq" in plain and "\n    rq resume\n" in plain
    assert "\x1b[" in out.getvalue()


def given(run: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(run=run, redis_url=None, run_dir=None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(door, "try_out", lambda requests: [Tried(one.id, "well") for one in requests])
    monkeypatch.setenv("ES_QUEUE_NOISE_DIR", str(tmp_path / "noise"))
    monkeypatch.delenv("RQ_REDIS_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("trouble", [RedisError("no Redis is named"), UsageError("run-dir x is no folder"), None])
def test_without_a_server_that_is_one_failed_line_and_the_host_is_looked_at(trouble: Exception | None) -> None:
    def choose() -> list[Any]:
        if trouble is not None:
            raise trouble
        return []

    out = io.StringIO()
    assert doctor(given("walker-1"), choose, SafeStream(out), as_json=True) == 3
    told = json.loads(out.getvalue())
    states = {one["name"]: one["state"] for one in told["checks"]}
    assert states["redis"] == FAILED and {"packages", "versions", "box2d", "environment", "disk"} <= set(states)
    assert told["failed"] == 1 and told["warnings"] == sum(state == WARNING for state in states.values())
    assert (str(trouble) if trouble else "no Redis is named") in told["checks"][0]["text"]


@pytest.mark.usefixtures("quick")
def test_an_environment_that_failed_shows_in_the_exit_code_when_redis_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "try_out", lambda requests: [Tried(one.id, error="it crashes") for one in requests])
    found = [one for one in door.examine(given(), list) if one.name != "redis"]
    assert exit_code(found) == 5
