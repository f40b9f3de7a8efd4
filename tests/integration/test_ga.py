"""The genetic algorithm through real workers: the same bits at any number of them, resumed,
replayed, and without generations.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from master.storage.replay_log import ReplayStep, list_log_files, read_frames
from tests.integration.processes import (
    WALKER,
    Master,
    Processes,
    Seen,
    flags,
    quiet_digest,
    wait_for,
)

GA: dict[str, Any] = {
    **WALKER,
    "strategy": "ga",
    "truncation": 4,
    "candidates": 3,
    "elite_episodes": 3,
    "generations": 6,
    "eval_every": 2,
}
STEADY: dict[str, Any] = {
    "env": "BipedalWalker-v3",
    "strategy": "ga",
    "schedule": "async",
    "max_lag": 100,
    "seed": 11,
    "population": 16,
    "truncation": 4,
    "candidates": 3,
    "elite_episodes": 3,
    "step_limit": "60",
    "eval_every": 10,
    "eval_episodes": 2,
    "eval_step_limit": 60,
    "final_episodes": 2,
    "generations": 40,
    "target_reward": "none",
    "noise_size": 2**18,
}


def test_a_killed_master_goes_on_and_its_elite_is_a_list_of_seeds(
    valkey_url: str,
    redis_client: redis.Redis,
    processes: Processes,
    tmp_path: Path,
    short_folder: Path,
) -> None:
    seen, folder = Seen(redis_client, "lineage"), tmp_path / "lineage"
    worker = processes.worker(valkey_url)
    about = ("--run-dir", folder, "--json")
    first = processes.master(*flags(GA), "--run", "lineage", *about, url=valkey_url)
    seat = seen.joined(worker)
    wait_for(seen.has_reached(2), "generation 2")
    horse = seen.freeze_holding(seat)
    first.signal(signal.SIGKILL)
    first.wait()
    os.kill(horse, signal.SIGCONT)
    second = processes.master("--resume", "lineage", *about, url=valkey_url)
    assert second.wait() == 0, second.said()
    digest = second.events("summary")[0]["digest"]
    assert digest == quiet_digest(GA)
    again = processes.master(
        "--replay", "lineage", "--run-dir", folder, "--noise-dir", short_folder / "noise"
    )
    assert again.wait() == 0 and digest in again.said(), again.said()
    play = [processes.rq.parent / "es-play"]
    written = processes.start(*play, folder, "--export", tmp_path / "elite.json")
    assert written.wait() == 0, written.said()
    played = processes.start(*play, tmp_path / "elite.json", "--json")
    assert played.wait() == 0, played.said()
    assert json.loads(played.out.read_text())["equal"] is True


def test_without_generations_every_answer_counts_once_and_a_replay_repeats_the_run(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    tmp_path: Path,
    short_folder: Path,
) -> None:
    seen, pair = Seen(redis_client, "steady"), [processes.worker(valkey_url) for _ in range(2)]
    run = start_master("steady", STEADY)
    for one in pair:
        seen.joined(one)
    summary = run.summary()
    steps = [
        ReplayStep.decode(frame.payload)
        for path in list_log_files(tmp_path / "steady" / "replay")
        for frame in list(read_frames(path))[1:]
    ]
    used, tried = (
        Counter(tuple(each) for step in steps for each in getattr(step, kind).tolist())
        for kind in ("used", "tried")
    )
    assert (
        len(steps) == STEADY["generations"]
        and set(used.values()) == {1}
        and set(tried.values()) == {1}
    )
    assert {len(step.fitness) for step in steps} >= {2}, "batches are small"
    assert any("elite_fitness" in record for record in run.heard.records)
    assert not list(redis_client.scan_iter(f"{seen.keys.prefix}results:*"))
    again = processes.master(
        "--replay",
        "steady",
        "--run-dir",
        tmp_path / "steady",
        "--noise-dir",
        short_folder / "noise",
    )
    assert again.wait() == 0 and summary["digest"] in again.said(), again.said()
