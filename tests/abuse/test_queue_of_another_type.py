"""A key of the run's own queue that is not what RQ makes of it: any worker can write one."""

from __future__ import annotations

import pytest
import redis

from tests.integration.processes import CARTPOLE, Processes, Seen, flags, wait_for

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


def test_a_queue_that_becomes_a_string_during_the_run_does_not_end_it(
    redis_client: redis.Redis, valkey_url: str, processes: Processes
) -> None:
    words = (*flags(CARTPOLE), "--run", "typed", "--queue", "mine", "--workers", 0)
    master = processes.master(*words, url=valkey_url)
    wait_for(lambda: Seen(redis_client, "typed").progress().get("publication"), "a publication")
    wait_for(lambda: redis_client.llen(QUEUE), "a seat is open")
    set_to(redis_client, QUEUE, "string")
    wait_for(lambda: redis_client.type(QUEUE) == b"list", "a seat is open again")
    processes.worker(valkey_url, "--burst", "mine")
    assert master.wait(120) == 0, master.said()
