"""The first faults that befall a run: a worker dies, Redis forgets everything, the private server
dies. No bit changes.
"""

from __future__ import annotations

import json
import os
import signal

import redis

from tests.integration.processes import (
    CARTPOLE,
    WALKER,
    Processes,
    Seen,
    flags,
    quiet_digest,
    state_of,
    wait_for,
)

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


def test_a_closed_terminal_stops_a_run_that_can_be_resumed(processes: Processes) -> None:
    run = processes.master(
        *flags({**WALKER, "generations": 500}), "--run", "hung-up", "--workers", 1, "--json"
    )
    wait_for(lambda: len(run.events("generation")) >= 2, "generation 2")
    run.signal(signal.SIGHUP)
    assert run.wait() == 130, run.said()
    assert run.events("summary")[-1]["state"] == "stopped"
    assert processes.living() == {}
