"""What es-queue says of itself, clause by clause, seen from outside: a plain Redis client beside
real processes.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import redis

from es_queue.config.parsing import config_from_json
from es_queue.config.run_config import RunConfig
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.normals import table_digest
from es_queue.numerics.slot_plan import make_generation_plan
from es_queue.protocol.messages import Answer, Block, SlotResult, Task
from master.run.setup import prepare_run
from tests.integration.processes import (
    CARTPOLE,
    Master,
    Processes,
    Seen,
    Started,
    flags,
    folder_variables,
    quiet_digest,
    texts,
    wait_for,
)
from workers.episode import EpisodeControl
from workers.join import join

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

    def answers(self) -> list[Answer]:
        """The entries of the open results stream."""
        publication = self.redis.hget("es:card:progress", "publication").decode()
        entries = self.redis.xrange(f"es:card:results:{publication}")
        return [Answer.decode(fields[b"answer"]) for _, fields in entries if b"answer" in fields]

    def training(self) -> list[SlotResult]:
        """Results of training slots in the open stream."""
        return [slot for one in self.answers() if one.kind == "train" for slot in one.results]


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
            yield Run(client, worker, seat, noise, config_from_json(client.get("es:card:config")))
        finally:
            processes.end()


@pytest.fixture
def frozen(run: Run) -> Iterator[Run]:
    """The run at a moment at which its worker holds a block and has answered training slots."""

    def worth_looking_at() -> bool:
        pid = run.seen.freeze_holding(run.seat)
        if run.training():
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


def test_perturbations_are_sampled_from_the_shared_noise_table_by_index(frozen: Run) -> None:
    config, task = frozen.config, msgpack.unpackb(frozen.redis.get("es:card:task"))
    table = NoiseTable.open(config.noise_size, frozen.noise)
    assert table_digest(table.row(0, table.size)) == table.digest
    assert texts(frozen.redis.hgetall("es:card:progress"))["noise"] == task["noise"] == table.digest
    indices = {one.slot: one.noise_index for one in frozen.training()}
    parameters = prepare_run(config, frozen.noise).policy.size
    planned = make_generation_plan(
        config, int(frozen.redis.get("es:card:iteration")), parameters, 2
    ).slots(0, config.population // 2)
    assert indices == {slot: int(planned.noise_indices[slot]) for slot in indices}
    assert len(set(indices.values())) == len(indices)
    assert all(0 <= index <= table.size - parameters for index in indices.values())


def test_workers_run_the_episodes(frozen: Run) -> None:
    steps = [one for slot in frozen.training() for one in slot.steps]
    returns = [one for slot in frozen.training() for one in slot.returns]
    assert all(1 <= one <= 60 for one in steps)
    assert returns == steps  # CartPole pays 1 a step


def test_workers_push_index_and_reward(frozen: Run) -> None:
    answers = frozen.answers()
    assert answers
    open_now = frozen.redis.hget("es:card:progress", "publication").decode()
    for answer in answers:
        assert answer.publication == open_now
        for one in answer.results:
            assert (type(one.slot), type(one.noise_index), type(one.seed)) == (int, int, int)
            assert [type(reward) for reward in one.fitness + one.returns] == [float] * 2 * len(
                one.returns
            )


def test_the_master_aggregates_each_generation_and_publishes_the_next(run: Run) -> None:
    before = run.seen.progress()
    then = int(before["generation"])
    wait_for(run.seen.has_reached(then + 2), "two more generations")
    after = run.seen.progress()
    assert after["digest"] != before["digest"]
    assert int(after["env_steps"]) > int(before["env_steps"])
    assert not run.redis.exists(
        f"es:card:results:{before['publication']}", f"es:card:parameters:{before['publication']}"
    )


def test_people_read_progress_in_the_keyspace(frozen: Run) -> None:
    client = frozen.redis
    assert re.fullmatch(rb"\d+", client.get("es:card:iteration"))
    progress = texts(client.hgetall("es:card:progress"))
    assert progress["state"] == "running"
    assert progress["generation"] == client.get("es:card:iteration").decode()
    assert float(progress["reward_mean"]) <= float(progress["reward_max"]) <= 60
    assert {"episodes", "env_steps", "steps_per_second", "workers", "eval_mean", "digest"} <= set(
        progress
    )
    for entry in frozen.seen.todo():
        assert BLOCK.fullmatch(entry), entry
    history = [texts(fields) for _, fields in client.xrange("es:card:history")]
    assert [int(one["generation"]) for one in history] == list(range(len(history)))
    assert len(history) == int(progress["generation"])
    assert all(value.isprintable() for one in [progress, *history] for value in one.values())
    assert b"card" in client.zrange("es:runs", 0, -1)


def test_the_master_takes_answers_in_whatever_order_they_come(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    short_folder: Path,
) -> None:
    values = {**CARTPOLE, "block": 1}
    master = start_master("hand", values)
    wait_for(lambda: redis_client.exists("es:hand:task"), "the first publication")
    config = config_from_json(redis_client.get("es:hand:config"))
    evaluator = join(config, EpisodeControl(), short_folder / "noise").evaluator
    redis_client.hset(
        "es:hand:worker:hand-1-abcdef", mapping={"host": "hand", "numerics": "0" * 32}
    )
    redis_client.sadd("es:hand:workers", "hand-1-abcdef")
    while redis_client.hget("es:hand:progress", "state") == b"running":
        backwards = []
        while entry := redis_client.lmove(
            "es:hand:todo", "es:hand:claims:hand-1-abcdef", "LEFT", "LEFT"
        ):
            backwards.append(entry)
        for entry in reversed(backwards):
            task, block = Task.decode(redis_client.get("es:hand:task")), Block.decode(entry)
            parameters = np.frombuffer(
                redis_client.get(f"es:hand:parameters:{task.publication}") or b"", "<f4"
            )
            answer = evaluator.evaluate(task, parameters, block, "hand-1-abcdef", print).encode()
            redis_client.xadd(
                f"es:hand:results:{task.publication}", {"answer": answer}, nomkstream=True
            )
            redis_client.lrem("es:hand:claims:hand-1-abcdef", 1, entry)
    assert master.summary()["digest"] == quiet_digest(values)
