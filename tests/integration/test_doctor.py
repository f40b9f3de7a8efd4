"""The doctor against real servers, workers and runs: what it finds, as whom, and that it writes
nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.numerics.noise_table import FOLDER_VARIABLE
from es_queue.protocol import keys
from es_queue.protocol.keys import RUNS, RunKeys
from master.display.log_view import SafeStream
from master.doctor import examine as door
from master.doctor import rights as doctor_rights
from master.doctor.host import ProbeResult
from master.doctor.look import ReadOnlyClient
from master.status.command import main
from master.status.redis_reader import make_named_reader
from tests.integration.processes import CARTPOLE, Master, Processes, Seen, wait_for

OWN = RunKeys("walker-1")
WORKER = "host-12-abcdef"
#: Commands of connections and of RQ's upkeep that only read or that RQ does without.
UNCHECKED = {
    "client",
    "hello",
    "auth",
    "info",
    "ping",
    "select",
    "acl",
    "multi",
    "exec",
    "discard",
    "watch",
    "unwatch",
    "unsubscribe",
    "command",
    "config",
    "evalsha",
    "eval",
    "script",
    "flushall",
    "dbsize",
    "time",
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(short_folder / "noise"))
    for name in ("RQ_REDIS_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        door,
        "probe_environments",
        lambda configs: [ProbeResult(one.task, "not tried") for one in configs],
    )


@pytest.fixture
def filled(redis_client: redis.Redis) -> Any:
    """A run with a living worker and an RQ worker, as they write them."""
    client: Any = redis_client
    client.zadd(RUNS, {"walker-1": time.time()})
    client.hset(OWN.progress, mapping={"state": "running", "env": "CartPole-v1", "queue": "es"})
    client.set(OWN.master, "holder", px=600_000)
    client.set(OWN.config, json.dumps({"env": "CartPole-v1"}))
    client.sadd(OWN.workers, WORKER)
    client.hset(
        OWN.worker(WORKER),
        mapping={"host": "host", "numerics": "1" * 32, "versions": "es-queue 9.9"},
    )
    listen(client, "rq-1", "es")
    return client


def listen(client: Any, name: str, queue: str) -> None:
    """An RQ worker's registration."""
    client.sadd(keys.RQ_WORKERS, keys.rq_worker(name))
    client.sadd(keys.rq_workers(queue), keys.rq_worker(name))
    client.hset(
        keys.rq_worker(name), mapping={"hostname": "host", "queues": queue, "state": "idle"}
    )


