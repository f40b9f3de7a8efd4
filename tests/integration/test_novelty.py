"""Novelty search through real workers: the same bits whoever plays, and across a killed master."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

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
SEEK: dict[str, Any] = {
    **WALKER,
    "strategy": "novelty",
    "novelty": "nsra",
    "members": 3,
    "neighbours": 3,
    "behaviour_episodes": 2,
    "generations": 6,
}


def test_novelty_gives_the_same_bits_with_three_workers_of_which_one_is_killed(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "seek")
    workers = [processes.worker(valkey_url, clocks=NERVOUS) for _ in range(3)]
    run = start_master("seek", {**SEEK, "block": 1}, clocks=NERVOUS)
    seats = [seen.joined(one) for one in workers]
    seen.kill_holding(seats[0], workers[0])
    training = (
        seen.generation() < SEEK["generations"] - 1
    )  # what the last moments take from it no generation tells
    assert run.summary()["digest"] == quiet_digest(SEEK)
    assert run.total("recovered") + run.total("reissued") >= training, (
        "what it held was played by another"
    )


def test_novelty_goes_on_where_its_master_was_killed_and_its_log_can_be_replayed(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    seen = Seen(redis_client, "again")
    worker = processes.worker(valkey_url)
    folder = processes.folder / "again"
    first = processes.master(
        *flags(SEEK), "--run", "again", "--run-dir", folder, "--json", url=valkey_url
    )
    horse = seen.freeze_holding(seen.joined(worker))
    first.signal(signal.SIGKILL)
    first.wait()
    os.kill(horse, signal.SIGCONT)
    second = processes.master("--resume", "again", "--run-dir", folder, "--json", url=valkey_url)
    assert second.wait() == 0, second.said()
    assert second.events("summary")[0]["digest"] == quiet_digest(SEEK)
    replayed = processes.master("--replay", "again", "--run-dir", folder)
    assert replayed.wait() == 0, replayed.said()
