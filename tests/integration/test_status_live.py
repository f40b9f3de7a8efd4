"""es-status beside real runs: watched to their end, left by their master, and on disk when the
server has gone too.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import redis

from tests.integration.processes import BIN, CARTPOLE, Processes, Seen, Started, flags, wait_for

ENDLESS = {**CARTPOLE, "generations": 100_000}
STATUS = BIN / "es-status"


def pages(watching: Started) -> list[dict[str, Any]]:
    """The whole lines of JSON so far."""
    return [json.loads(line) for line in watching.out.read_text().split("\n")[:-1]]


def test_a_run_is_watched_until_it_has_finished(
    processes: Processes, redis_client: redis.Redis, valkey_url: str
) -> None:
    master = processes.master(
        "--run", "watched", *flags({**ENDLESS, "eval_every": 2, "eval_episodes": 2}), url=valkey_url
    )
    worker = processes.worker(valkey_url)
    seen = Seen(redis_client, "watched")
    seen.joined(worker)
    wait_for(seen.has_reached(6), "some generations are done")
    watching = processes.start(
        STATUS, "watched", "--redis-url", valkey_url, "--watch", "--every", "0.2", "--json"
    )
    wait_for(lambda: len(pages(watching)) > 2, "it looks again and again")
    master.signal(signal.SIGINT)
    assert master.wait() == 130
    assert watching.wait() == 10, watching.said()
    during, last = pages(watching)[0], pages(watching)[-1]
    assert (during["health"], during["state"], last["health"], last["state"]) == (
        "healthy",
        "running",
        "done",
        "stopped",
    )
    assert (
        during["evaluations"][0]["generation"] == 0
        and during["master"] == f"{during['living'][0]['host']} pid {master.pid}"
    )
    assert (
        0 <= during["living"][0]["seen"] < 5 and during["budget"]["generations"]["limit"] == 100_000
    )


def test_a_run_of_a_private_server_is_followed_into_its_folder(processes: Processes) -> None:
    master = processes.master("--run", "private", "--workers", "1", *flags(ENDLESS))
    folder = processes.folder / "runs" / "private"
    wait_for((folder / "metrics.jsonl").exists, "a generation is done", 60)
    watching = processes.start(STATUS, "private", "--watch", "--every", "0.2", "--json")
    wait_for(lambda: pages(watching), "it is watched")
    master.signal(signal.SIGINT)
    assert master.wait() == 130 and watching.wait() == 10, watching.said()
    listed = processes.start(STATUS, "--json")
    assert listed.wait() == 0
    (run,) = json.loads(listed.said())["runs"]
    assert (run["run"], run["on_disk"], run["state"], run["health"]) == (
        "private",
        True,
        "stopped",
        "done",
    )
    assert run["resume"].endswith("es-master --resume private")


def test_a_run_whose_master_was_killed_is_orphaned_and_watched_on(
    processes: Processes, redis_client: redis.Redis, valkey_url: str
) -> None:
    master = processes.master("--run", "left", *flags(ENDLESS), url=valkey_url)
    processes.worker(valkey_url)
    wait_for(Seen(redis_client, "left").has_reached(1), "a generation is done")
    watching = processes.start(
        STATUS, "left", "--redis-url", valkey_url, "--watch", "--every", "0.2", "--json"
    )
    wait_for(lambda: pages(watching), "it is watched")
    master.signal(signal.SIGKILL)
    wait_for(lambda: pages(watching)[-1]["health"] == "orphaned", "the lease lapses")
    once = processes.start(STATUS, "left", "--redis-url", valkey_url)
    assert once.wait() == 12
    assert (
        f"es-master --resume left --redis-url {valkey_url}" in once.said()
        and f"es-master --purge left --redis-url {valkey_url}" in once.said()
    )
    assert watching.process.poll() is None
    watching.signal(signal.SIGINT)
    assert watching.wait() == 130 and watching.err.read_text() == ""
