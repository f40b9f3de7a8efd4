"""--schedule async with real workers: nothing counts twice, and a replay repeats the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from master.storage.replay import learn_again
from tests.integration.processes import Master, Processes, Seen

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


def uses_in(folder: Path, noise: Path) -> Counter[tuple[int, ...]]:
    """How often each (generation, slot) was learnt from, by the run's log."""
    batches = [
        chosen.plans(chosen.trained).tolist()
        for _, _, chosen in learn_again(folder.name, folder, noise)
        if chosen is not None
    ]
    assert all(len(batch) == PAIRS for batch in batches)
    return Counter(tuple(each) for batch in batches for each in batch)


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
    assert set(uses_in(tmp_path / "free", short_folder / "noise").values()) == {1}
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
        and "audit is 0.1, but the schedule async does not use it" in refused.said()
    )
