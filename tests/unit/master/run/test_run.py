"""A whole run over a Redis server: what one generation measures reaches the next one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.redis_channel import RedisMasterChannel, RedisWorkerChannel
from master.collect.blocks import stragglers
from master.run.launch import Launch
from master.run.lease import take_lease
from master.run.run import TrainingRun
from master.run.run_paths import RunPaths
from master.run.run_services import LeaseClaim, RunContext, Services, StopSignal
from master.run.setup import Setup, prepare_run
from tests.ring import QUICK, Sink, quick_config
from tests.tiny import SLOW
from workers.block_worker import BlockWorker
from workers.episode import EpisodeControl
from workers.heartbeat import Heartbeat, ProcessLimits
from workers.join import join

#: A block that nobody has measured is overdue at once: only a measured one has time.
GENERATIONS, HASTY = 3, replace(QUICK, overdue=0.01)


@dataclass
class View(Sink):
    """Hears of a run and remembers it."""

    summaries: list[dict[str, Any]] = field(default_factory=list)

    def note(self, text: str) -> None: ...

    def started(self, about: dict[str, str]) -> None: ...

    def summary(self, record: dict[str, Any]) -> None:
        self.summaries.append(record)


@contextmanager
def worker(url: str, name: str, setup: Setup) -> Iterator[None]:
    """A worker thread that serves until the block ends."""
    control = EpisodeControl()
    with ExitStack() as stack:
        clients = [stack.enter_context(client_from_url(url)) for _ in range(2)]
        channel, beats = (RedisWorkerChannel(client, "slow", name) for client in clients)
        joined = join(setup.config, control, table=setup.table)
        about = {"host": name, "numerics": joined.numerics}
        heartbeat = Heartbeat(
            beats, control, lambda: about, HASTY, ProcessLimits(60.0, lambda: None)
        )
        channel.arrive(about, HASTY.beat_ttl)
        heartbeat.start()
        block_worker = BlockWorker(channel, joined.evaluator, HASTY, joined.noise_digest)
        thread = threading.Thread(target=block_worker.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            control.leave_reason = "the test is over"
            thread.join(10)
            heartbeat.stop()


def test_durations_of_one_generation_reach_the_straggler_tracker_of_the_next(
    redis_client: redis.Redis, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "BLOCK_SECONDS", 0.01)
    config = quick_config(
        env=SLOW,
        strategy="ars",
        population=4,
        block=1,
        eval_every=0,
        obs_norm=False,
        noise_size=2**14,
    )
    setup = prepare_run(config, table=NoiseTable.in_memory(config.noise_size))
    view, paths = View(), RunPaths("slow", tmp_path)
    paths.prepare()
    stop = StopSignal(lambda: len(view.records) >= GENERATIONS)
    services = Services(Launch(), HASTY, redis_client, valkey_url, stop)
    token = take_lease(RedisMasterChannel(redis_client, "slow"), "test", HASTY, wait=False)
    context = RunContext(services, paths, setup, view, LeaseClaim("test", token))
    run = TrainingRun(context, lambda _: True)
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(worker(valkey_url, f"host{number}-{number}-abcdef", setup))
        run.run(setup.initial_state())
    first, *others = [record["reissued"] for record in view.records]
    assert first > 0, "nothing was measured yet, so idle workers played copies"
    assert others == [first] * 2
