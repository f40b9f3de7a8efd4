"""A whole run in one process: a master and worker threads over the store in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.keys import Clocks
from es_queue.protocol.store import MasterStore, WorkerStore
from master.display.log_view import RunView
from master.loop.config_timeline import ConfigTimeline, ControlInbox
from master.loop.listeners import CheckpointWriter, Outcome, ViewListener
from master.loop.loop import Master
from master.loop.state import RunState
from master.loop.workers import Workers
from master.run.lease import take_lease
from master.run.setup import Setup, prepare_run
from tests.memory_channel import MemoryMasterStore, MemoryServer, MemoryWorkerStore
from tests.notes import collect_notes
from workers.heartbeat import EpisodeControl, Heartbeat
from workers.player import join
from workers.serving import Service, make_worker_id

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
class Sink(RunView):
    """Hears of a run and remembers it."""

    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=collect_notes)

    def generation(self, record: dict[str, Any]) -> None:
        self.records.append(dict(record))


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


def make_master(setup: Setup, server: MemoryServer, sink: Sink, **more: Any) -> Master:
    store: Any = more.pop("store_of", MemoryMasterStore)(server)
    clocks = more.pop("clocks", QUICK)
    token = take_lease(store, "test", clocks, wait=True)
    timeline = ConfigTimeline(setup.learner)
    listeners = [*more.pop("listeners", ())]
    if (checkpoints := more.pop("checkpoints", None)) is not None:
        listeners.append(CheckpointWriter(checkpoints, store.run))
    listeners += [store for store in [more.pop("store", None)] if store is not None]
    return Master(
        timeline,
        cast(MasterStore, store),
        token,
        "test",
        setup.table.digest,
        clocks,
        Workers(store, clocks, strict=setup.config.strict),
        ControlInbox(store, timeline.refusal),
        listeners=(*listeners, ViewListener(sink)),
        is_interrupted=more.pop("interrupted", lambda: False),
        show_live=sink.live,
        **more,
    )


@contextmanager
def workers(
    server: MemoryServer, config: RunConfig, table: NoiseTable, count: int = 1
) -> Iterator[list[EpisodeControl]]:
    """``count`` worker threads that serve until the block ends."""
    controls, threads = [], []
    for number in range(count):
        control = EpisodeControl()
        name = make_worker_id(f"thread{number}")
        store = MemoryWorkerStore(server, name)
        player = join(config, control, table=table)
        about = {"host": f"thread{number}", "numerics": player.numerics}
        life = Heartbeat(
            cast(WorkerStore, MemoryWorkerStore(server, name)),
            control,
            about,
            QUICK,
            config,
        )
        store.arrive(about, QUICK.beat_ttl)
        life.start()
        service = Service(cast(WorkerStore, store), player, QUICK)
        thread = threading.Thread(target=service.run, daemon=True)
        thread.start()
        controls.append(control)
        threads.append((thread, life))
    try:
        yield controls
    finally:
        for control in controls:
            control.leave_reason = "the test is over"
        for thread, life in threads:
            thread.join(10)
            life.stop()


def run_ring(
    config: RunConfig, count: int = 1, state: RunState | None = None, **more: Any
) -> tuple[Outcome, Sink]:
    """Train in memory with ``count`` worker threads."""
    table = NoiseTable.in_memory(config.noise_size)
    setup = prepare_run(config, table=table)
    server, sink = more.pop("server", None) or MemoryServer(), more.pop("sink", None) or Sink()
    master = make_master(setup, server, sink, **more)
    with workers(server, setup.config, table, count):
        return master.train(state or setup.initial_state()), sink
