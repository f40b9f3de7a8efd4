"""--audit: the master plays a share of the slots itself, and names a host that computes wrongly."""

from __future__ import annotations

import redis

from es_queue.user_code import ALLOW
from tests.integration.processes import (
    CARTPOLE,
    Processes,
    Seen,
    flags,
    quiet_digest,
    wait_for,
)

#: Its rewards are too large by a millionth, from the tenth episode of a process on: the fingerprint
#: at joining is that of a healthy host.
BROKEN = """
import os
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

resets = 0

class Broken(CartPoleEnv):
    def reset(self, **settings):
        global resets
        resets += 1
        return super().reset(**settings)

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + 1e-6 * ("BROKEN" in os.environ and resets > 10), *rest

gymnasium.register("Broken-v0", Broken, max_episode_steps=60)
"""


def test_a_worker_whose_arithmetic_is_broken_is_found_and_named_by_the_audit(
    valkey_url: str, redis_client: redis.Redis, processes: Processes
) -> None:
    (processes.folder / "broken.py").write_text(BROKEN)
    values = {**CARTPOLE, "env": "broken:Broken-v0", "generations": 200, "block": 1}
    words = ("--run", "audited", "--workers", 0, "--audit", 0.5, "--json")
    master = processes.master(*words, *flags(values), url=valkey_url)
    allowed = {ALLOW: "installed,broken"}
    healthy = processes.worker(valkey_url, **allowed)
    seen = Seen(redis_client, "audited")
    seen.joined(healthy)
    wait_for(seen.has_reached(3), "an honest run is not stopped")
    broken = seen.joined(processes.worker(valkey_url, BROKEN="1", **allowed))
    assert master.wait() == 5, master.said()
    said = master.said()
    print(said[said.index("--audit: ") :][:500])
    assert f"(generation {seen.generation()} of broken:Broken-v0" in said
    assert f": {broken} returned fitness " in said and "00001" in said
    assert "but the master's own episode gives fitness " in said
    assert seen.progress()["state"] == "failed"


def test_an_audited_run_has_the_bits_of_any_other_and_says_nothing(processes: Processes) -> None:
    words = ("--run", "honest", "--workers", 2, "--audit", 0.5, "--json")
    master = processes.master(*words, *flags(CARTPOLE))
    assert master.wait() == 0, master.said()
    assert master.events("summary")[-1]["digest"] == quiet_digest(CARTPOLE)
    assert "audit:" not in master.said()
