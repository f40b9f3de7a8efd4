"""One configuration and seed end with the same bits, whoever computed them and whatever happened
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import redis

from tests.integration.processes import (
    WALKER,
    Master,
    Processes,
    Seen,
)


def contributors(one: Master) -> int:
    """The most workers whose answers counted in one generation."""
    return max(record["workers"] for record in one.heard.records)


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
