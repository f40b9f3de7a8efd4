"""One process of simulated workers; ``real`` starts it: what it is told comes as JSON on its input,
what it saw goes out as JSON.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from es_queue.config.parsing import config_from_json
from es_queue.numerics.slot_plan import max_slots
from es_queue.protocol import messages
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from es_queue.protocol.timing import Clocks
from master.collect.answer_check import ResultShape
from master.collect.ledger import AnswerChecker
from tools.benchmarks.cluster.simulation.connections import Link, Loop
from tools.benchmarks.cluster.simulation.durations import Durations
from tools.benchmarks.cluster.simulation.simulated_worker import (
    Cost,
    Host,
    Shared,
    Worker,
    generations,
)
from tools.benchmarks.cluster.simulation.wire_format import Commands
from workers.heartbeat import worker_info

PER_HOST = 48
ARRIVAL_SECONDS = 1.0


@dataclass(frozen=True)
class Order:
    """What one process simulates.

    first, workers: numbers of its workers; lives: connections that their beats and looks share
    size: floats of a policy; per_slot: individuals; generations: how many are prepared for
    """

    url: str
    socket: str
    run: str
    first: int
    workers: int
    lives: int
    size: int
    per_slot: int
    observation: int
    generations: int
    durations: str
    seed: int
    cost: dict[str, float]
    per_host: int = PER_HOST


def run_of(order: Order) -> Any:
    """The run's configuration, when its master has published it."""
    with client_from_url(order.url) as client:
        deadline = time.monotonic() + 60
        while (text := client.get(RunKeys(order.run).config)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("no master has published the run")
            time.sleep(0.05)
    return config_from_json(text.decode())


def about(number: int, order: Order, backend: str, told: Mapping[str, str]) -> dict[str, str]:
    """What a seated worker says of itself, in about as many bytes."""
    host = f"host{number // order.per_host}"
    own = {
        "host": host,
        "pid": str(number),
        "rq_name": f"{number:032x}",
        "backend": backend,
        "python": sys.version.split()[0],
    }
    figures = {
        "block": "train 1000 1003",
        "late": "0",
        "blocks": "100",
        "steps": "1000000",
        "steps_per_second": "10000",
        "generation": "generation 3",
    }
    return {
        **own,
        "joined": f"{time.time():.0f}",
        **told,
        "numerics": "0" * 32,
        "noise": "0" * 32,
        "outages": "0",
        **figures,
    }


def simulate(order: Order) -> dict[str, Any]:
    """Serve the run until it ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    config, clocks, loop = run_of(order), Clocks(), Loop()
    most = max_slots(config, order.per_slot)
    expected = [
        AnswerChecker(
            config, number, ResultShape(order.size, order.per_slot, order.observation), most
        )
        for number in range(order.generations)
    ]
    prepared = generations(expected, Durations(order.durations, order.seed), most[messages.TRAIN])
    mean = np.linspace(-1, 1, order.observation).astype("<f8").tobytes()
    shared = Shared(loop, clocks, prepared, Cost(**order.cost), mean)
    told = worker_info(clocks)
    hosts: dict[int, Host] = {}
    lives = [Link(order.socket) for _ in range(order.lives)]
    for number in range(order.first, order.first + order.workers):
        host = hosts.setdefault(number // order.per_host, Host())
        name, link, life = (
            f"host{number // order.per_host}-{number}-{number:06x}",
            Link(order.socket),
            lives[number % order.lives],
        )
        commands = Commands(
            order.run,
            name,
            f"{number:032x}",
            about(number, order, config.backend, told),
            clocks.beat_ttl,
        )
        worker = Worker(shared, name, host, link, life, commands)
        loop.watch(link)
        loop.after(random.random() * ARRIVAL_SECONDS, worker.begin)
    for link in lives:
        loop.watch(link)
    loop.run()
    return seen(shared, order, lives)


def seen(shared: Shared, order: Order, lives: list[Link]) -> dict[str, Any]:
    """What the process saw, as plain data."""
    names = ("first_claim", "last_answer", "answers", "late", "played", "sent")
    return {
        "order": {
            name: value
            for name, value in asdict(order).items()
            if name in ("first", "workers", "lives")
        },
        "generations": {
            str(number): {name: getattr(one, name) for name in names}
            for number, one in shared.generations.items()
            if one.answers
        },
        "plays": shared.plays,
        "trips": dict(shared.trips),
        "received": {**shared.received, "life": sum(link.received for link in lives)},
        "timers": {
            "called": shared.loop.called,
            "mean_late": shared.loop.late / max(1, shared.loop.called),
        },
        "cpu": time.process_time(),
    }


if __name__ == "__main__":
    print(json.dumps(simulate(Order(**json.load(sys.stdin)))))
