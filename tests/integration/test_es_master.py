"""es-master and its kin as people start them: a private server, Ctrl-C, resume, JSON, es-play,
train() from Python.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.config.recipes import resolve
from tests.integration.processes import (
    BIN,
    WALKER,
    Processes,
    Seen,
    Started,
    flags,
    folder_variables,
    quiet_digest,
    wait_for,
)

SUMMARY = {
    "event",
    "state",
    "interrupted",
    "reason",
    "run",
    "run_dir",
    "digest",
    "generation",
    "env_steps",
    "eval_steps",
    "episodes",
    "seconds",
    "eval_mean",
    "eval_std",
    "eval_min",
    "eval_episodes",
    "eval_failed_seeds",
    "eval_info",
    "confirm_mean",
    "reproducible",
    "seed",
    "best_checkpoint",
    "last_checkpoint",
}


@dataclass
class Done:
    """A finished run without a Redis of anybody's."""

    process: Started
    processes: Processes

    @property
    def summary(self) -> dict[str, Any]:
        return self.process.events()[-1]


@pytest.fixture(scope="module")
def done(short_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    folder = tmp_path_factory.mktemp("done")
    processes = Processes(folder, folder_variables(short_folder))
    try:
        process = processes.master(*flags(WALKER), "--run", "done", "--workers", 1, "--json")
        assert process.wait() == 0, process.said()
        yield Done(process, processes)
    finally:
        processes.end()


def test_without_a_redis_it_trains_on_a_private_server_and_leaves_no_process(done: Done) -> None:
    assert done.summary["digest"] == quiet_digest(WALKER)
    assert done.processes.living() == {}
    lines = (done.processes.folder / "runs/done/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["workers"] for line in lines] == [1] * (WALKER["generations"] + 1)


def test_with_json_every_line_is_an_object_and_the_last_is_the_summary(done: Done) -> None:
    events = done.process.events()
    assert all(isinstance(one, dict) and "event" in one for one in events)
    assert done.process.err.read_text() == ""
    assert events[-1]["event"] == "summary"
    assert set(events[-1]) == SUMMARY
    assert (events[-1]["state"], events[-1]["reason"], events[-1]["seed"]) == (
        "finished",
        "generations",
        WALKER["seed"],
    )
    stored = json.loads((done.processes.folder / "runs/done/summary.json").read_text())
    assert stored == {name: value for name, value in events[-1].items() if name != "event"}


def test_es_play_repeats_the_final_evaluation_to_the_last_digit(done: Done) -> None:
    played = done.processes.start(BIN / "es-play", done.summary["best_checkpoint"])
    assert played.wait() == 0, played.said()
    assert (
        f"equal to the recorded evaluation to the last digit: {done.summary['eval_mean']!r}"
        in played.out.read_text()
    )


def started_privately(processes: Processes, run: str) -> tuple[Started, Seen, str, redis.Redis]:
    """A run with a private server and a worker of its own that has joined."""
    process = processes.master(*flags(WALKER), "--run", run, "--workers", 1, "--json")
    url = wait_for(lambda: process.events("started"), "the run starts")[0]["redis"]
    client = redis.Redis.from_url(url)
    seen = Seen(client, run)
    seat = wait_for(lambda: next(iter(seen.workers()), ""), "its worker joins")
    return process, seen, seat, client


def test_ctrl_c_leaves_a_checkpoint_and_no_process_and_resume_ends_with_the_undisturbed_bits(
    processes: Processes,
) -> None:
    process, seen, seat, client = started_privately(processes, "stopped")
    with client:
        wait_for(seen.has_reached(2), "generation 2")
        horse = seen.freeze_holding(seat)
    process.signal(signal.SIGINT)
    wait_for(lambda: process.events("summary"), "the master has stopped")
    os.kill(horse, signal.SIGCONT)
    assert process.wait() == 130, process.said()
    assert processes.living() == {}
    summary, note = process.events()[-2:]
    assert (summary["event"], summary["state"]) == ("summary", "stopped")
    assert summary["last_checkpoint"].endswith(f"generation-{summary['generation']:08d}.npz")
    assert (processes.folder / summary["last_checkpoint"]).is_file()
    assert note["event"] == "note"
    assert note["text"].endswith("es-master --resume stopped --workers 1")
    resumed = processes.master("--resume", "stopped", "--workers", 1, "--json")
    assert resumed.wait() == 0, resumed.said()
    assert resumed.events("generation")[0]["generation"] == summary["generation"]
    assert resumed.events()[-1]["digest"] == quiet_digest(WALKER)


def test_ctrl_c_twice_ends_everything_at_once(processes: Processes) -> None:
    process, seen, seat, client = started_privately(processes, "twice")
    with client:
        seen.freeze_holding(seat)  # so that the orderly end would take many seconds
    process.signal(signal.SIGINT)
    wait_for(lambda: process.events("summary"), "the first Ctrl-C was heard")
    process.signal(signal.SIGINT)
    began = time.monotonic()
    assert process.wait() == 130
    wait_for(lambda: not processes.living(), "no process is left", 5)
    assert time.monotonic() - began < 5


TRAIN = """
import json, sys
from es_queue import RunConfig
from es_queue import train
values = json.loads(sys.argv[1])
heard = []
def hear(record):
    heard.append(record["generation"])
    return record["generation"] < 2
if __name__ == "__main__":
    summary = train(RunConfig(**values), hear, workers=1, run="python", progress=True)
    print(json.dumps({**summary, "heard": heard}))
"""


def test_train_from_python_ends_when_told_to_with_the_commands_bits(processes: Processes) -> None:
    config = {
        name: value
        for name, value in resolve(WALKER).to_dict().items()
        if name not in ("hidden", "wrapper", "env_arg")
    }
    script = processes.start(sys.executable, "-c", TRAIN, json.dumps(config))
    assert script.wait() == 0, script.said()
    *shown, last = script.out.read_text().splitlines()
    summary = json.loads(last)
    assert (summary["state"], summary["reason"]) == ("finished", "stopped by the caller")
    lines = [line.partition(" of ")[0] for line in shown if line.startswith("generation ")]
    assert lines[:1] == ["generation 0"] and any(line.startswith("run python: ") for line in shown)
    written = (processes.folder / "runs" / "python" / "metrics.jsonl").read_text().splitlines()
    assert summary["heard"] == [
        0,
        1,
        2,
    ]  # the callback returned False then, and is not called again
    assert [json.loads(line)["generation"] for line in written] == [0, 1, 2, 3]
    assert summary["generation"] == 3
    assert summary["digest"] == quiet_digest(WALKER, 3)
    assert processes.living() == {}
