"""What es-queue says of itself, clause by clause, seen from outside: a plain Redis client beside
real processes.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import redis

from es_queue.config.run_config import RunConfig
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.slots import result_type
from tests.integration.processes import (
    CARTPOLE,
    Processes,
    Seen,
    Started,
    flags,
    folder_variables,
    wait_for,
)

ENDLESS = {
    **CARTPOLE,
    "generations": 100_000,
    "population": 16,
    "eval_every": 2,
    "eval_episodes": 1,
}
BLOCK = re.compile(r"(\d+)\.(\d+-[0-9a-f]{8}) (train|centre|eval|confirm|final) (\d+) (\d+)")


@dataclass
class Run:
    """A run with a plain worker, both processes of their own, stopped at a moment for a look."""

    redis: Any
    worker: Started
    seat: str
    noise: Path
    config: RunConfig

    @property
    def seen(self) -> Seen:
        return Seen(self.redis, "card")

    def task(self) -> dict[str, Any]:
        """The header of the open publication."""
        return dict(msgpack.unpackb(self.redis.get("es:card:task")))

    def results(self) -> np.ndarray:
        """The results that the open publication has by now."""
        task = self.task()
        data = self.redis.get(f"es:card:results:{task['publication']}:0") or b""
        records = result_type(2, 4, 0)
        assert records.itemsize == task["row"]
        return np.frombuffer(data, records)

    def training(self) -> np.ndarray:
        """Results of training slots among them: those of two individuals."""
        results = self.results()
        return results[(results["steps"] > 0).all(1)]


@pytest.fixture(scope="module")
def run(
    valkey_server: str, short_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Run]:
    processes = Processes(tmp_path_factory.mktemp("card"), folder_variables(short_folder))
    with redis.Redis.from_url(valkey_server) as client:
        client.flushall()
        try:
            processes.master(*flags({**ENDLESS, "block": 2}), "--run", "card", url=valkey_server)
            worker = processes.worker(valkey_server)
            seat = Seen(client, "card").joined(worker)
            wait_for(Seen(client, "card").has_reached(3), "generation 3")
            noise = short_folder / "noise"
            yield Run(
                client, worker, seat, noise, RunConfig.from_json(client.get("es:card:config"))
            )
        finally:
            processes.end()


@pytest.fixture
def frozen(run: Run) -> Iterator[Run]:
    """The run at a moment at which its worker holds a block and has answered training slots."""

    def worth_looking_at() -> bool:
        pid = run.seen.freeze_holding(run.seat)
        if len(run.training()):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_for(worth_looking_at, "training answers in the stream")
    yield run
    os.kill(run.seen.horse(run.seat), signal.SIGCONT)


def test_the_master_publishes_parameters_and_an_iteration_id_to_redis(frozen: Run) -> None:
    client = frozen.redis
    iteration, task = (
        int(client.get("es:card:iteration")),
        msgpack.unpackb(client.get("es:card:task")),
    )
    assert task["publication"].startswith(f"{iteration}.")
    parameters = client.get(f"es:card:parameters:{task['publication']}")
    assert len(parameters) == 4 * task["size"]
    assert bytes_digest(parameters) == task["digest"]
    assert np.isfinite(np.frombuffer(parameters, "<f4")).all()


def test_a_plain_rq_worker_with_nothing_but_a_url_pulls_them(run: Run) -> None:
    words = Path(f"/proc/{run.worker.pid}/cmdline").read_text().split("\0")[:-1]
    assert [Path(word).name for word in words[1:3]] == ["rq", "worker"]
    assert words[3] == "--url"
    assert len(words) == 5
    assert run.redis.sismember("es:card:workers", run.seat)
    assert run.redis.hget(f"es:card:worker:{run.seat}", "rq_name").decode() in run.worker.said()


def test_workers_run_the_episodes(frozen: Run) -> None:
    steps, returns = frozen.training()["steps"], frozen.training()["returns"]
    assert ((steps >= 1) & (steps <= 60)).all()
    assert (returns == steps).all()  # CartPole pays 1 a step


def test_workers_push_index_and_reward(frozen: Run) -> None:
    results, spans = frozen.results(), np.frombuffer(frozen.task()["spans"], "<i4").reshape(-1, 3)
    rows = int((spans[:, 2] - spans[:, 1]).sum())
    assert len(results) and ((results["row"] >= 0) & (results["row"] < rows)).all()
    assert np.isfinite(results["fitness"]).all() and np.isfinite(results["returns"]).all()


def test_the_master_aggregates_each_generation_and_publishes_the_next(run: Run) -> None:
    before = run.seen.progress()
    then = int(before["generation"])
    wait_for(run.seen.has_reached(then + 2), "two more generations")
    after = run.seen.progress()
    assert after["digest"] != before["digest"]
    assert int(after["env_steps"]) > int(before["env_steps"])
    assert not run.redis.exists(
        f"es:card:results:{before['publication']}:0", f"es:card:parameters:{before['publication']}"
    )