def checks(url: str, *argv: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code and findings by name."""
    out = io.StringIO()
    run = argv[0] if argv else None
    given = argparse.Namespace(run=run, redis_url=url, run_dir=None, runs_dir=None, run_folder=None)
    code = door.run_doctor(
        given, lambda: [make_named_reader(url, given_by_flag=True)], SafeStream(out), as_json=True
    )
    return code, {one["name"]: one for one in json.loads(out.getvalue())["checks"]}


def states(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: one["state"] for name, one in found.items()}


def as_user(client: Any, url: str, name: str, *rights: str) -> str:
    client.execute_command("ACL", "SETUSER", name, "reset", "on", ">word", *rights)
    return url.replace("unix://", f"unix://{name}:word@")


def test_a_run_is_looked_at_with_its_workers_on_its_own_queue(filled: Any, valkey_url: str) -> None:
    code, found = checks(valkey_url, "walker-1")
    assert code == 0 and "failed" not in states(found).values()
    assert (
        "1 RQ worker on queue es (host)" in found["listening"]["text"]
        and "1 joined" in found["workers"]["text"]
    )
    assert "es-queue 9.9" in found["fleet versions"]["text"] and found["run"]["state"] == "ok"
    assert (
        found["environment"]["text"].startswith("CartPole-v1")
        and "can do everything" in found["rights"]["text"]
    )


def test_the_doctor_writes_nothing(filled: Any, valkey_url: str) -> None:
    def stored() -> dict[bytes, Any]:
        return {key: (filled.type(key), filled.dump(key)) for key in filled.keys("*")}

    before, changes = stored(), filled.info("persistence")["rdb_changes_since_last_save"]
    checks(valkey_url, "walker-1")
    assert (
        stored() == before and filled.info("persistence")["rdb_changes_since_last_save"] == changes
    )


def test_the_command_line_reaches_it(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--doctor", "--redis-url", valkey_url]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("ok       redis") and told[-1].endswith(" 0 failed")


def test_a_suspended_rq_and_a_queue_without_workers_fail(filled: Any, valkey_url: str) -> None:
    filled.set(keys.RQ_SUSPENDED, 1)
    filled.delete(keys.rq_worker("rq-1"))
    listen(filled, "rq-2", "other")
    code, found = checks(valkey_url, "walker-1")
    assert code == 2 and states(found)["rq"] == states(found)["listening"] == "failed"
    assert (
        "listen on other" in found["listening"]["text"]
        and f"worker --url {valkey_url} es" in found["listening"]["fix"]
    )


def test_eviction_fails_with_the_exit_code_of_redis(filled: Any, valkey_url: str) -> None:
    filled.config_set("maxmemory", 200 * 2**20)
    filled.config_set("maxmemory-policy", "allkeys-lru")
    try:
        code, found = checks(valkey_url)
    finally:
        filled.config_set("maxmemory-policy", "noeviction")
    assert code == 3 and found["eviction"]["state"] == "failed"


def test_hostile_keys_are_no_crash(filled: Any, valkey_url: str) -> None:
    filled.hset(OWN.worker(WORKER), "refuses", "x" * 5_000_000)
    filled.hset(keys.rq_worker("rq-1"), "hostname", "\x1b[2J")
    filled.hset(keys.rq_worker("rq-1"), "queues", "x" * 5_000_000)
    filled.set(OWN.config, b"\xff" * 3_000_000)
    filled.set(OWN.task, b"\xc1" * 5_000_000)
    code, found = checks(valkey_url, "walker-1")
    assert (
        code == 2 and found["config"]["state"] == "failed" and "\\x1b" in found["listening"]["text"]
    )
    for key in (
        OWN.workers,
        OWN.progress,
        keys.RQ_WORKERS,
        keys.rq_workers("default"),
        keys.rq_queue("default"),
    ):
        filled.delete(key)
        filled.set(key, "text")
    assert checks(valkey_url, "walker-1")[0] == 2


# --- other users


@pytest.mark.parametrize(
    "rights",
    [
        ("%R~es:*", "+@read", "+@connection"),
        ("%R~es:*", "+@read", "+@connection", "+info", "+multi", "+discard"),
    ],
)
def test_a_user_who_may_only_look_is_told_what_is_not_known(
    filled: Any, valkey_url: str, rights: tuple[str, ...]
) -> None:
    code, found = checks(as_user(filled, valkey_url, "viewer", *rights), "walker-1")
    assert code == 0 and states(found)["rights"] == states(found)["listening"] == "warning"
    assert "viewer can read" in found["rights"]["text"] and "rq:*" in found["listening"]["text"]
    assert ("server" in found) == ("+info" not in rights) and "word" not in json.dumps(found)


@pytest.mark.parametrize("rights", [("-@all", "+@connection"), ("~other:*", "+@all")])
def test_a_user_who_may_read_nothing_is_no_crash(
    filled: Any, valkey_url: str, rights: tuple[str, ...]
) -> None:
    code, found = checks(as_user(filled, valkey_url, "blind", *rights), "walker-1")
    assert code == 6 and "redis" in found and found["rights"]["state"] == "warning"


def test_rights_are_tried_command_by_command_without_sending_one(
    filled: Any, valkey_url: str
) -> None:
    denied = ("-script", "-xrevrange", "-incrby", "-blmove", "-zadd")
    url = as_user(filled, valkey_url, "worker", "~*", "&*", "+@all", *denied)
    look = ReadOnlyClient(make_named_reader(url, given_by_flag=True))
    size = filled.dbsize()
    refused = look.denied_commands(doctor_rights.worker_commands("walker-1", "es"))
    assert (
        refused is not None
        and {command[0] for command in refused} == {"INCRBY", "BLMOVE", "ZADD"}
        and filled.dbsize() == size
    )
    assert {
        command[0]
        for command in look.denied_commands(doctor_rights.master_commands("walker-1", "es")) or ()
    } == {"SCRIPT", "XREVRANGE", "INCRBY", "ZADD"}
    code, found = checks(url, "walker-1")
    assert (
        code == 3
        and "INCRBY es:walker-1:seatno" in found["rights"]["text"]
        and "(-@all +incr +incrby ~es:*:seatno)" in found["rights"]["fix"]
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [("redis://127.0.0.1:1", "cannot be read"), ("unix://nobody:word@", "password")],
)
def test_a_server_that_does_not_let_us_in_is_one_failed_line(
    valkey_url: str, url: str, words: str
) -> None:
    code, found = checks(url if url.startswith("redis") else valkey_url.replace("unix://", url))
    assert (
        code == 3
        and words in found["redis"]["text"]
        and "word@" not in json.dumps(found)
        and "packages" in found
    )


# --- a real run


def test_a_real_run_with_real_workers_is_well_and_a_worker_with_another_numpy_is_named(
    start_master: Callable[..., Master],
    processes: Processes,
    redis_client: redis.Redis,
    valkey_url: str,
    tmp_path: Path,
) -> None:
    about = tmp_path / "older" / "gymnasium-0.0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gymnasium\nVersion: 0.0.1\n")
    cast: Any = redis_client
    cast.config_resetstat()
    start_master("doc-1", {**CARTPOLE, "generations": 10_000})
    run = Seen(redis_client, "doc-1")
    run.joined(processes.worker(valkey_url))
    code, found = checks(valkey_url, "doc-1")
    assert code == 0, found
    assert (
        "as the run's" in found["noise"]["text"]
        and found["fingerprint"]["state"] == found["fleet noise"]["state"] == "ok"
    )
    assert (
        states(found)["fleet versions"]
        == states(found)["fleet folders"]
        == states(found)["threads"]
        == "ok"
    )
    run.joined(processes.worker(valkey_url, PYTHONPATH=str(about.parent)))
    code, found = checks(valkey_url, "doc-1")
    assert code == 0 and "gymnasium 0.0.1 (here" in found["fleet versions"]["text"]
    # Whatever a master and a worker send is among what the doctor tries as a user's rights.
    wait_for(run.has_reached(3), "generations pass")
    sent = {name.partition("_")[2].partition("|")[0] for name in cast.info("commandstats")}
    tried = {
        command[0].lower()
        for command in (
            *doctor_rights.master_commands("r", "q"),
            *doctor_rights.worker_commands("r", "q"),
        )
    }
    reads = {name.decode().partition("|")[0] for name in cast.execute_command("ACL", "CAT", "read")}
    assert sent - tried - UNCHECKED - reads <= {
        "hincrby",
        "hincrbyfloat",
        "hdel",
        "zrem",
        "persist",
        "zremrangebyscore",
        "srem",
    }
