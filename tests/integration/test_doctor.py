"""The doctor against real servers, workers and runs: what it finds, as whom, and that it writes
nothing.
"""

from __future__ import annotations

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
from master.status import doctor
from master.status.command import main
from tests.integration.processes import CARTPOLE, Master, Processes, Seen

OWN = RunKeys("walker-1")
WORKER = "host-12-abcdef"
HOUSE = Path(__file__).resolve().parents[2]
Checks = Callable[..., tuple[int, dict[str, dict[str, str]]]]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, short_folder: Path, tmp_path: Path) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(short_folder / "noise"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def filled(redis_client: redis.Redis) -> Any:
    """A run with a living worker and an RQ worker, as they write them."""
    client: Any = redis_client
    client.zadd(RUNS, {"walker-1": time.time()})
    client.hset(OWN.progress, mapping={"state": "running", "env": "CartPole-v1", "queue": "es"})
    client.set(OWN.master, "holder", px=600_000)
    client.set(OWN.config, json.dumps({"env": "CartPole-v1"}))
    client.sadd(OWN.workers, WORKER)
    add_worker(client, WORKER)
    listen(client, "rq-1", "es")
    return client


def add_worker(client: Any, name: str, **fields: str) -> None:
    """A worker's heartbeat."""
    about = {"host": "host", "numerics": "1" * 32, "versions": "es-queue 9.9", **fields}
    client.sadd(OWN.workers, name)
    client.hset(OWN.worker(name), mapping=about)


@pytest.fixture
def checks(capsys: pytest.CaptureFixture[str]) -> Checks:
    """``es-status --doctor``: its exit code, and its findings by name."""

    def look(url: str, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
        capsys.readouterr()
        code = main(["--doctor", "--json", "--redis-url", url, *words])
        found = json.loads(capsys.readouterr().out)
        states = [one["state"] for one in found["checks"]]
        assert (found["failed"], found["warnings"]) == (
            states.count("failed"),
            states.count("warning"),
        )
        assert all(bool(one["fix"]) for one in found["checks"] if one["state"] == "warning")
        return code, {one["name"]: one for one in found["checks"]}

    return look


def listen(client: Any, name: str, queue: str) -> None:
    """An RQ worker's registration."""
    client.sadd(keys.RQ_WORKERS, keys.rq_worker(name))
    client.sadd(keys.rq_workers(queue), keys.rq_worker(name))
    client.hset(
        keys.rq_worker(name), mapping={"hostname": "host", "queues": queue, "state": "idle"}
    )


def states(found: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: one["state"] for name, one in found.items()}


def test_a_run_is_looked_at_with_its_workers_on_its_own_queue(
    filled: Any, valkey_url: str, checks: Checks
) -> None:
    code, found = checks(valkey_url, "walker-1")
    assert code == 0 and "failed" not in states(found).values()
    assert "1 RQ worker on queue es (host)" in found["listening"]["text"]
    assert "1 joined" in found["workers"]["text"] and found["run"]["state"] == "ok"
    assert "es-queue 9.9 (here" in found["fleet"]["text"]
    assert found["environment"]["text"].startswith("CartPole-v1: 4 observations")


def test_the_doctor_writes_nothing(filled: Any, valkey_url: str, checks: Checks) -> None:
    def stored() -> dict[bytes, Any]:
        return {key: (filled.type(key), filled.dump(key)) for key in filled.keys("*")}

    before, changes = stored(), filled.info("persistence")["rdb_changes_since_last_save"]
    checks(valkey_url, "walker-1")
    assert (
        stored() == before and filled.info("persistence")["rdb_changes_since_last_save"] == changes
    )


def test_a_suspended_rq_and_a_queue_without_workers_fail(
    filled: Any, valkey_url: str, checks: Checks
) -> None:
    filled.delete(keys.rq_worker("rq-1"))
    filled.delete(OWN.worker(WORKER))
    listen(filled, "rq-2", "other")
    code, found = checks(valkey_url, "walker-1")
    assert code == 2 and found["listening"]["state"] == "failed"
    assert "listen on other" in found["listening"]["text"]
    assert f"worker --url {valkey_url} es" in found["listening"]["fix"]
    assert "no worker serves walker-1" in found["workers"]["text"]
    filled.set(keys.RQ_SUSPENDED, 1)
    code, found = checks(valkey_url, "walker-1")
    assert code == 2 and "suspended" in found["listening"]["text"]
    assert f"resume --url {valkey_url}" in found["listening"]["fix"]


def test_a_worker_that_cannot_join_is_named_with_its_host_and_reason(
    filled: Any, valkey_url: str, checks: Checks
) -> None:
    add_worker(filled, "b-1-abcdef", host="b", refuses="Refusal: no Box2D")
    code, found = checks(valkey_url, "walker-1")
    assert code == 0 and states(found)["workers"] == "warning"
    assert "1 joined, 1 cannot (b: Refusal: no Box2D)" in found["workers"]["text"]
    filled.delete(OWN.worker(WORKER))
    code, found = checks(valkey_url, "walker-1")
    assert code == 2 and states(found)["workers"] == "failed"


def test_workers_that_compute_other_bits_are_a_mixed_fleet(
    filled: Any, valkey_url: str, checks: Checks
) -> None:
    add_worker(filled, "b-1-abcdef", host="b", numerics="2" * 32)
    code, found = checks(valkey_url, "walker-1")
    fleet = found["fleet"]["text"]
    assert code == 0 and states(found)["fleet"] == "warning"
    assert "mixed fleet" in fleet and "11111111… on host" in fleet and "22222222… on b" in fleet


def test_a_run_without_a_master_fails_with_the_command_that_continues_it(
    filled: Any, valkey_url: str, checks: Checks
) -> None:
    filled.delete(OWN.master)
    code, found = checks(valkey_url, "walker-1")
    assert code == 2 and "walker-1 has no master" in found["run"]["text"]
    assert f"--resume walker-1 --redis-url {valkey_url}" in found["run"]["fix"]
    filled.hset(OWN.progress, mapping={"state": "failed", "why": "it broke"})
    code, found = checks(valkey_url, "walker-1")
    assert code == 0 and "walker-1 failed: it broke" in found["run"]["text"]


@pytest.mark.parametrize(
    ("setting", "value", "usual", "name", "code", "words"),
    [
        ("maxmemory-policy", "allkeys-lru", "noeviction", "server", 3, "drop parameters"),
        ("maxmemory", 10 * 2**20, 0, "memory", 0, "left of its limit"),
        ("maxclients", 40, 10_000, "connections", 0, "more workers"),
    ],
)
def test_settings_of_the_server_that_spoil_a_run_are_named(
    filled: Any,
    valkey_url: str,
    checks: Checks,
    setting: str,
    value: object,
    usual: object,
    name: str,
    code: int,
    words: str,
) -> None:
    filled.config_set("maxmemory", 200 * 2**20)
    filled.config_set(setting, value)
    try:
        ended, found = checks(valkey_url)
    finally:
        filled.config_set(setting, usual)
        filled.config_set("maxmemory", 0)
    assert ended == code and words in found[name]["text"], found[name]
    assert found[name]["state"] == ("failed" if code else "warning")


# --- environments

PLAGUES = """
import os, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
import gymnasium
from tests.tiny import Quad
POOL = ThreadPoolExecutor(2)
class Crash(Quad):
    def reset(self, **_):
        os.kill(os.getpid(), signal.SIGSEGV)
class Leave(Quad):
    def reset(self, **_):
        os._exit(7)
class Exit(Quad):
    def reset(self, **_):
        sys.exit()
class Hang(Quad):
    def reset(self, **_):
        if not os.fork():
            time.sleep(1000)
        with open("hangs.new", "w") as file:
            file.write(str(os.getsid(0)))
        os.rename("hangs.new", "hangs")
        time.sleep(1000)
class Loud(Quad):
    def reset(self, **rest):
        os.write(1, b"x" * 10**6); os.write(2, b"y" * 10**6)
        return super().reset(**rest)
class Pool(Quad):
    def reset(self, **rest):
        POOL.submit(time.sleep, 1000)
        return POOL.submit(super().reset, **rest).result()
for one in (Crash, Leave, Exit, Hang, Loud, Pool):
    gymnasium.register(one.__name__ + "-v0", one, max_episode_steps=5)
"""


@pytest.fixture
def plagues(filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the run's environment one that spoils its process."""
    (tmp_path / "plagues.py").write_text(PLAGUES)
    monkeypatch.setenv("ES_QUEUE_ALLOW", "plagues")
    monkeypatch.setenv("PYTHONPATH", str(HOUSE))
    return lambda name: filled.set(OWN.config, json.dumps({"env": f"plagues:{name}-v0"}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Crash", "its process was ended by SIGSEGV"),
        ("None", "has no environment 'None-v0'"),
        ("Loud", ""),
        ("Pool", ""),
    ],
)
def test_an_environment_that_ends_its_process_does_not_end_the_doctor(
    plagues: Callable[..., None], valkey_url: str, checks: Checks, name: str, words: str
) -> None:
    plagues(name)
    code, found = checks(valkey_url, "walker-1")
    assert (words or "3 observations") in found["environment"]["text"], found["environment"]
    assert (code, found["environment"]["state"]) == ((5, "failed") if words else (0, "ok"))


def test_a_module_that_is_not_allowed_here_is_not_imported(
    plagues: Callable[..., None],
    valkey_url: str,
    checks: Checks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ES_QUEUE_ALLOW")
    plagues("Crash")
    code, found = checks(valkey_url, "walker-1")
    assert code == 5 and "plagues is not allowed here" in found["environment"]["text"]


def test_an_environment_that_hangs_ends_at_the_deadline_with_its_children(
    plagues: Callable[..., None],
    valkey_url: str,
    checks: Checks,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(doctor, "ENVIRONMENT_SECONDS", 6.0)
    plagues("Hang")
    code, found = checks(valkey_url, "walker-1")
    assert code == 5 and "it hangs" in found["environment"]["text"]
    assert not living_members(int((tmp_path / "hangs").read_text()))


def living_members(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state != "Z" and int(its) == session:
            found.append(int(path.parent.name))
    return found


# --- other users


# --- a real run


def test_a_real_run_with_real_workers_is_well_and_a_worker_with_another_numpy_is_named(
    start_master: Callable[..., Master],
    processes: Processes,
    redis_client: redis.Redis,
    valkey_url: str,
    checks: Checks,
    tmp_path: Path,
) -> None:
    about = tmp_path / "older" / "gymnasium-0.0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gymnasium\nVersion: 0.0.1\n")
    start_master("doc-1", {**CARTPOLE, "generations": 10_000})
    run = Seen(redis_client, "doc-1")
    run.joined(processes.worker(valkey_url))
    code, found = checks(valkey_url, "doc-1")
    assert code == 0, found
    assert "all workers compute the same bits" in found["fleet"]["text"]
    run.joined(processes.worker(valkey_url, PYTHONPATH=str(about.parent)))
    code, found = checks(valkey_url, "doc-1")
    assert code == 0 and "gymnasium 0.0.1 (here" in found["fleet"]["text"]
