"""Strategies that compare behaviours: real workers give the same bits whichever of them plays, also
after the death of a worker and of the master.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.integration.processes import (
    NERVOUS,
    WALKER,
    Master,
    Processes,
    Seen,
    flags,
    quiet_digest,
)

#: Where the walker ends is read inside its environment, which the lean back end shows.
SEEK: dict[str, dict[str, Any]] = {
    "novelty": {
        **WALKER,
        "strategy": "novelty",
        "novelty": "nsra",
        "members": 3,
        "neighbours": 3,
        "behaviour_episodes": 2,
        "generations": 6,
    },
    "map_elites": {
        **WALKER,
        "strategy": "map_elites",
        "behaviour_bounds": "0:8,4:6",
        "sigma": 0.3,
        "generations": 6,
    },
    "centroids": {
        **WALKER,
        "strategy": "map_elites",
        "emitter": "gaussian",
        "behaviour": "feet-contact",
        "archive": "cvt",
        "cells": "30",
        "generations": 6,
    },
}

each_strategy = pytest.mark.parametrize("strategy", SEEK)


@each_strategy
def test_a_strategy_gives_the_same_bits_with_three_workers_of_which_one_is_killed(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    strategy: str,
) -> None:
    values = SEEK[strategy]
    seen = Seen(redis_client, "seek")
    workers = [processes.worker(valkey_url, clocks=NERVOUS) for _ in range(3)]
    run = start_master("seek", {**values, "block": 1}, clocks=NERVOUS)
    seats = [seen.joined(one) for one in workers]
    seen.kill_holding(seats[0], workers[0])
    training = (
        seen.generation() < values["generations"] - 1
    )  # what the last moments take from it no generation tells
    assert run.summary()["digest"] == quiet_digest(values)
    assert run.total("recovered") + run.total("reissued") >= training, (
        "what it held was played by another"
    )


@each_strategy
def test_a_strategy_continues_after_its_master_was_killed_and_its_log_can_be_replayed(
    valkey_url: str, redis_client: redis.Redis, processes: Processes, strategy: str
) -> None:
    values = SEEK[strategy]
    seen = Seen(redis_client, "again")
    worker = processes.worker(valkey_url)
    folder = processes.folder / "again"
    first = processes.master(
        *flags(values), "--run", "again", "--run-dir", folder, "--json", url=valkey_url
    )
    horse = seen.freeze_holding(seen.joined(worker))
    first.signal(signal.SIGKILL)
    first.wait()
    os.kill(horse, signal.SIGCONT)
    second = processes.master("--resume", "again", "--run-dir", folder, "--json", url=valkey_url)
    assert second.wait() == 0, second.said()
    assert second.events("summary")[0]["digest"] == quiet_digest(values)
    replayed = processes.master("--replay", "again", "--run-dir", folder)
    assert replayed.wait() == 0, replayed.said()
