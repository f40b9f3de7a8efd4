"""A study's loop with scripted runs: who is started when, and what each end means."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import master.sweep.loop as module
from es_queue.config.run_config import RunConfig
from es_queue.errors import RunBusyError
from es_queue.util.file_lock import take_lock
from master.run.launch import Launch
from master.run.run_paths import RunPaths
from master.sweep import seed_process
from master.sweep.loop import Sweep
from master.sweep.record import (
    FAILED,
    FINISHED,
    STOPPED,
    SeedRun,
    SweepRecord,
    load_record,
)

CONFIG = RunConfig(env="CartPole-v1", generations=9)

WAY_BACK = {
    "event": "note",
    "text": "stopped at generation 9, checkpoint x; go on with: es-master --resume base-s1",
}


def summary(state: str = FINISHED, mean: float | None = 7.0) -> dict[str, Any]:
    return {
        "event": "summary",
        "state": state,
        "generation": 9,
        "env_steps": 5000,
        "eval_mean": mean,
        "eval_std": 1.0,
        "eval_min": 5.0,
    }


class Stage:
    """What the runs do: for each start of a seed its events and exit code; a code of None runs
    until it is signalled.
    """

    def __init__(self) -> None:
        self.acts: dict[int, list[tuple[list[dict[str, Any]], int | None]]] = {}
        self.started: list[tuple[int, list[str]]] = []
        self.signals: list[tuple[int, signal.Signals]] = []
        self.alive: set[int] = set()
        self.most_alive = 0
        self.places = 100
        self.holds: Callable[[str], bool] = lambda run: True
        self.ended_household = 0
        self.at_check: Callable[[], None] = lambda: None

    def seeds(self) -> list[int]:
        return [seed for seed, _ in self.started]


class Actor:
    """A child by script."""

    def __init__(self, stage: Stage, words: list[str], log: Path) -> None:
        self.stage, self.seed = stage, int(log.stem[1:])
        stage.started.append((self.seed, words))
        acts = stage.acts.get(self.seed, [])
        self.events, self.code = acts.pop(0) if acts else ([summary()], 0)
        self.output, write = os.pipe()
        self.leave_reason = 0
        os.close(write)  # so that it can always be read
        stage.alive.add(self.seed)
        stage.most_alive = max(stage.most_alive, len(stage.alive))

    def read_events(self) -> list[dict[str, Any]]:
        heard, self.events = self.events, []
        return heard

    def poll(self) -> int | None:
        if self.leave_reason:  # an orderly end takes a while
            self.leave_reason -= 1
            return None
        if self.code is not None:
            self.stage.alive.discard(self.seed)
        return self.code

    def signal(self, number: signal.Signals) -> None:
        self.stage.signals.append((self.seed, number))
        if self.code is None:
            self.code, self.events, self.leave_reason = (
                (130, [summary(STOPPED, None), WAY_BACK], 3)
                if number == signal.SIGTERM
                else (-9, [], 0)
            )

    def close(self) -> None:
        os.close(self.output)

    def last_error_line(self) -> str:
        return "the environment fell over"


class Home:
    """Shared services that keep nothing."""

    redis_flags, url, name = "", "unix:///nowhere", "unix:///nowhere"

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def start(self) -> None: ...
    def kill(self) -> None: ...

    def restart_ended(self) -> None:
        self.stage.at_check()

    def start_information(self) -> dict[str, str]:
        return {"join": "rq worker"}

    def worker_places(self) -> int:
        return self.stage.places

    def has_checkpoint(self, run: str) -> bool:
        return self.stage.holds(run)

    def stop(self) -> None:
        self.stage.ended_household += 1


class Asked:
    """A wish to stop, or none yet."""

    requested = False

    def kill_with(self, kill: Callable[[], None], resume_command: Callable[[], str]) -> None: ...
    def begin(self) -> None: ...


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stage]:
    own = Stage()
    monkeypatch.setattr(
        seed_process, "ChildMaster", lambda words, url, log: Actor(own, list(words), log)
    )
    monkeypatch.setattr(module, "SharedServices", lambda launch, folder, modules: Home(own))
    monkeypatch.setattr(seed_process, "BACKOFF_SECONDS", (0.01, 0.01, 0.01))
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    yield own


def study(*seeds: int, stop: Any = None, launch: Launch | None = None, **more: Any) -> Sweep:
    entries = [SeedRun(seed, f"base-s{seed}") for seed in seeds]
    record = SweepRecord("base", CONFIG, more.pop("entries", entries), **more)
    return Sweep(
        record, RunPaths("base", Path("runs/base")), launch or Launch(json=True), stop or Asked()
    )


def stored() -> SweepRecord:
    return load_record(Path("runs/base"))


def states() -> list[str]:
    return [one.state for one in stored().entries]


def told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# --- ends and exit codes


def test_the_first_failure_gives_the_code_and_the_others_go_on(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.acts = {1: [([], 5)], 2: [([], 6)]}
    assert study(1, 2, 3).run() == 5
    assert states() == [FAILED, FAILED, FINISHED]
    entry = stored().entries[0]
    assert (entry.code, entry.why) == (5, "the environment fell over")
    last = [one for one in told(capsys) if one["event"] == "study"][-1]
    assert (last["state"], last["runs_counted"], last["runs_total"]) == (FAILED, 1, 3)


def test_a_run_that_was_killed_is_resumed_and_at_the_fourth_time_has_failed(stage: Stage) -> None:
    stage.acts = {1: [([], -9), ([], RunBusyError.exit_code), ([summary()], 0)], 2: [([], -9)] * 4}
    assert study(1, 2).run() == 137
    assert states() == [FINISHED, FAILED]
    assert stored().entries[1].why == "the environment fell over"
    assert [stage.seeds().count(seed) for seed in (1, 2)] == [3, 4]
    first, *later = [words for seed, words in stage.started if seed == 1]
    assert "--run" in first and "--resume" not in first
    assert all(words[words.index("--resume") + 1] == "base-s1" for words in later)


# --- who is started when


def test_two_masters_do_not_drive_one_study(stage: Stage) -> None:
    paths = RunPaths("base", Path("runs/base"))
    paths.prepare()
    lock = take_lock(paths.run_dir / "study.lock")
    assert lock is not None
    with pytest.raises(RunBusyError, match="study base is led by another es-master"):
        study(1).run()
    os.close(lock)
    assert stage.started == []


# --- a real child
