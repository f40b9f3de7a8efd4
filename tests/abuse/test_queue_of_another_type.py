"""A key of the run's own queue that is not what RQ makes of it: any worker can write one."""

from __future__ import annotations

import pytest
import redis

from tests.integration.processes import CARTPOLE, Processes, flags, wait_for

QUEUE = "rq:queue:mine"


def set_to(client: redis.Redis, key: str, kind: str) -> None:
    client.delete(key)
    if kind == "string":
        client.set(key, "x")
    else:
        client.hset(key, "x", "y")


@pytest.mark.parametrize(("key", "kind"), [(QUEUE, "string"), ("rq:workers", "hash")])
def test_a_key_of_the_queue_of_another_type_is_removed_and_the_run_is_trained(
    redis_client: redis.Redis, valkey_url: str, processes: Processes, key: str, kind: str
) -> None:
    set_to(redis_client, key, kind)
    words = (*flags(CARTPOLE), "--run", "typed", "--queue", "mine", "--workers", 0)
    master = processes.master(*words, url=valkey_url)
    wait_for(lambda: redis_client.type(QUEUE) == b"list", "a seat is open")
    processes.worker(valkey_url, "--burst", "mine")
    assert master.wait(120) == 0, master.said()
    assert f"removed {key}, which was a {kind}, not a " in master.said()
    assert "Traceback" not in master.said()
