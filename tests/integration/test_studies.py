"""A study from outside: one run per seed over one set of workers, through stops and kills, with the
bits of single runs.
"""

from __future__ import annotations

import json
import os
import platform
import signal
from typing import Any

import pytest
import redis

from es_queue.numerics.statistics import aggregate
from tests.integration.processes import (
    CARTPOLE,
    WALKER,
    Processes,
    Seen,
    Started,
    flags,
    quiet_digest,
    wait_for,
)

SEEDS = (4, 2, 9)
#: Long enough to be caught in the middle, short enough to be waited for.
LONG = {name: value for name, value in WALKER.items() if name != "seed"} | {"generations": 16}
SHORT = {name: value for name, value in CARTPOLE.items() if name != "seed"}


def of(process: Started, seed: int, name: str) -> list[dict[str, Any]]:
    return [one for one in process.events(name) if one.get("seed") == seed]


def processes_with(processes: Processes, words: str) -> list[int]:
    """Those with these words in their command, without the wrapper that ends one with its
    parent.
    """
    living = processes.living().items()
    return [pid for pid, command in living if words in command and "bound.py" not in command]


def only(processes: Processes, words: str) -> int:
    (pid,) = processes_with(processes, words)
    return pid


def stored(processes: Processes, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((processes.folder / "runs" / run / "seeds.json").read_text())
    return found


def assert_done(processes: Processes, run: str, values: dict[str, Any]) -> None:
    """Every seed has finished with the bits of a run of its own, and the figures are over all of
    them.
    """
    about = stored(processes, run)
    assert [one["seed"] for one in about["runs"]] == list(SEEDS)
    assert [one["summary"]["digest"] for one in about["runs"]] == [
        quiet_digest({**values, "seed": seed}) for seed in SEEDS
    ]
    figures = aggregate([one["summary"]["eval_mean"] for one in about["runs"]])
    assert (about["state"], about["runs_counted"], about["runs_total"]) == ("finished", 3, 3)
    assert about["mean"] == figures.mean and about["iqm"] == figures.iqm
    assert figures.iqm_interval is not None and about["iqm_interval"] == list(figures.iqm_interval)
    assert processes.living() == {}


def begun(processes: Processes, run: str, *more: object) -> Started:
    """A study of two workers, so that two of its three runs go on at a time; both have got
    somewhere.
    """
    study = processes.master(
        *flags(LONG), "--seeds", "4,2,9", "--run", run, "--workers", 2, "--json", *more
    )
    wait_for(
        lambda: all(of(study, seed, "generation") for seed in SEEDS[:2]), "two runs have begun"
    )
    return study


def test_each_seed_ends_with_the_bits_of_a_run_of_its_own_and_nothing_is_left(
    processes: Processes,
) -> None:
    study = processes.master(*flags(SHORT), "--seeds", "4,2,9", "--run", "all", "--workers", 2)
    assert study.wait() == 0, study.said()
    assert_done(processes, "all", SHORT)
    lines = study.out.read_text().splitlines()
    assert "study all finished: 3 of 3 runs finished" in lines
    assert [line for line in lines if line.startswith("  IQM ")] and not study.err.read_text()
    again = processes.master("--resume", "all")
    assert again.wait() == 0
    assert (
        again.out.read_text().splitlines()
        == lines[lines.index("study all finished: 3 of 3 runs finished") :]
    )


def test_a_number_in_place_of_a_list_of_seeds_is_said(processes: Processes) -> None:
    study = processes.master(*flags(SHORT), "--seeds", 2, "--run", "only", "--workers", 1)
    assert study.wait() == 0, study.said()
    assert "this is one run, with seed 2: --seeds 1-2 trains 2 runs" in study.said()


def test_ctrl_c_stops_every_run_in_order_and_resume_ends_with_the_undisturbed_bits(
    processes: Processes,
) -> None:
    study = begun(processes, "stopped")
    os.killpg(study.pid, signal.SIGINT)  # as a terminal does; the study passes it on once
    assert study.wait() == 130, study.said()
    assert processes.living() == {}
    assert study.err.read_text() == ""
    runs = stored(processes, "stopped")["runs"]
    assert all(
        one["summary"]["state"] == "stopped"
        for one in runs
        if one["seed"] in SEEDS[:2] and one["state"] == "stopped"
    )
    states = {one["seed"]: one["state"] for one in runs}
    assert (
        set(states.values()) <= {"stopped", "waiting", "finished"} and "stopped" in states.values()
    )
    assert study.events("note")[-1]["text"].endswith("es-master --resume stopped")
    resumed = processes.master("--resume", "stopped", "--workers", 2, "--json")
    assert resumed.wait() == 0, resumed.said()
    assert all(
        not of(resumed, seed, "generation") for seed, state in states.items() if state == "finished"
    )
    assert_done(processes, "stopped", LONG)


def test_a_killed_study_takes_its_runs_workers_and_server_with_it_and_can_be_resumed(
    processes: Processes,
) -> None:
    study = begun(processes, "killed")
    study.signal(signal.SIGKILL)
    study.wait()
    wait_for(lambda: not processes.living(), "no process is left", 5)
    resumed = processes.master("--resume", "killed", "--workers", 1, "--quiet")
    assert resumed.wait() == 0, resumed.said()
    assert_done(processes, "killed", LONG)


def test_a_run_whose_es_master_is_killed_is_started_again_and_keeps_its_bits(
    processes: Processes,
) -> None:
    study = begun(processes, "again")
    victim = only(processes, "--run again-s4 ")
    os.kill(victim, signal.SIGKILL)
    assert study.wait() == 0, study.said()
    assert [one["text"] for one in of(study, 4, "note")][:1] == [
        "its es-master ended with code 137 and starts again in 1 s"
    ]
    assert_done(processes, "again", LONG)


def test_two_commands_do_not_lead_one_study(processes: Processes) -> None:
    study = begun(processes, "once")
    second = processes.master("--resume", "once")
    assert second.wait() == 4
    assert second.err.read_text().startswith(f"es-master: run once is live: {platform.node()} pid")
    study.signal(signal.SIGTERM)
    assert study.wait() == 130


def test_the_second_ctrl_c_ends_everything_at_once(processes: Processes) -> None:
    study = begun(processes, "twice")
    run = only(processes, "--run twice-s4 ")
    os.kill(run, signal.SIGSTOP)  # so that the orderly end would take for ever
    study.signal(signal.SIGINT)
    wait_for(lambda: of(study, 2, "summary"), "the first Ctrl-C was heard")
    study.signal(signal.SIGINT)
    assert study.wait(10) == 130
    wait_for(lambda: not processes.living(), "no process is left", 10)


def test_a_run_that_cannot_begin_fails_alone_and_is_named(processes: Processes) -> None:
    folder = processes.folder / "runs/partly"
    folder.mkdir(parents=True)
    (folder / "s2").write_text("a file in the way")
    study = processes.master(*flags(SHORT), "--seeds", "4,2,9", "--run", "partly", "--workers", 1)
    assert study.wait() == 6
    lines = study.out.read_text().splitlines()
    assert [
        line
        for line in lines
        if line.startswith(
            "  seed 2  failed with exit code 6: run-dir runs/partly/s2 cannot be created"
        )
    ]
    assert "  final evaluations of 2 of 3 runs: the others are missing, not counted as 0" in lines
    assert [one["state"] for one in stored(processes, "partly")["runs"]] == [
        "finished",
        "failed",
        "finished",
    ]
    (folder / "s2").unlink()
    assert processes.master("--resume", "partly", "--workers", 1).wait() == 0
    assert_done(processes, "partly", SHORT)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["--seeds", "5-1"],
            2,
            ("es-master: --seeds is '5-1': write the range from low to high: 1-5\n"),
        ),
        (["--seeds", "1-2", "--population", "3"], 2, "population is 3"),
        (
            ["--seeds", "1-2", "--redis-url", "redis://127.0.0.1:1"],
            3,
            "es-master: Redis at redis://127.0.0.1:1 cannot be reached",
        ),
    ],
)
def test_what_no_run_could_begin_with_is_refused_once_and_leaves_nothing(
    words: list[str], code: int, said: str, processes: Processes
) -> None:
    study = processes.master("--env", "CartPole-v1", *words)
    assert study.wait() == code
    assert said in study.err.read_text() and study.err.read_text().count("\n") == 1
    assert not (processes.folder / "runs").exists() and processes.living() == {}


def test_on_a_shared_redis_runs_begin_as_workers_come_and_no_command_line_holds_the_url(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    values = {**SHORT, "generations": 100_000}
    study = processes.master(
        *flags(values),
        "--seeds",
        "1-3",
        "--run",
        "shared",
        "--queue",
        "mine",
        RQ_REDIS_URL=valkey_url,
    )
    wait_for(lambda: redis_client.exists("es:shared-s1:master"), "the first run has begun")
    commands = processes.living().values()
    assert [command for command in commands if "shared-s1" in command] and not [
        command for command in commands if valkey_url in command
    ]
    runs = [Seen(redis_client, f"shared-s{seed}") for seed in (1, 2, 3)]
    workers = [processes.worker(valkey_url, "mine") for _ in range(2)]
    wait_for(
        lambda: [len(run.workers()) for run in runs[:2]] == [1, 1], "each of two runs has a worker"
    )
    assert not redis_client.exists("es:shared-s3:config")
    study.signal(signal.SIGTERM)
    assert study.wait() == 130
    assert [worker.process.poll() for worker in workers] == [
        None,
        None,
    ]  # they are not the study's to end
    assert [run.progress()["state"] for run in runs[:2]] == ["stopped", "stopped"]
