"""One configuration and seed end with the same bits, whoever computed them and whatever happened
meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import redis

from master.loop.listeners import Outcome
from tests.integration.processes import (
    NERVOUS,
    WALKER,
    Master,
    Processes,
    Seen,
    flags,
    quiet_digest,
    wait_for,
)


def contributors(one: Master) -> int:
    """The most workers whose answers counted in one generation."""
    return max(record["workers"] for record in one.heard.records)


def test_one_real_worker_gives_the_bits_of_the_ring_in_memory(
    valkey_url: str, start_master: Callable[..., Master], processes: Processes
) -> None:
    run = start_master("alone", WALKER)
    processes.worker(valkey_url)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert len(run.heard.records) == WALKER["generations"] + 1
    assert all(record["workers"] == 1 for record in run.heard.records)
    assert max(record["population"] for record in run.heard.records) > WALKER["population"]
    assert len({record["step_limit"] for record in run.heard.records}) > 2


def test_a_real_worker_on_envpool_gives_the_bits_of_the_lean_ring_in_memory(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    pytest.importorskip("envpool", reason="envpool is not installed")
    values = {
        **WALKER,
        "env": "BipedalWalker-v3",
        "population": 32,
        "min_steps": 0,
        "generations": 3,
    }
    run = start_master("pool", values)
    seen = Seen(redis_client, "pool")
    seat = seen.joined(processes.worker(valkey_url))
    assert seen.workers()[seat]["backend"] == "envpool"
    assert run.summary()["digest"] == quiet_digest({**values, "backend": "lean"})


def test_two_workers_and_blocks_of_another_size_give_the_same_bits(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    both = [processes.worker(valkey_url), processes.worker(valkey_url)]
    run = start_master("pair", {**WALKER, "block": 3})
    for one in both:
        Seen(redis_client, "pair").joined(one)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert contributors(run) == 2


def test_the_workers_of_a_host_fetch_each_publication_once_between_them(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    trio = [processes.worker(valkey_url) for _ in range(3)]
    values = {
        **WALKER,
        "policy": "mlp",
        "hidden": (512, 512),
        "population": 60,
        "step_limit": "60",
        "noise_size": 2**20,
        "eval_every": 0,
        "eval_episodes": None,
        "block": 1,
    }
    run = start_master("shared", values)
    for one in trio:
        Seen(redis_client, "shared").joined(one)
    before, closed = sent(redis_client), int(Seen(redis_client, "shared").progress()["generation"])
    run.summary()
    size = 4 * 2 * (24 * 512 + 512 + 512 * 512 + 512 + 4 * 512 + 4)  # centre and deviations
    assert contributors(run) == 3
    assert sent(redis_client) - before < 1.5 * size * (values["generations"] + 2 - closed)


def sent(client: redis.Redis) -> int:
    """Bytes that have left the server."""
    return int(client.info("stats")["total_net_output_bytes"])


def test_workers_killed_while_they_hold_blocks_change_no_bit(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "deaths")
    trio = [processes.worker(valkey_url, clocks=NERVOUS) for _ in range(3)]
    run = start_master("deaths", {**WALKER, "block": 1}, clocks=NERVOUS)
    for victim in trio[:2]:
        horse = seen.freeze_holding(seen.joined(victim))
        victim.signal(signal.SIGKILL)
        os.kill(horse, signal.SIGKILL)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert run.total("recovered") >= 2
    assert contributors(run) >= 1


def test_a_master_killed_in_a_generation_and_resumed_changes_no_bit(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    seen = Seen(redis_client, "phoenix")
    worker = processes.worker(valkey_url)
    first = processes.master(*flags(WALKER), "--run", "phoenix", "--json", url=valkey_url)
    seat = seen.joined(worker)
    wait_for(seen.has_reached(2), "generation 2")
    horse = seen.freeze_holding(seat)
    generation = seen.generation()
    first.signal(signal.SIGKILL)
    first.wait()
    os.kill(horse, signal.SIGCONT)
    second = processes.master("--resume", "phoenix", "--json", url=valkey_url)
    assert second.wait() == 0, second.said()
    assert second.events("summary")[0]["digest"] == quiet_digest(WALKER)
    rest = second.events("generation")
    assert rest[0]["generation"] == generation
    assert rest[0]["publication"] == first.events("generation")[-1]["publication"].replace(
        f"{generation - 1}.", f"{generation}."
    )
    assert all(record["workers"] == 1 for record in rest)


# --- the digest would notice


def bits(outcome: Outcome) -> tuple[str, bytes, bytes]:
    """The parameters, and the statistics in float64."""
    moments = outcome.state.moments
    return outcome.digest, moments.mean.tobytes(), moments.m2.tobytes()
