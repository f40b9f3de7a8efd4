"""es-worker: the workers of a host, which serve every run without RQ, and are started again."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.cases import each_case
from tests.integration.processes import (
    CARTPOLE,
    WALKER,
    Master,
    Processes,
    Seen,
    quiet_digest,
    wait_for,
)
from workers.es_worker import main as es_worker

ENDLESS = {**WALKER, "generations": 10_000}
CRASHING = """
import os
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

TRAP = Path(__file__).with_name("trap")


class Crashing(CartPoleEnv):
    def step(self, action):
        if TRAP.exists():
            TRAP.unlink()
            os.abort()
        return super().step(action)


gymnasium.register("Crashing-v0", entry_point=Crashing, max_episode_steps=500)
"""


def test_a_run_of_es_workers_ends_with_the_parameters_of_any_other(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    host = processes.es_worker(valkey_url, "--workers", 2)
    plain = processes.worker(valkey_url)
    run = start_master("mixed", {**WALKER, "block": 3})
    seen = Seen(redis_client, "mixed")
    seen.joined(plain)
    wait_for(lambda: len(seen.workers()) == 3, "all have joined")
    assert run.summary()["digest"] == quiet_digest(WALKER)
    host.signal(signal.SIGTERM)
    assert host.wait() == 0, host.said()
    said = host.said()
    assert said.count("mixed: joined: ") == 1 and said.count("mixed: left: the run is ") == 1


def test_killed_workers_are_replaced_and_sigterm_hands_their_work_back(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "stay")
    start_master("stay", ENDLESS)
    host = processes.es_worker(valkey_url, "--workers", 2, "--log-dir", processes.folder / "logs")
    first = wait_for(lambda: seats if len(seats := seen.workers()) == 2 else {}, "two have joined")
    victim = next(iter(first))
    os.kill(seen.horse(victim), signal.SIGKILL)
    wait_for(lambda: len(seen.workers().keys() - {victim}) == 2, "another is in its place")
    wait_for(seen.has_reached(seen.generation() + 3), "the run goes on")
    host.signal(signal.SIGTERM)
    assert host.wait() == 0, host.said()
    assert "was ended by SIGKILL while it served stay, and is started again" in host.said()
    held = [key for key in seen.all_claims() if victim not in key]
    assert held == [], "what the others had begun is handed back"
    assert seen.progress()["state"] == "running"


def test_es_workers_open_and_take_no_seat_of_rq(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    start_master("apart", ENDLESS)
    seen = Seen(redis_client, "apart")
    waiting = wait_for(lambda: redis_client.lrange("rq:queue:default", 0, -1), "a seat is open")
    processes.es_worker(valkey_url, "--workers", 3)
    wait_for(lambda: len(seen.workers()) == 3, "three have joined")
    wait_for(seen.has_reached(seen.generation() + 3), "the run trains")
    assert redis_client.lrange("rq:queue:default", 0, -1) == waiting


def test_a_crash_of_an_environment_is_reported_and_its_worker_returns(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (processes.folder / "crashing.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(processes.folder)
    start_master("crashes", {**CARTPOLE, "env": "crashing:Crashing-v0", "generations": 10_000})
    seen = Seen(redis_client, "crashes")
    allowed = {"PYTHONPATH": str(processes.folder), "ES_QUEUE_ALLOW": "installed,crashing"}
    host = processes.es_worker(valkey_url, **allowed)
    wait_for(seen.has_reached(1), "the run trains")
    (processes.folder / "trap").touch()
    wait_for(lambda: "was ended by SIGABRT" in host.said(), "the crash is named")
    wait_for(seen.has_reached(seen.generation() + 2), "its successor plays on")
    reports = b"".join(redis_client.lrange(seen.keys.errors, 0, -1))
    place = (
        rb"the seat before this one crashed on this worker: Aborted, in step \(crashing.py, line"
    )
    assert re.search(place, reports)


def test_workers_wait_for_a_redis_that_is_away_and_end_when_they_are_told(
    processes: Processes, tmp_path: Path
) -> None:
    host = processes.es_worker("redis://127.0.0.1:1", TMPDIR=str(tmp_path))
    wait_for(lambda: "es-worker: 1 worker for" in host.said(), "it has begun")
    assert "does not answer yet: the workers wait" in host.said()
    assert [path.name for path in tmp_path.glob("es-worker-*/*")] == ["worker-1.log"]
    host.signal(signal.SIGINT)
    assert host.wait() == 0
    assert not list(tmp_path.glob("es-worker-*")), "its logs go with it"
    assert host.said().count("does not answer") <= 2


@each_case(
    ("words", "code", "sentence"),
    [
        ([], 2, "no Redis is named: give --redis-url or set RQ_REDIS_URL"),
        (["--redis-url", "redis://localhost", "--workers", "0"], 2, "--workers is 0"),
        (["--wokers", "2"], 2, "did you mean --workers?"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    words: list[str],
    code: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert es_worker(words) == code
    assert sentence in capsys.readouterr().err


def test_a_refused_password_is_said_before_any_worker_begins(
    valkey_url: str, capsys: pytest.CaptureFixture[str], redis_client: redis.Redis
) -> None:
    redis_client.config_set("requirepass", "another")
    try:
        assert es_worker(["--redis-url", valkey_url]) == 3
    finally:
        redis_client.config_set("requirepass", "")
    assert "requires a password" in capsys.readouterr().err
