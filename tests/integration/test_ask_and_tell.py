"""Programs that ask for the trials of a run and tell their scores, with real processes."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

import es_queue
from es_queue import AskTell
from es_queue.errors import NoRunError, RedisError, UsageError
from es_queue.policies.saved_policy import load_policy
from master.services.private_server import PrivateServer
from tests.integration.processes import BIN, Processes, Seen, Started, flags, wait_for

OVEN: dict[str, Any] = {
    "objective": "ask",
    "parameters": 3,
    "strategy": "snes",
    "population": 12,
    "generations": 8,
    "seed": 3,
    "sigma": 1.0,
    "eval_every": 0,
    "final_episodes": 1,
    "noise_size": 2**16,
}
PROGRAM = """
import os, sys
import es_queue
from es_queue import AskTell

told, ends = 0, int(sys.argv[3])
with AskTell(sys.argv[1], sys.argv[2], lease=float(sys.argv[4])) as oven:
    while trial := oven.ask():
        if told == ends:
            os._exit(9)  # as if it were killed, with a trial in hand
        oven.tell(trial, -float(((trial.vector - 3) ** 2).sum()))
        told += 1
print("told", told)
"""


@pytest.fixture
def oven(processes: Processes, valkey_url: str) -> Any:
    def start(run: str, **values: Any) -> Started:
        return processes.master(*flags({**OVEN, **values}), "--run", run, "--json", url=valkey_url)

    return start


def program(processes: Processes, url: str, run: str, ends: int = -1, lease: float = 60) -> Started:
    return processes.start(sys.executable, "-c", PROGRAM, run, url, ends, lease)


def join(run: str, url: str, lease: float = 60) -> AskTell:
    """Wait for the run, then join it."""

    def found() -> AskTell | None:
        try:
            return AskTell(run, url, lease)
        except NoRunError:
            return None

    return wait_for(found, "the run is there")


def finish(oven: AskTell) -> int:
    told = 0
    while trial := oven.ask():
        told += oven.tell(trial, -float(((trial.vector - 3) ** 2).sum()))
    return told


def test_any_number_of_programs_that_die_or_live_give_the_same_parameters(
    processes: Processes, oven: Any, valkey_url: str
) -> None:
    digests = set()
    for run, ends in (("alone", [-1]), ("dying", [5, 20, -1, -1])):
        master = oven(run)
        join(run, valkey_url).close()
        programs = [program(processes, valkey_url, run, end) for end in ends]
        assert master.wait() == 0, master.said()
        for one, end in zip(programs, ends, strict=True):
            assert one.wait() in ((0,) if end < 0 else (0, 9))
        digests.add(master.events("summary")[-1]["digest"])
        vector = load_policy(processes.folder / "runs" / run).vector
        assert abs(vector - 3).max() < 1
    assert len(digests) == 1


def test_a_killed_master_continues_while_programs_ask(
    processes: Processes, oven: Any, valkey_url: str, redis_client: redis.Redis
) -> None:
    killed = oven("killed", generations=40)
    join("killed", valkey_url).close()
    asking = program(processes, valkey_url, "killed")
    wait_for(Seen(redis_client, "killed").has_reached(5), "some generations")
    killed.signal(signal.SIGKILL)
    resumed = processes.master("--resume", "killed", "--json", url=valkey_url)
    assert resumed.wait() == 0, resumed.said()
    assert asking.wait() == 0 and "told" in asking.said()
    quiet = oven("quiet", generations=40)
    with join("quiet", valkey_url) as one:
        finish(one)
    assert quiet.wait() == 0
    digests = [run.events("summary")[-1]["digest"] for run in (resumed, quiet)]
    assert digests[0] == digests[1]


def test_a_trial_that_is_not_told_within_its_lease_is_asked_again_elsewhere(
    oven: Any, valkey_url: str
) -> None:
    master = oven("lease", generations=1, population=2, final_episodes=0)
    with join("lease", valkey_url, lease=0.5) as idle, join("lease", valkey_url) as busy:
        # A generation is two individuals and the unperturbed vector.
        first = [idle.ask(), idle.ask(), idle.ask()]
        assert None not in first and busy.ask(wait=0.05) is None
        vectors = {one.vector.tobytes() for one in first if one}
        again = [busy.ask(wait=30), busy.ask(wait=30), busy.ask(wait=30)]
        assert {one.vector.tobytes() for one in again if one} == vectors
        assert not any(idle.tell(one, 1.0) for one in first if one)  # too late
        assert all(busy.tell(one, 1.0) for one in again if one)
        assert busy.ask() is None  # the run has ended
    assert master.wait() == 0, master.said()


def test_a_score_that_is_not_finite_is_a_failed_trial(oven: Any, valkey_url: str) -> None:
    master = oven("failing", generations=1, population=4)
    with join("failing", valkey_url) as program:
        centre, bad = program.ask(), program.ask()  # the unperturbed vector, and an individual
        assert centre and bad and program.tell(centre, 1.0) and program.tell(bad, float("nan"))
        while trial := program.ask():
            is_bad = trial.vector.tobytes() == bad.vector.tobytes()
            program.tell(trial, float("nan") if is_bad else 1.0)
    assert master.wait() == 0 and master.events("generation")[0]["failed"] == 1


def test_a_run_of_which_every_trial_fails_ends_with_what_was_told(
    processes: Processes, oven: Any, valkey_url: str
) -> None:
    master = oven("hopeless", population=4)
    with join("hopeless", valkey_url) as program:
        while trial := program.ask():
            program.tell(trial, float("nan"))
        assert program.ended == "failed"
    assert master.wait() == 5
    assert re.search(
        "every vector of a generation failed; the last was (train|centre) slot", master.said()
    )
    assert "the score that was told is nan, not a finite number" in master.said()
    assert "episode" not in master.said() and "environment" not in master.said()
    shown = processes.start(BIN / "es-status", "--redis-url", valkey_url, "hopeless", "--errors")
    assert shown.wait() == 0 and "Traceback" not in shown.said()


def test_a_private_server_of_programs_starts_no_workers(processes: Processes) -> None:
    values = {**OVEN, "generations": 1, "population": 2, "final_episodes": 0}
    master = processes.master(*flags(values), "--run", "here", "--json")
    folder = processes.folder / "runs" / "here"
    server = PrivateServer(folder / "redis")
    wait_for(server.is_alive, "the private server")
    with join("here", server.url) as program:
        finish(program)
        assert program.ended == "finished"
    assert master.wait() == 0 and not (folder / "logs").exists()


def test_a_program_that_only_looks_gets_a_trial_soon_and_tells_it_once(
    oven: Any, valkey_url: str
) -> None:
    master = oven("polled", generations=1, population=2)
    with join("polled", valkey_url) as program:
        trial = wait_for(lambda: program.ask(wait=0), "a trial")
        for wrong, sentence in (("good", "the score is 'good'"), (None, "the score is None")):
            with pytest.raises(UsageError, match=f"{sentence}: tell a number"):
                program.tell(trial, wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="give it a trial that ask has returned"):
            program.tell(trial.vector, 1.0)  # type: ignore[arg-type]
        assert program.tell(trial, 1.0) and not program.tell(trial, 2.0)
        finish(program)
    assert master.wait() == 0, master.said()


def test_the_program_of_the_docs_finds_its_oven(
    processes: Processes, oven: Any, valkey_url: str
) -> None:
    page = (Path(es_queue.__file__).parents[1] / "docs" / "python.md").read_text("utf-8")
    section = page.partition("## Ask and tell")[2]
    command, kitchen = re.findall(r"```(?:sh|python)\n(.*?)```", section, re.DOTALL)[:2]
    (processes.folder / "kitchen.py").write_text(kitchen, "utf-8")
    words = command.replace("\\\n", " ").replace("redis://localhost", valkey_url).split()
    master = processes.start(BIN / words[0], *words[1:])
    join("oven", valkey_url).close()
    assert processes.start(sys.executable, "kitchen.py", valkey_url).wait() == 0
    assert master.wait() == 0, master.said()
    heat, minutes = load_policy(processes.folder / "runs" / "oven").vector
    assert 217 < heat <= 220 and 24 < minutes < 26


def test_a_run_that_nobody_asks_says_what_is_missing(
    processes: Processes, oven: Any, valkey_url: str, redis_client: redis.Redis
) -> None:
    master = oven("lonely")
    seen = Seen(redis_client, "lonely")
    wait_for(lambda: seen.progress().get("workers") == "0", "the master has looked for workers")
    command = (BIN / "es-status", "--redis-url", valkey_url, "lonely")
    status, doctor = processes.start(*command), processes.start(*command, "--doctor")
    assert (status.wait(), doctor.wait()) == (0, 0)
    assert 'no program asks for trials; use es_queue.AskTell("lonely")' in status.said()
    assert "no program asks for trials of lonely" in doctor.said()
    assert "rq worker" not in status.said() + doctor.said()
    with join("lonely", valkey_url) as program:
        finish(program)
    assert master.wait() == 0


def test_what_cannot_be_asked_is_refused_in_one_sentence(
    processes: Processes, oven: Any, valkey_url: str
) -> None:
    with pytest.raises(NoRunError, match="has no run nowhere: start it with es-master --objective"):
        AskTell("nowhere", valkey_url)
    with pytest.raises(UsageError, match="lease is 0: use a number of seconds above 0"):
        AskTell("nowhere", valkey_url, lease=0)
    with pytest.raises(RedisError, match="cannot be reached"):
        AskTell("nowhere", "redis://127.0.0.1:1")
    with pytest.raises(UsageError, match="lease is '5': use a number of seconds above 0"):
        AskTell("nowhere", valkey_url, lease="5")  # type: ignore[arg-type]
    audited = oven("audited", audit=0.5)
    assert audited.wait() == 2
    assert "audit is 0.5, but other programs score the vectors: leave it out" in audited.said()
    novel = oven("novel", strategy="novelty")
    assert novel.wait() == 2 and "the strategy compares behaviours" in novel.said()
