"""es-worker: as many workers as it is told, each started again when it ends, and none left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from master.cli.worker_command import main as es_worker
from tests.cases import each_case
from tests.integration.processes import (
    BIN,
    WALKER,
    Master,
    Processes,
    Seen,
    parent_of,
    wait_for,
)


def test_killed_workers_are_replaced_and_sigterm_hands_their_work_back(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "stay")
    start_master("stay", {**WALKER, "generations": 10_000})
    logs = processes.folder / "logs"
    host = processes.start(
        BIN / "es-worker", "--workers", 2, "--redis-url", valkey_url, "--log-dir", logs
    )
    first = wait_for(lambda: seats if len(seats := seen.workers()) == 2 else {}, "two have joined")
    victim = next(iter(first))
    for pid in (parent_of(seen.horse(victim)), seen.horse(victim)):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(seen.workers().keys() - {victim}) == 2, "another is in its place")
    wait_for(seen.has_reached(seen.generation() + 3), "the run goes on")
    host.signal(signal.SIGTERM)
    assert host.wait() == 0, host.said()
    assert "was restarted" in host.said()
    held = [key for key in seen.all_claims() if victim not in key]
    assert held == [], "what the others had begun is handed back"
    assert not any("rq" in command for command in processes.living().values())
    assert seen.progress()["state"] == "running"


@each_case(
    ("words", "code", "sentence"),
    [
        ([], 2, "no Redis is named: give --redis-url or set RQ_REDIS_URL"),
        (["--redis-url", "redis://localhost", "--workers", "0"], 2, "--workers is 0"),
        (["--redis-url", "localhost"], 2, "--redis-url is not a Redis address"),
        (["--redis-url", "redis://127.0.0.1:1/abc"], 3, "is no database number: use /0"),
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
    for name in ("RQ_REDIS_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    assert es_worker(words) == code
    assert sentence in capsys.readouterr().err


def test_a_worker_that_ends_because_redis_does_not_answer_is_restarted_with_that_reason(
    processes: Processes, tmp_path: Path
) -> None:
    host = processes.start(
        *(BIN / "es-worker", "--workers", 1, "--redis-url", "redis://127.0.0.1:1"),
        TMPDIR=str(tmp_path),
    )
    wait_for(lambda: "was restarted" in host.said(), "its worker has ended")
    assert "worker 1 ended and was restarted: Redis at redis://127.0.0.1:1 does not answer; " in (
        host.said()
    )
    assert [path.name for path in tmp_path.glob("es-worker-*/*")] == ["worker-1.log"]
    host.signal(signal.SIGTERM)
    assert host.wait() == 0
    assert not list(tmp_path.glob("es-worker-*")), "its logs go with it"


def test_a_refused_password_is_said_before_any_worker_begins(
    valkey_url: str, capsys: pytest.CaptureFixture[str], redis_client: redis.Redis
) -> None:
    redis_client.config_set("requirepass", "another")
    try:
        assert es_worker(["--redis-url", valkey_url]) == 3
    finally:
        redis_client.config_set("requirepass", "")
    assert "requires a password" in capsys.readouterr().err
