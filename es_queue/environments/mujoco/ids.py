"""Old ids of Gymnasium's MuJoCo environments: their current replacement, and those without one."""

from __future__ import annotations

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from es_queue.errors import EnvironmentFailure

BODIES = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
)
#: Never carried over to today's MuJoCo; Pusher is the arm that is left.
REMOVED = ("Striker", "Thrower")


def current_id(name: str) -> tuple[str, str]:
    """The id to play for ``name``, and the sentence to say where it is another one; empty if it
    is the same.

    Raises EnvironmentFailure for an environment that nobody has any more.
    """
    try:
        namespace, bare, version = parse_env_id(name)
    except gymnasium.error.Error:
        return name, ""
    if namespace is None and bare in REMOVED:
        raise EnvironmentFailure(
            f"{name} cannot be played: it needs mujoco-py, and has no version for current "
            f"MuJoCo; the nearest task is {_newest('Pusher')}"
        )
    if namespace is not None or bare not in BODIES or version is None:
        return name, ""
    newest = _newest(bare)
    if name == newest or version > (find_highest_version(None, bare) or 0):
        return name, ""
    hint = f" (--env gymnasium:{name} plays the old version)" if _is_playable(name) else ""
    return newest, f"{name} is an old version: this run uses the current one, {newest}{hint}"


def _newest(bare: str) -> str:
    return get_env_id(None, bare, find_highest_version(None, bare))


def _is_playable(name: str) -> bool:
    """Whether Gymnasium still plays it: of those that it does not it registers a function that
    raises.
    """
    spec = gymnasium.registry.get(name)
    return spec is not None and isinstance(spec.entry_point, str)
