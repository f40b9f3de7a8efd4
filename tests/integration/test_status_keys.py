"""es-status --keys and --errors against a server: every kind of value, hostile ones, and a user who
may only read.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import redis

from es_queue.config.run_config import RunConfig
from es_queue.files import npz_bytes
from es_queue.protocol.keys import RUNS, RunKeys
from es_queue.protocol.messages import Task
from es_queue.slots import Shape
from master.status.command import main
from master.status.keyspace import MOST_BYTES
from master.status.snapshot import LONGEST_REPORT, MOST_REPORTS

OWN = RunKeys("walker-1")
PUBLICATION = "12.3-0000000a"
TASK = Task(
    PUBLICATION,
    0.25,
    500,
    3,
    "0" * 32,
    np.zeros(2, "<f4").tobytes(),
    np.ones(2, "<f4").tobytes(),
    "f" * 32,
    0.2,
)
WORKER = "host-12-abcdef"
RESULTS = np.zeros(2, Shape(2, 3, 0).result)
RESULTS["row"], RESULTS["fitness"] = [0, 3], [[1.0, 2.0], [1.5, 2.5]]
META = {"format": 1, "run": "walker-1", "generation": 12}
REPORT = {
    "time": 1000.0,
    "worker": WORKER,
    "environment": "Walker",
    "seed": 7,
    "slot": 3,
    "generation": 1,
    "reason": "ValueError: no",
    "trace": "a\nb",
}


@pytest.fixture
def filled(redis_client: redis.Redis) -> Any:
    """A run with a value under each of its keys, as masters and workers write them."""
    client: Any = redis_client
    client.zadd(RUNS, {"walker-1": 100.0})
    client.set(OWN.config, RunConfig(env="CartPole-v1").to_json())
    client.set(OWN.iteration, 12)
    client.hset(OWN.progress, mapping={"state": "running", "env": "CartPole-v1", "generation": 12})
    client.set(OWN.task, replace(TASK, row=RESULTS.itemsize).encode())
    client.set(OWN.parameters(PUBLICATION), np.arange(3, dtype="<f4").tobytes())
    client.rpush(OWN.todo, f"{PUBLICATION} train 0 4", f"{PUBLICATION} eval 0 2")
    client.rpush(OWN.claims(WORKER), f"{PUBLICATION} train 4 8")
    client.set(OWN.results(PUBLICATION), RESULTS.tobytes())
    client.sadd(OWN.workers, WORKER)
    client.hset(OWN.worker(WORKER), mapping={"host": "host", "pid": 12})
    client.hset(OWN.refused, mapping={"stale": 3})
    client.rpush(OWN.errors, json.dumps(REPORT))
    client.rpush(OWN.commands, json.dumps({"verb": "stop", "by": "ann"}))
    client.set(OWN.epoch, "1-0000000a")
    client.set(OWN.master, "host pid 7 abcdef", px=60_000)
    client.set(
        OWN.checkpoint,
        npz_bytes({"parameters": np.zeros(3, np.float32)}, META),
    )
    client.xadd(OWN.history, {"generation": 11, "eval_mean": 2.5, "seconds_wait": 0.5})
    client.set("other:secret", "not ours")
    client.set("rq:workers", "not ours")
    return client


def told(capsys: pytest.CaptureFixture[str], url: str, *argv: str, code: int = 0) -> Any:
    assert main([*argv, "--json", "--redis-url", url]) == code
    return json.loads(capsys.readouterr().out)


def said(capsys: pytest.CaptureFixture[str], url: str, *argv: str) -> str:
    assert main([*argv, "--redis-url", url]) in (0, 11)
    shown = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    return shown


def test_all_keys_of_ours_are_listed_and_no_others(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, valkey_url, "--keys")["keys"]
    ours = sorted(key.decode() for key in filled.keys("es:*"))
    assert [one["key"] for one in found] == ours and len(ours) == 18
    by_key = {one["key"]: one for one in found}
    assert (
        by_key[OWN.todo]["size"] == 2
        and by_key[OWN.todo]["type"] == "list"
        and "slots 0-3" in by_key[OWN.todo]["content"]
    )
    assert 0 < by_key[OWN.master]["expires"] <= 60 and by_key[OWN.epoch]["expires"] is None
    assert by_key[OWN.parameters(PUBLICATION)]["content"] == "3 float32" and by_key[OWN.progress][
        "content"
    ].startswith("state running")
    assert "not ours" not in said(capsys, valkey_url, "--keys")


def test_the_keys_of_one_run_are_listed_alone(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled.set("es:walker-10:config", "{}")
    found = [one["key"] for one in told(capsys, valkey_url, "walker-1", "--keys")["keys"]]
    assert found and all(key.startswith(OWN.prefix) for key in found)
    assert main(["nothing", "--keys", "--redis-url", valkey_url]) == 6


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (OWN.iteration, "12"),
        (OWN.progress, {"state": "running", "env": "CartPole-v1", "generation": "12"}),
        (
            OWN.todo,
            [
                {"publication": PUBLICATION, "kind": "train", "slots": "0-3"},
                {"publication": PUBLICATION, "kind": "eval", "slots": "0-1"},
            ],
        ),
        (OWN.claims(WORKER), [{"publication": PUBLICATION, "kind": "train", "slots": "4-7"}]),
        (OWN.workers, [WORKER]),
        (OWN.commands, [{"verb": "stop", "by": "ann"}]),
        (RUNS, {"walker-1": 100.0}),
    ],
)
def test_one_key_is_shown_with_its_whole_value(
    key: str, expected: Any, filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, valkey_url, "--keys", key)
    assert found["key"] == key and found["value"] == expected


@pytest.mark.parametrize("key", ["other:secret", "rq:workers"])
def test_keys_of_others_are_refused(
    key: str, filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--keys", key, "--redis-url", valkey_url]) == 2
    shown = capsys.readouterr()
    assert "begin with es:" in shown.err and "not ours" not in shown.out + shown.err


def test_a_user_who_may_only_read_sees_all_of_it_and_nothing_is_written(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled.execute_command(
        "ACL", "SETUSER", "looker", "reset", "on", ">word", "%R~es:*", "+@read", "+@connection"
    )
    before = {key: filled.dump(key) for key in filled.keys("*")}
    url = valkey_url.replace("unix://", "unix://looker:word@")
    assert len(told(capsys, url, "--keys")["keys"]) == 18
    for key in filled.keys("es:*"):
        assert told(capsys, url, "--keys", key.decode())["key"] == key.decode()
    assert len(told(capsys, url, "walker-1", "--errors")["reports"]) == 1
    assert told(capsys, url, "walker-1")["evaluations"] == [{"generation": 11, "eval_mean": 2.5}]
    assert {key: filled.dump(key) for key in filled.keys("*")} == before


# --- hostile


def fetched(client: Any) -> int:
    return int(client.info("stats")["total_net_output_bytes"])


def test_a_string_that_is_too_large_is_described_and_not_fetched(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    large = MOST_BYTES + 1
    filled.set(OWN.parameters("p"), b"\x00" * large)
    before = fetched(filled)
    assert told(capsys, valkey_url, "--keys", OWN.parameters("p"))["value"] == {"first": [0.0] * 8}
    assert len(told(capsys, valkey_url, "--keys")["keys"]) == 19
    assert fetched(filled) - before < 1_000_000


# --- reports and history


def test_the_newest_reports_are_shown_first(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled.rpush(
        OWN.errors,
        *(json.dumps({**REPORT, "slot": number}) for number in range(50)),
        "no JSON\x1b",
        "x" * (LONGEST_REPORT + 1),
    )
    found = told(capsys, valkey_url, "walker-1", "--errors")
    assert found["errors"] == 53 and len(found["reports"]) == MOST_REPORTS
    assert (
        "larger" in found["reports"][0]["trouble"]
        and "no JSON" in found["reports"][1]["trouble"]
        and found["reports"][2]["slot"] == 49
    )
    text = said(capsys, valkey_url, "walker-1", "--errors")
    assert "20 of 53 reports" in text and "slot 49" in text and "\n    b\n" in text
