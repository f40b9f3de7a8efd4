"""A study's loop with scripted runs: who is started when, and what each end means."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import master.sweep.loop as module
from es_queue.config.run_config import RunConfig
from es_queue.errors import RedisError, RunBusyError
from es_queue.util.file_lock import take_lock
from master.run.launch import Launch
from master.run.manifest import repro_command
from master.run.run_paths import RunPaths
from master.services import child_process
from master.sweep import seed_process
from master.sweep.loop import Sweep
from master.sweep.record import (
    FAILED,
    FINISHED,
    STOPPED,
    WAITING,
    SeedRun,
    SweepRecord,
    load_record,
)
from master.sweep.seed_process import LONGEST_LINE, ChildMaster, JsonLineParser

CONFIG = RunConfig(env="CartPole-v1", generations=9)
GENERATION = {
    "event": "generation",
    "generation": 3,
    "env_steps": 1200,
    "return_mean": 5.0,
    "steps_per_second": 10.0,
    "workers": 1,
}

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


def test_all_finished_is_code_0_and_every_run_is_stored(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study(3, 1, 2).run() == 0
    assert stage.seeds() == [3, 1, 2]
    assert states() == [FINISHED] * 3
    assert stage.ended_household == 1
    last = told(capsys)[-1]
    assert (last["event"], last["state"], last["mean"], last["runs_counted"]) == (
        "study",
        FINISHED,
        7.0,
        3,
    )


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


def test_a_run_that_says_it_is_done_without_having_finished_has_failed(stage: Stage) -> None:
    stage.acts = {1: [([], 0)]}
    assert study(1).run() == 1
    assert states() == [FAILED]


def test_a_run_that_somebody_else_stopped_makes_the_code_130(stage: Stage) -> None:
    stage.acts = {1: [([summary(STOPPED, None)], 130)]}
    assert study(1, 2).run() == 130
    assert states() == [STOPPED, FINISHED]


def test_a_run_whose_time_was_up_without_a_worker_is_stopped_and_the_code_is_0(
    stage: Stage,
) -> None:
    stage.acts = {1: [([summary(STOPPED, None)], 0)]}
    assert study(1, 2).run() == 0
    assert states() == [STOPPED, FINISHED]


def test_a_wish_to_stop_is_forwarded_once_and_what_waited_is_not_begun(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = Asked()
    stage.places = 2
    stage.acts = {1: [([GENERATION], None)], 2: [([], None)]}

    def ask_once_both_run() -> None:
        stop.requested = stop.requested or len(stage.alive) == 2

    stage.at_check = ask_once_both_run
    assert study(1, 2, 3, stop=stop).run() == 130
    assert sorted(stage.signals) == [(1, signal.SIGTERM), (2, signal.SIGTERM)]
    assert states() == [STOPPED, STOPPED, WAITING]
    assert stage.seeds() == [1, 2]
    (way_back,) = [
        one["text"] for one in told(capsys) if one["event"] == "note"
    ]  # the study's own alone
    assert way_back.endswith("es-master --resume base")


def test_a_run_that_was_killed_is_resumed_and_at_the_fourth_time_has_failed(stage: Stage) -> None:
    stage.acts = {1: [([], -9), ([], RunBusyError.exit_code), ([summary()], 0)], 2: [([], -9)] * 4}
    assert study(1, 2).run() == 137
    assert states() == [FINISHED, FAILED]
    assert stored().entries[1].why == "the environment fell over"
    assert [stage.seeds().count(seed) for seed in (1, 2)] == [3, 4]
    first, *later = [words for seed, words in stage.started if seed == 1]
    assert "--run" in first and "--resume" not in first
    assert all(words[words.index("--resume") + 1] == "base-s1" for words in later)


def test_a_busy_run_that_was_not_killed_before_has_failed(stage: Stage) -> None:
    stage.acts = {1: [([], RunBusyError.exit_code)]}
    assert study(1).run() == 4
    assert stage.seeds() == [1]


def test_a_redis_that_was_away_when_a_run_began_is_tried_again_but_not_one_that_ends_a_run(
    stage: Stage,
) -> None:
    stage.acts = {
        1: [([], 3), ([summary()], 0)],
        2: [([{"event": "started", "run": "base-s2"}], 3)],
    }
    assert study(1, 2).run() == 3
    assert states() == [FINISHED, FAILED]
    assert [stage.seeds().count(seed) for seed in (1, 2)] == [2, 1]


def test_a_run_that_was_killed_before_it_kept_anything_is_begun_again(stage: Stage) -> None:
    stage.holds = lambda run: False
    stage.acts = {1: [([], -9)]}
    config = Path("runs/base/s1/config.json")
    config.parent.mkdir(parents=True)
    config.touch()
    assert study(1).run() == 0
    assert ["--run" in words for _, words in stage.started] == [True, True]
    assert not config.exists()


def test_a_redis_that_does_not_answer_is_asked_again(stage: Stage) -> None:
    answers = iter([None, None, True])

    def holds(run: str) -> bool:
        found = next(answers)
        if found is None:
            raise RedisError("away")
        return found

    stage.holds = holds
    stage.acts = {1: [([], -9)]}
    assert study(1).run() == 0
    assert "--resume" in stage.started[1][1]


# --- who is started when


def test_no_more_runs_are_driven_at_a_time_than_there_are_workers(stage: Stage) -> None:
    stage.places = 2
    assert study(1, 2, 3, 4, 5).run() == 0
    assert stage.seeds() == [1, 2, 3, 4, 5]
    assert stage.most_alive == 2


def test_a_run_that_waits_to_be_started_again_keeps_its_place(stage: Stage) -> None:
    stage.places = 1
    stage.acts = {1: [([], -9)]}
    assert study(1, 2).run() == 0
    assert stage.seeds() == [1, 1, 2]


def test_resumed_finished_runs_stay_and_the_others_are_begun_or_resumed_under_the_changes(
    stage: Stage, tmp_path: Path
) -> None:
    entries = [
        SeedRun(1, "base-s1", FINISHED, True, 0, "", summary()),
        SeedRun(2, "base-s2", WAITING, True),
        SeedRun(3, "base-s3"),
    ]
    own = study(
        entries=entries,
        changes={"max_steps": 70, "target_reward": "-1.5"},
        warm_start="/w.npz",
        launch=Launch(json=True, queue="q", noise_dir=Path("n")),
    )
    assert own.run() == 0
    (second, words), (third, new) = stage.started
    common = ["--json", "--workers", "0", "--queue", "q", "--run-dir"]
    assert (second, words) == (
        2,
        [
            *common,
            "runs/base/s2",
            "--noise-dir",
            "n",
            "--resume",
            "base-s2",
            "--max-steps=70",
            "--target-reward=-1.5",
        ],
    )
    assert (third, new) == (
        3,
        [
            *common,
            "runs/base/s3",
            "--noise-dir",
            "n",
            "--run",
            "base-s3",
            *shlex.split(repro_command(replace(CONFIG, seed=3), Path("/w.npz")))[1:],
        ],
    )


def test_a_study_that_has_finished_starts_nothing(stage: Stage) -> None:
    assert study(entries=[SeedRun(1, "base-s1", FINISHED, True, 0, "", summary())]).run() == 0
    assert stage.started == []


def test_two_masters_do_not_drive_one_study(stage: Stage) -> None:
    paths = RunPaths("base", Path("runs/base"))
    paths.prepare()
    lock = take_lock(paths.run_dir / "study.lock")
    assert lock is not None
    with pytest.raises(RunBusyError, match="study base is led by another es-master"):
        study(1).run()
    os.close(lock)
    assert stage.started == []


def test_what_fails_in_the_middle_ends_the_runs_in_order(stage: Stage) -> None:
    stage.acts = {1: [([], None)]}

    def fill_disk() -> None:
        if stage.alive:
            raise OSError("no space")

    stage.at_check = fill_disk
    with pytest.raises(OSError, match="no space"):
        study(1).run()
    assert stage.signals[0] == (1, signal.SIGTERM)
    assert stage.ended_household == 1


# --- a real child


def test_a_child_is_told_the_server_by_its_environment_and_its_last_words_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = (
        'import os, sys; print(\'{"event": "note", "text": "%s"}\' % '
        "os.environ['RQ_REDIS_URL']); sys.exit('first\\nes-master: \\x1b[31mlast')"
    )
    monkeypatch.setattr(child_process, "RUN_MODULE", code)
    child = ChildMaster(["--json"], "redis://:secret@here", tmp_path / "logs/s1.err")
    assert b"secret" not in Path(f"/proc/{child.pid}/cmdline").read_bytes()
    deadline = time.monotonic() + 20
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert child.poll() == 1
    assert child.read_events() == [{"event": "note", "text": "redis://:secret@here"}]
    child.close()
    assert child.last_error_line() == "\\x1b[31mlast"


def test_lines_come_whole_however_they_are_cut_and_what_is_no_event_is_left_out() -> None:
    text = (
        b'{"event": "a"}\nnonsense\n[1]\n{"event": 5}\n{"event": "n", "x": NaN}\n'
        + b"x" * (LONGEST_LINE + 5)
        + b'\n{"event": "b"}\n{"event"'
    )
    for size in (1 << 16, 1 << 20, len(text)):
        lines = JsonLineParser()
        heard = [
            event
            for start in range(0, len(text), size)
            for event in lines.feed(text[start : start + size])
        ]
        assert [one["event"] for one in heard] == ["a", "b"]
        assert lines.feed(b': "c"}\n') == [{"event": "c"}]


def test_the_end_of_a_line_that_was_too_long_is_no_line_of_its_own() -> None:
    lines = JsonLineParser()
    assert lines.feed(b"x" * (LONGEST_LINE + 1)) == []
    assert lines.feed(b'{"event": "a"}\n{"event": "b"}\n') == [{"event": "b"}]
