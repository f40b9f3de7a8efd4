"""An Atari game through real workers: the same bits at one worker and at two, with everything on
that hangs on an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.integration.processes import Master, Processes, Seen, quiet_digest

pytest.importorskip("ale_py", reason="ale-py is not installed")
pytest.importorskip("cv2", reason="opencv is not installed")

#: Sticky actions, frames skipped by chance, lost lives, clipped rewards; evaluations under the
#: game's own rules.
FROSTBITE: dict[str, Any] = {
    "env": "Frostbite-v0",
    "env_arg": {"screen_size": 12, "stack": 2},
    "life_loss": True,
    "reward_clip": True,
    "seed": 5,
    "strategy": "ga",
    "truncation": 4,
    "candidates": 2,
    "elite_episodes": 2,
    "population": 8,
    "step_limit": "60",
    "eval_every": 2,
    "eval_episodes": 2,
    "eval_step_limit": 60,
    "final_episodes": 2,
    "generations": 3,
    "target_reward": "none",
    "noise_size": 2**18,
    "policy": "mlp",
    "hidden": (8,),
}
#: The memory, normalised by statistics that the workers gather.
PONG: dict[str, Any] = {
    "env": "Pong-ramDeterministic-v4",
    "seed": 6,
    "population": 8,
    "obs_sample": 1.0,
    "step_limit": "40",
    "eval_every": 0,
    "final_episodes": 2,
    "generations": 3,
    "target_reward": "none",
    "noise_size": 2**18,
}


@pytest.mark.parametrize("values", [FROSTBITE, PONG], ids=["pictures", "memory"])
def test_two_workers_give_the_bits_of_one_on_an_atari_game(
    valkey_url: str,
    redis_client: redis.Redis,
    start_master: Callable[..., Master],
    processes: Processes,
    values: dict[str, Any],
) -> None:
    both = [processes.worker(valkey_url), processes.worker(valkey_url)]
    run = start_master("cabinet", {**values, "block": 1})
    for one in both:
        Seen(redis_client, "cabinet").joined(one)
    assert run.summary()["digest"] == quiet_digest(values)
    assert max(record["workers"] for record in run.heard.records) == 2
