"""The first faults that befall a run: a worker dies, Redis forgets everything, the private server
dies. No bit changes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import redis

from tests.integration.processes import (
    CARTPOLE,
    CLOCKS,
    NERVOUS,
    WALKER,
    Master,
    Processes,
    Seen,
    flags,
    quiet_digest,
    state_of,
    wait_for,
)


def test_the_block_of_a_worker_that_was_killed_is_played_by_another(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "death")
    victim = processes.worker(valkey_url, clocks=NERVOUS)
    run = start_master("death", WALKER, clocks=NERVOUS)
    seat = seen.joined(victim)
    horse = seen.freeze_holding(seat)
    held = seen.claims(seat)
    victim.signal(signal.SIGKILL)
    os.kill(horse, signal.SIGKILL)
    wait_for(lambda: not seen.claims(seat), "the dead worker's claims are taken from it", 10)
    wait_for(
        lambda: held[0].split()[:3] in [one.split()[:3] for one in seen.todo()],
        "what it held waits for another",
        10,
    )
    processes.worker(valkey_url)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert run.total("recovered") >= 1
    assert run.total("reissued") >= 1


def test_a_run_outlives_the_loss_of_everything_in_redis(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    seen = Seen(redis_client, "amnesia")
    run = start_master("amnesia", WALKER)
    seat = seen.joined(processes.worker(valkey_url))
    wait_for(seen.has_reached(2), "generation 2")
    horse = seen.freeze_holding(seat)
    redis_client.flushall()
    os.kill(horse, signal.SIGCONT)
    assert run.summary()["digest"] == quiet_digest(WALKER)
    assert "Redis has lost this generation: it is published again" in run.heard.notes
    assert [record["generation"] for record in run.heard.records] == list(
        range(WALKER["generations"] + 1)
    )


def test_a_run_outlives_the_death_of_its_private_server(processes: Processes) -> None:
    run = processes.master(*flags(WALKER), "--run", "orphan", "--workers", 1, "--json")
    url = wait_for(lambda: run.events("started"), "the run starts")[0]["redis"]
    with redis.Redis.from_url(url) as client:
        seen = Seen(client, "orphan")
        seat = wait_for(lambda: next(iter(seen.workers()), ""), "its worker joins")
        wait_for(seen.has_reached(2), "generation 2")
        server = int(client.info("server")["process_id"])
        horse = seen.freeze_holding(seat)
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: state_of(server) in ("", "Z"), "the server is dead")
    os.kill(horse, signal.SIGCONT)
    assert run.wait() == 0, run.said()
    notes = [one["text"] for one in run.events("note")]
    assert any("the private server ended with code 137 and starts again" in note for note in notes)
    assert run.events()[-1]["digest"] == quiet_digest(WALKER)
    assert run.events("generation")[-1]["workers"] == 1
    assert processes.living() == {}
    assert not Path(f"/proc/{server}/exe").exists()


HANGING = """
import gymnasium, pathlib, time
from gymnasium.envs.classic_control import CartPoleEnv

class Hanging(CartPoleEnv):
    def step(self, action):
        trap = pathlib.Path(__file__).with_name("trap")
        if trap.exists():
            trap.unlink()
            time.sleep(600)
        return super().step(action)

gymnasium.register("Hanging-v0", Hanging, max_episode_steps=500)
"""


def test_an_episode_that_hangs_is_reported_and_its_process_replaced(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    (processes.folder / "hanging.py").write_text(HANGING)
    seen = Seen(redis_client, "hanging")
    values = {**CARTPOLE, "env": "hanging:Hanging-v0", "wall_limit": 1, "generations": 60}
    run = processes.master(*flags(values), "--run", "hanging", "--json", url=valkey_url)
    seat = seen.joined(processes.worker(valkey_url))
    horse = seen.freeze_holding(seat)
    (processes.folder / "trap").touch()
    os.kill(horse, signal.SIGCONT)
    assert run.wait() == 0, run.said()
    assert not (processes.folder / "trap").exists()
    assert state_of(horse) in ("", "Z")
    reports = [json.loads(one) for one in redis_client.lrange(seen.keys.errors, 0, -1)]
    assert [(one["worker"], one["reason"]) for one in reports] == [
        (seat, "an episode lasted longer than 1 s")
    ]
    assert run.events()[-1]["digest"] == quiet_digest({**CARTPOLE, "generations": 60})


def test_nothing_lives_on_for_long_when_a_master_with_a_private_server_is_killed(
    processes: Processes,
) -> None:
    run = processes.master(
        *flags({**WALKER, "generations": 500}),
        "--run",
        "gone",
        "--workers",
        2,
        "--json",
        clocks=replace(CLOCKS, grace=1.0),
    )
    wait_for(lambda: len(run.events("generation")) >= 2, "generation 2")
    run.signal(signal.SIGKILL)
    wait_for(lambda: not processes.living(), "every process of the run is gone", 30)


def test_a_closed_terminal_stops_a_run_that_can_be_resumed(processes: Processes) -> None:
    run = processes.master(
        *flags({**WALKER, "generations": 500}), "--run", "hung-up", "--workers", 1, "--json"
    )
    wait_for(lambda: len(run.events("generation")) >= 2, "generation 2")
    run.signal(signal.SIGHUP)
    assert run.wait() == 130, run.said()
    assert run.events("summary")[-1]["state"] == "stopped"
    assert processes.living() == {}
