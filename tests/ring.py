"""A whole ring in one process: a master's loop and worker threads over the in-memory channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.timing import Clocks
from master.collect.blocks.block_scheduler import make_scheduler
from master.collect.collector import Collector
from master.collect.worker_watch import CollectorCallbacks, MasterLease
from master.control.inbox import ControlInbox
from master.loop.config_timeline import ConfigTimeline
from master.loop.generation_loop import Loop
from master.loop.generation_loop import make_loop as compose_loop
from master.loop.listeners import CheckpointWriter, Outcome
from master.loop.publisher import RunIdentity
from master.loop.state import RunState
from master.run.lease import take_lease
from master.run.setup import Setup, prepare_run
from tests.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel
from tests.notes import collect_notes
from workers.block_worker import BlockWorker, make_worker_id
from workers.episode import EpisodeControl
from workers.heartbeat import Heartbeat, ProcessLimits
from workers.join import join

QUICK = Clocks(
    lease=0.6,
    renew=0.1,
    beat_ttl=0.4,
    beat=0.1,
    leave_poll=0.05,
    claim_wait=0.05,
    collect_wait=0.1,
    reconcile=0.1,
    overdue=0.3,
    seat_lease=60.0,
)
NOISE = 2**18


@dataclass
class Sink:
    """Hears of a run and remembers it."""

    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=collect_notes)

    def generation(self, record: dict[str, Any]) -> None:
        self.records.append(dict(record))

    def live(self, figures: dict[str, Any]) -> None: ...


def quick_config(**values: Any) -> RunConfig:
    return RunConfig(
        **{
            "env": "CartPole-v1",
            "strategy": "pgpe",
            "seed": 3,
            "noise_size": NOISE,
            **values,
        }
    )


@contextmanager
def workers(
    server: MemoryServer, config: RunConfig, table: NoiseTable, count: int = 1
) -> Iterator[list[EpisodeControl]]:
    """``count`` worker threads that serve until the block ends."""
    watches, threads = [], []
    for number in range(count):
        watch = EpisodeControl()
        name = make_worker_id(f"thread{number}")
        channel = MemoryWorkerChannel(server, name)
        joined = join(config, watch, table=table)
        about = {"host": f"thread{number}", "numerics": joined.numerics}
        life = Heartbeat(
            MemoryWorkerChannel(server, name),
            watch,
            partial(dict, about),
            QUICK,
            ProcessLimits(60.0, lambda: None),
        )
        channel.arrive(about, QUICK.beat_ttl)
        life.start()
        thread = threading.Thread(
            target=BlockWorker(channel, joined.evaluator, QUICK, joined.noise_digest).run,
            daemon=True,
        )
        thread.start()
        watches.append(watch)
        threads.append((thread, life))
    try:
        yield watches
    finally:
        for watch in watches:
            watch.leave_reason = "the test is over"
        for thread, life in threads:
            thread.join(10)
            life.stop()


def make_loop(
    setup: Setup, server: MemoryServer, sink: Sink, checkpoints: Any = None, **more: Any
) -> Loop:
    channel, clocks = MemoryMasterChannel(server), more.pop("clocks", QUICK)
    token = take_lease(channel, "test", clocks, wait=True)
    interrupted = more.pop("interrupted", lambda: False)
    requests = ControlInbox(channel, ConfigTimeline(setup.learner).refusal)
    collector = Collector(
        MasterLease(channel, token, "test", clocks),
        make_scheduler(setup.config, setup.strategy.per_slot, setup.policy.size),
        CollectorCallbacks(sink.live, interrupted),
        requests,
    )
    identity = RunIdentity(channel.run, token, setup.table.digest)
    store = more.pop("store", None)
    listeners = [CheckpointWriter(checkpoints, channel.run)] if checkpoints else []
    listeners += [store] if store else []
    return compose_loop(identity, setup.learner, collector, sink, listeners, **more)


def run_ring(
    config: RunConfig, count: int = 1, state: RunState | None = None, **more: Any
) -> tuple[Outcome, Sink]:
    """Train over the in-memory channel with ``count`` worker threads."""
    table = NoiseTable.in_memory(config.noise_size)
    setup = prepare_run(config, table=table)
    server, sink = more.pop("server", None) or MemoryServer(), more.pop("sink", None) or Sink()
    loop = make_loop(setup, server, sink, **more)
    with workers(server, setup.config, table, count):
        return loop.run(state or setup.initial_state()), sink
