"""es-status against a server: what it reads, as whom, and that it writes nothing."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from es_queue.protocol.keys import RUNS, RunKeys
from master.status.command import main
from master.status.figures import FIGURES, WORKER_FIGURES

OWN = RunKeys("walker-1")
WORKER = "host-12-abcdef"


@pytest.fixture
def filled(redis_client: redis.Redis) -> Any:
    """A run with a living worker and a dead one, as masters and workers write them."""
    client: Any = redis_client
    client.zadd(RUNS, {"walker-1": time.time() - 100, "older": 5.0, "no run id!": 6.0})
    client.hset(
        OWN.progress,
        mapping={
            "state": "running",
            "env": "CartPole-v1",
            "generation": 7,
            "env_steps": 1000,
            "updated": time.time(),
        },
    )
    client.set(OWN.master, "holder", px=60_000)
    client.sadd(OWN.workers, WORKER, "gone-13-abcdef")
    client.hset(
        OWN.worker(WORKER),
        mapping={"host": "host", "pid": 12, "steps": 500, "generation": "generation 7"},
    )
    client.hset(OWN.refused, mapping={"stale": 3})
    client.rpush(OWN.errors, "{}", "{}")
    return client


def told(capsys: pytest.CaptureFixture[str], url: str, *argv: str) -> Any:
    assert main([*argv, "--json", "--redis-url", url]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_run_is_read_with_its_living_workers(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = told(capsys, valkey_url, "walker-1")
    assert [worker["worker"] for worker in run["living"]] == [WORKER] and run["living"][0][
        "steps"
    ] == 500
    assert (run["ever"], run["errors"], run["refused"]) == (2, 2, {"stale": 3})


def test_every_field_of_its_json_is_on_the_reference_page(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled.hset(OWN.progress, mapping={**dict.fromkeys(FIGURES, "1"), "state": "running"})
    filled.hset(OWN.worker(WORKER), mapping=dict.fromkeys(WORKER_FIGURES, "1"))
    run = told(capsys, valkey_url, "walker-1")
    page = (Path(__file__).parents[2] / "docs/reference/status.md").read_text("utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert run.keys() | run["living"][0].keys() <= named
    assert {"eval_best", "stage"} <= run.keys() and {"busy", "seen"} <= run["living"][0].keys()


def test_a_run_ends_it_with_a_code_for_how_it_fares(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def code(**progress: Any) -> int:
        for name, value in progress.items():
            filled.hset(OWN.progress, name, value)
        found = main(["walker-1", "--redis-url", valkey_url])
        capsys.readouterr()
        return found

    assert code(updated=1000.0, answered_at=995.0) == 0
    assert code(updated=1000.0, answered_at=900.0) == 11
    filled.xadd(OWN.history, {"generation": 1, "seconds_wait": 20.0})
    assert code() == 0, "ten usual generations are not over yet"
    assert code(state="paused") == 0
    filled.delete(OWN.master)
    assert (code(), code(state="failed"), code(state="stopped"), code(state="finished")) == (
        12,
        13,
        10,
        10,
    )


def test_the_master_and_waiting_requests_are_read(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled.set(OWN.master, "box pid 7 abcdef")
    filled.rpush(OWN.commands, "{}", "{}", "{}")
    run = told(capsys, valkey_url, "walker-1")
    assert run["master"] == "box pid 7" and run["requests"] == 3
    filled.set(OWN.master, b"x\x1b " * 10**6)
    before = filled.info("stats")["total_net_output_bytes"]
    master = told(capsys, valkey_url, "walker-1")["master"]
    assert (
        len(master) <= 100
        and "\x1b" not in master
        and filled.info("stats")["total_net_output_bytes"] - before < 100_000
    )


@pytest.mark.parametrize(
    "rights", [("%R~other:*", "+@read", "+@connection"), ("~*", "-@all", "+@connection")]
)
def test_a_user_who_may_read_too_little_is_told_so(
    rights: tuple[str, ...],
    filled: Any,
    valkey_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RQ_REDIS_URL", valkey_url.replace("unix://", "unix://blind:word@"))
    filled.execute_command("ACL", "SETUSER", "blind", "reset", "on", ">word", *rights)
    for argv in ([], ["walker-1"]):
        assert main(argv) == 3
        sentence = capsys.readouterr().err
        assert (
            "too few rights" in sentence and "word@" not in sentence and sentence.count("\n") == 1
        )


def test_a_long_history_is_sampled_for_one_look_from_its_beginning_to_its_end(
    filled: Any, valkey_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    writes = filled.pipeline(transaction=False)
    for one in range(6000):
        figures = {"generation": one, "seconds_wait": 1, "eval_mean": 2 * one}
        writes.xadd(OWN.history, figures, id=f"{1_000_000 + 10 * one}-{one % 3}")
    writes.execute()
    before = filled.info("stats")["total_net_output_bytes"]
    generations = [one["generation"] for one in told(capsys, valkey_url, "walker-1")["evaluations"]]
    sent = filled.info("stats")["total_net_output_bytes"] - before
    assert generations == sorted(set(generations)) and generations[-1] == 5999
    assert 0 <= generations[0] < 100 and max(np.diff(generations)) < 300
    assert sent < len(str(filled.xrange(OWN.history))) / 3
    assert main(["walker-1", "--redis-url", valkey_url]) == 0
    assert "evaluations" in capsys.readouterr().out.partition("in a sample of ")[2]
