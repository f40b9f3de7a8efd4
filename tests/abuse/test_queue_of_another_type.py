"""A key of the run's own queue that is not what RQ makes of it."""

from __future__ import annotations

from typing import Any

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


def sentence(master: Any) -> str:
    assert master.wait(60) == 3, master.said()
    *_, last = master.err.read_text().splitlines()
    assert "Traceback" not in master.said()
    return str(last)


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_queue_that_is_no_list_ends_the_run_in_one_sentence_that_names_it(
    redis_client: redis.Redis, valkey_url: str, processes: Processes, kind: str
) -> None:
    set_to(redis_client, QUEUE, kind)
    words = (*flags(CARTPOLE), "--run", "typed", "--queue", "mine", "--workers", 0)
    master = processes.master(*words, url=valkey_url)
    assert sentence(master).startswith(
        f"es-master: no seat can be opened: {QUEUE} is a {kind}, not a list: delete that key, or "
    )
    redis_client.delete(QUEUE)
    again = processes.master("--resume", "typed", "--workers", 1, url=valkey_url)
    assert again.wait(120) == 0, again.said()


def test_a_queue_that_becomes_a_string_during_the_run_ends_it_in_the_same_sentence(
    redis_client: redis.Redis, valkey_url: str, processes: Processes
) -> None:
    words = (*flags(CARTPOLE), "--run", "typed", "--queue", "mine", "--workers", 0)
    master = processes.master(*words, url=valkey_url)
    wait_for(lambda: Seen(redis_client, "typed").progress().get("publication"), "a publication")
    wait_for(lambda: redis_client.llen(QUEUE), "a seat is open")
    set_to(redis_client, QUEUE, "string")
    assert f"no seat can be opened: {QUEUE} is a string, not a list" in sentence(master)
