"""Registers es-queue's ids with the old gym, through the entry point group ``gym.envs``."""

from __future__ import annotations

from typing import Any

_ENVS = "es_queue.environments.gym_compat.gym_envs"

#: id -> entry point, its arguments, step limit, reward threshold. gym 0.26 has the old landers
#: itself.
IDS: dict[str, tuple[str, dict[str, Any], int | None, float | None]] = {
    "BipedalWalker-v2": (f"{_ENVS}:GymBipedalWalkerV2", {}, 1600, 300.0),
    "BipedalWalkerHardcore-v2": (f"{_ENVS}:GymBipedalWalkerV2", {"hardcore": True}, 2000, 300.0),
    "Marvin-v0": (f"{_ENVS}:GymMarvin", {}, None, None),
}


def register() -> None:
    """Without gym's checker, which NumPy 2 breaks."""
    # optional: the old gym, which calls this function
    from gym.envs import registration

    for name, (entry_point, arguments, limit, threshold) in IDS.items():
        if name not in registration.registry:
            registration.register(
                name,
                entry_point,
                reward_threshold=threshold,
                max_episode_steps=limit,
                disable_env_checker=True,
                kwargs=arguments,
            )
