"""--schedule async with real workers: nobody waits for a straggler, kills cost nothing twice, a
replay repeats the run.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from es_queue.protocol.messages import publication_generation
from master.storage.replay_log import ReplayStep, list_log_files, read_frames
from tests.integration.processes import NERVOUS, Master, Processes, Seen, flags, wait_for

VALUES: dict[str, Any] = {
    "env": "BipedalWalker-v3",
    "strategy": "pgpe",
    "schedule": "async",
    "max_lag": 100,
    "seed": 11,
    "population": 8,
    "step_limit": "60",
    "eval_every": 10,
    "eval_episodes": 2,
    "eval_step_limit": 60,
    "final_episodes": 2,
    "generations": 40,
    "target_reward": "none",
    "noise_size": 2**18,
}
PAIRS = VALUES["population"] // 2
LONG = {**VALUES, "generations": 10**6}


def uses_in(folder: Path) -> Counter[tuple[int, ...]]:
    """How often each (generation, slot) was learnt from, by the run's log."""
    steps = [
        ReplayStep.decode(frame.payload)
        for path in list_log_files(folder / "replay")
        for frame in list(read_frames(path))[1:]
    ]
    assert [step.generation for step in steps] == list(range(len(steps)))
    assert all(len(step.fitness) == PAIRS for step in steps)
    return Counter(tuple(each) for step in steps for each in step.used.tolist())


def keys_of(client: redis.Redis, run: str, kind: str) -> list[bytes]:
    return list(client.scan_iter(f"{Seen(client, run).keys.prefix}{kind}:*"))


def test_two_workers_train_a_run_that_a_replay_repeats_and_leave_nothing_open(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    tmp_path: Path,
    short_folder: Path,
) -> None:
    seen, pair = Seen(redis_client, "free"), [processes.worker(valkey_url) for _ in range(2)]
    run = start_master("free", {**VALUES, "generations": 60})
    for one in pair:
        seen.joined(one)
    summary = run.summary()
    assert (
        summary["state"] == "finished"
        and summary["generation"] == 60
        and summary["reproducible"] is False
    )
    assert max(record["workers"] for record in run.heard.records) == 2
    assert max(record["lag_max"] for record in run.heard.records if "lag_max" in record) >= 1
    assert set(uses_in(tmp_path / "free").values()) == {1}
    assert (
        keys_of(redis_client, "free", "results")
        == keys_of(redis_client, "free", "parameters")
        == []
    )
    again = processes.master(
        "--replay", "free", "--run-dir", tmp_path / "free", "--noise-dir", short_folder / "noise"
    )
    assert again.wait() == 0, again.said()
    assert summary["digest"] in again.said()
    assert seen.progress()["schedule"].startswith("async: not bit-reproducible")
    refused = processes.master(
        "--resume", "free", "--audit", 0.1, "--run-dir", tmp_path / "free", url=valkey_url
    )
    assert (
        refused.wait() == 2
        and "schedule is async, but audit needs generations that close on their own slots"
        in refused.said()
    )


def test_a_straggler_holds_nothing_up_and_counts_when_it_comes(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    tmp_path: Path,
) -> None:
    seen, pair = Seen(redis_client, "slow"), [processes.worker(valkey_url) for _ in range(2)]
    run = start_master("slow", {**LONG, "eval_every": 0, "eval_episodes": None})
    seats = [seen.joined(one) for one in pair]

    def held_in_training() -> int | None:
        pid = seen.freeze_holding(seats[0])
        if " train " in seen.claims(seats[0])[0]:
            return pid
        os.kill(pid, signal.SIGCONT)
        return None

    pid = wait_for(held_in_training, "it holds a training block")
    (held,) = seen.claims(seats[0])
    publication, _, start, _ = held.split(" ")
    generation = int(publication.partition(".")[0])
    wait_for(seen.has_reached(generation + 5), "the others go on")
    assert seen.keys.results(publication).encode() in keys_of(redis_client, "slow", "results")
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: seen.claims(seats[0]) != [held], "it has answered")
    after = seen.generation()
    wait_for(seen.has_reached(after + 3), "its answer is used")
    run.stop()
    # Row 0 of the table is the unperturbed policy.
    assert (publication_generation(publication), int(start) - 1) in uses_in(tmp_path / "slow")


def test_workers_killed_while_they_hold_blocks_cost_their_blocks_alone(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    tmp_path: Path,
) -> None:
    seen = Seen(redis_client, "deaths")
    trio = [processes.worker(valkey_url, clocks=NERVOUS) for _ in range(3)]
    run = start_master("deaths", LONG, clocks=NERVOUS)
    for victim in trio[:2]:
        seat = seen.joined(victim)
        horse = seen.freeze_holding(seat)
        victim.signal(signal.SIGKILL)
        os.kill(horse, signal.SIGKILL)
        wait_for(lambda seat=seat: not seen.claims(seat), "its claims are taken from it")
    reached = seen.generation()
    wait_for(seen.has_reached(reached + 12), "the last worker goes on, evaluations and all")
    run.stop()
    assert set(uses_in(tmp_path / "deaths").values()) == {1}
    assert run.total("recovered") >= 2


def test_a_master_killed_and_resumed_counts_nothing_twice(
    valkey_url: str,
    redis_client: redis.Redis,
    processes: Processes,
    tmp_path: Path,
    short_folder: Path,
) -> None:
    seen, folder = Seen(redis_client, "phoenix"), tmp_path / "phoenix"
    pair = [processes.worker(valkey_url) for _ in range(2)]
    about = ("--run-dir", folder, "--json")
    first = processes.master(*flags(LONG), "--run", "phoenix", *about, url=valkey_url)
    for one in pair:
        seen.joined(one)
    wait_for(seen.has_reached(8), "generation 8")
    first.signal(signal.SIGKILL)
    first.wait()
    left = seen.generation()
    second = processes.master(
        "--resume", "phoenix", "--generations", left + 12, *about, url=valkey_url
    )
    assert second.wait() == 0, second.said()
    (summary,) = second.events("summary")
    assert summary["generation"] == left + 12 and summary["reproducible"] is False
    assert second.events("generation")[0]["generation"] == left
    uses = uses_in(folder)
    assert set(uses.values()) == {1} and sum(uses.values()) == PAIRS * (left + 12)
    again = processes.master(
        "--replay", "phoenix", "--run-dir", folder, "--noise-dir", short_folder / "noise"
    )
    assert again.wait() == 0, again.said()
    assert summary["digest"] in again.said()
