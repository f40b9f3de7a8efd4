"""Opens environments: picks the back end, tries the environment out once, says what it is like."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

import gymnasium

from es_queue.environments.catalogue import WALKER_V2, WALKER_V3, Entry, describe_error, find, missing_package
from es_queue.environments.encoding import idle_action
from es_queue.environments.request import DrawnWorld, EnvironmentRequest, World
from es_queue.environments.stock import StockWorld
from es_queue.errors import EnvironmentFailure, UsageError
from es_queue.spaces import ActionSpec, EnvironmentSpec

BACKENDS = ("auto", "lean", "stock")
_WALKER_ACTION = ActionSpec("box", shape=(4,), low=(-1.0,) * 4, high=(1.0,) * 4)
_WALKER_OBSERVATION = 24
_PROBE_SEED = 0


def describe(request: EnvironmentRequest) -> EnvironmentSpec:
    """Make the environment, play one step, and say what it is like.

    Raises EnvironmentFailure where it is unknown, cannot be made or raises, UsageError for a bad back end
    or wrapper.
    """
    entry = find(request)
    if choose(entry, request) == "lean":
        world: World = _open_lean(entry)
        spec = _spec(entry, "lean", _WALKER_OBSERVATION, _WALKER_ACTION, None, clean_reset=True)
    else:
        world = stock = StockWorld(entry, request)
        size, action, highest = stock.observation_size, stock.action, stock.highest_reward
        spec = _spec(entry, "stock", size, action, highest, clean_reset=stock.clean_reset)
        spec = replace(spec, discrete_start=stock.discrete_start)
    try:
        _try_out(world, spec)
    finally:
        world.close()
    return spec


@overload
def open_world(request: EnvironmentRequest, render_mode: None = None) -> World: ...
@overload
def open_world(request: EnvironmentRequest, render_mode: str) -> DrawnWorld: ...


def open_world(request: EnvironmentRequest, render_mode: str | None = None) -> World:
    """The World of ``request``; with ``render_mode`` ("rgb_array" or "human") one that draws itself."""
    entry = find(request)
    if choose(entry, request) == "stock":
        return StockWorld(entry, request, render_mode)
    return _open_lean(entry) if render_mode is None else _open_drawn(entry, render_mode)


def choose(entry: Entry, request: EnvironmentRequest) -> str:
    """Either "lean" or "stock"; UsageError for a back end that is unknown or does not play this environment."""
    if request.backend not in BACKENDS:
        raise UsageError(f"there is no back end {request.backend!r}; there are {', '.join(BACKENDS)}")
    plain = not (entry.module or request.wrappers or set(entry.arguments) - {"hardcore"})
    if plain and entry.entry_point in (WALKER_V2, WALKER_V3):
        return "stock" if request.backend == "stock" else "lean"
    if request.backend == "lean":
        raise UsageError(
            f"the lean back end does not play {request.id} as asked for: it plays BipedalWalker and "
            "BipedalWalkerHardcore, v2 and v3, without wrappers and without arguments but hardcore"
        )
    return "stock"


def _open_lean(entry: Entry) -> World:
    try:
        # Box2D is imported when a walker is asked for, not before.
        from es_queue.environments.lean_walker import LeanWalker
    except ImportError as error:
        raise EnvironmentFailure(missing_package(entry, error)) from error
    return LeanWalker(*_walker(entry))


def _open_drawn(entry: Entry, render_mode: str) -> DrawnWorld:
    try:
        from es_queue.environments.drawn_walker import DrawnWalker
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise EnvironmentFailure(missing_package(entry, error)) from error
    return DrawnWalker(*_walker(entry), render_mode)


def _walker(entry: Entry) -> tuple[bool, bool]:
    """Whether it is Hardcore, and whether it has the lidar of version 2."""
    return bool(entry.arguments.get("hardcore", False)), entry.entry_point == WALKER_V2


def _spec(
    entry: Entry, backend: str, size: int, action: ActionSpec, highest: float | None, *, clean_reset: bool
) -> EnvironmentSpec:
    threshold = entry.spec.reward_threshold
    return EnvironmentSpec(
        id=entry.id,
        observation_size=size,
        action=action,
        step_limit=entry.spec.max_episode_steps,
        reward_threshold=None if threshold is None else float(threshold),
        highest_reward=highest,
        backend=backend,
        clean_reset=clean_reset,
    )


def _try_out(world: World, spec: EnvironmentSpec) -> None:
    try:
        first = world.reset(_PROBE_SEED)
        second = world.step(idle_action(spec.action))[0]
    except Exception as error:
        raise EnvironmentFailure(f"{spec.id} fails when played: {describe_error(error)}") from error
    for observation in (first, second):
        if observation.shape != (spec.observation_size,):
            raise EnvironmentFailure(
                f"{spec.id} declares observations of {spec.observation_size} numbers "
                f"but yields {observation.size}"
            )
