"""Opens environments: picks the back end, tries the environment out once, says what it is like."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, overload

import gymnasium

from es_queue.config.action_bins import with_bins
from es_queue.environments.behaviour_descriptor import (
    POSITION,
    is_read_inside,
    resolve_behaviour,
    validate_length,
)
from es_queue.environments.cartpole_vector import ARGUMENTS, ENTRY_POINT, CartPoleVectorEnvironment
from es_queue.environments.envpool import (
    EnvPoolVectorEnvironment,
    UnbatchedEnvironment,
    has_task,
    is_installed,
)
from es_queue.environments.gym_compat.old_gym import find_gym_environment
from es_queue.environments.interface import (
    BehaviourEnvironment,
    Environment,
    EnvironmentRequest,
    RenderedEnvironment,
    VectorEnvironment,
    best_batch_size,
)
from es_queue.environments.objective import ObjectiveEnvironment, describe_objective
from es_queue.environments.observation_layout import ObservationLeaf, ObservationTree
from es_queue.environments.registry import (
    MARVIN,
    WALKER_V2,
    WALKER_V3,
    RegisteredEnvironment,
    find_environment,
    format_missing_package,
)
from es_queue.environments.space_codec import neutral_action
from es_queue.environments.spaces import ActionSpec, EnvironmentSpec
from es_queue.environments.stock import StockEnvironment
from es_queue.errors import EnvironmentFailure, MissingPackage, UsageError
from es_queue.security.user_code import describe_error

BACKENDS = ("auto", "lean", "envpool", "stock", "gym", "any")
#: Back ends of one library's own objects.
_STOCK = ("stock", "gym")
_WALKER_ACTION = ActionSpec("box", shape=(4,), low=(-1.0,) * 4, high=(1.0,) * 4)
_WALKER_OBSERVATION = 24
_PROBE_SEED = 0


def describe(request: EnvironmentRequest) -> EnvironmentSpec:
    """Make the environment, play one step, and say what it is like.

    Raises EnvironmentFailure where it is unknown, cannot be made or raises, UsageError for a bad
    back end or wrapper.
    """
    if request.parameters:
        return describe_objective(request)
    entry = _find_entry(request)
    backend = choose_backend(entry, request)
    if _is_lean_walker(entry, request) and backend not in _STOCK:
        spec = _spec(entry, backend, _WALKER_OBSERVATION, _WALKER_ACTION, None, clean_reset=True)
        env = _open(entry, request, backend)
    else:
        stock = StockEnvironment(entry, request)
        size, action, highest = stock.observation_size, stock.action, stock.highest_reward
        spec = _spec(entry, backend, size, action, highest, clean_reset=stock.clean_reset)
        spec = replace(
            spec,
            discrete_start=stock.discrete_start,
            observation_shape=stock.observation_shape,
            observation=composite_tree(stock.observation),
        )
        spec = replace(
            spec,
            observation_low=stock.observation_low,
            observation_high=stock.observation_high,
            lowest_reward=stock.lowest_reward,
        )
        env = _environment_for_backend(stock, entry, request, spec)
    try:
        _probe_environment(env, spec)
        if isinstance(env, StockEnvironment):
            spec = replace(spec, lives=env.lives())
        spec = replace(spec, action=with_bins(spec.action, request.action_bins))
        return _with_behaviour(env, spec, resolve_behaviour(entry, request))
    finally:
        env.close()


def _environment_for_backend(
    stock: StockEnvironment,
    entry: RegisteredEnvironment,
    request: EnvironmentRequest,
    spec: EnvironmentSpec,
) -> Environment:
    """The world that the back end plays; Gymnasium's own has said what it is like."""
    if spec.backend in _STOCK:
        return stock
    stock.close()
    if (
        spec.discrete_start is not None
        or spec.observation is not None
        or spec.action.kind not in ("box", "discrete")
        or any(spec.action.starts)
    ):
        raise UsageError(
            f"the envpool back end does not play {spec.id}: it takes observations that are "
            "arrays, and box or discrete actions"
        )
    return _open(entry, request, spec.backend)


@overload
def open_environment(request: EnvironmentRequest, render_mode: None = None) -> Environment: ...
@overload
def open_environment(request: EnvironmentRequest, render_mode: str) -> RenderedEnvironment: ...


def open_environment(request: EnvironmentRequest, render_mode: str | None = None) -> Environment:
    """The World of ``request``; with ``render_mode`` ("rgb_array" or "human") one that draws
    itself.
    """
    if request.parameters:
        if render_mode is not None:
            raise UsageError(
                f"{request.id} is an objective, which draws nothing: leave the picture out"
            )
        return ObjectiveEnvironment(request)
    entry = _find_entry(request)
    backend = choose_backend(entry, request)
    if render_mode is None:
        return _open(entry, request, backend)
    if backend in _STOCK or (backend == "lean" and _is_vector_cartpole(entry, request)):
        return StockEnvironment(entry, request, render_mode)
    if not _is_lean_walker(entry, request):
        raise UsageError(
            f"EnvPool draws nothing, and {entry.id} of another back end plays other "
            "episodes: leave the picture out"
        )
    return _open_rendered(entry, render_mode)


def open_vector_environment(request: EnvironmentRequest) -> VectorEnvironment | None:
    """What plays many episodes of ``request`` at once; None where its back end here plays them one
    by one.

    A few episodes are played one by one all the same, where ``everywhere`` names a back end with
    equal bits.
    """
    if request.parameters:
        return None
    entry = _find_entry(request)
    backend = choose_backend(entry, request)
    if resolve_backend(backend) == "envpool":
        return EnvPoolVectorEnvironment(_envpool_task(entry))
    return (
        CartPoleVectorEnvironment(entry.arguments)
        if backend == "lean" and _is_vector_cartpole(entry, request)
        else None
    )


def batch_size_range(request: EnvironmentRequest, parameters: int = 1) -> tuple[int, int] | None:
    """How many episodes of policies of that size are best played at once, the fewest and the most;
    None where they are played one by one.
    """
    if request.parameters:
        return None
    entry = _find_entry(request)
    backend = choose_backend(entry, request)
    vector_class: type[EnvPoolVectorEnvironment] | type[CartPoleVectorEnvironment] = (
        EnvPoolVectorEnvironment if backend in ("envpool", "any") else CartPoleVectorEnvironment
    )
    if vector_class is CartPoleVectorEnvironment and not (
        backend == "lean" and _is_vector_cartpole(entry, request)
    ):
        return None
    max_episodes = best_batch_size(vector_class.max_episodes, parameters)
    if max_episodes < vector_class.min_episodes and portable_request(request) != request:
        return None
    return min(vector_class.min_episodes, max_episodes), max_episodes


def portable_request(request: EnvironmentRequest) -> EnvironmentRequest:
    """The same episodes, to the bit, from a back end that every installation has and that plays one
    by one, where there is one.
    """
    if request.parameters:
        return request
    entry = _find_entry(request)
    if request.backend in ("envpool", "any") and is_backend_equivalent(entry, request):
        return replace(request, backend="lean")
    return (
        replace(request, backend="stock")
        if request.backend in ("auto", "lean") and _is_vector_cartpole(entry, request)
        else request
    )


def resolve_backend(backend: str) -> str:
    """The back end that plays on this host for a chosen one: EnvPool for "any" where it is
    installed, else lean.
    """
    if backend != "any":
        return backend
    return "envpool" if is_installed() else "lean"


def is_backend_equivalent(entry: RegisteredEnvironment, request: EnvironmentRequest) -> bool:
    """Whether lean and EnvPool are known to play the same episodes to the bit.

    BipedalWalker-v2 is not among them: EnvPool has the lidar of version 3. That of version 2
    differs from it now and then on the normal terrain too (22 of 8.5 million readings at random
    poses), and often on Hardcore's.
    """
    return _is_lean_walker(entry, request) and entry.entry_point == WALKER_V3


def choose_backend(entry: RegisteredEnvironment, request: EnvironmentRequest) -> str:
    """The back end, never "auto"; UsageError for one that is unknown or does not play this
    environment.

    "any" stays: each host decides for itself.
    """
    requested = request.backend
    if requested not in BACKENDS:
        raise UsageError(f"there is no back end {requested!r}; there are {', '.join(BACKENDS)}")
    lean = _is_lean_walker(entry, request) or _is_vector_cartpole(entry, request)
    behaviour = resolve_behaviour(entry, request)
    looks_inside = is_read_inside(behaviour)
    if looks_inside:
        lean = lean and _is_lean_walker(entry, request) and behaviour == POSITION
        _validate_behaviour_backend(entry, request, behaviour, lean)
    if requested == "auto":
        if is_backend_equivalent(entry, request) and is_installed() and not looks_inside:
            return "envpool"
        return "lean" if lean else "stock"
    if requested == "lean" and not lean:
        raise UsageError(
            f"the lean back end does not play {request.id} as asked for: it plays BipedalWalker "
            "and "
            "BipedalWalkerHardcore, v2 and v3, Marvin and CartPole, without wrappers and without "
            "arguments but hardcore and "
            "sutton_barto_reward"
        )
    if requested == "any" and not is_backend_equivalent(entry, request):
        raise UsageError(
            "backend is any, but only BipedalWalker-v3 and BipedalWalkerHardcore-v3 are known "
            "to play the same episodes "
            f"on each back end, not {request.id} as asked for: use auto, or name one back end"
        )
    if requested == "envpool":
        _validate_envpool(entry, request)
    return requested


def _validate_behaviour_backend(
    entry: RegisteredEnvironment, request: EnvironmentRequest, behaviour: str, lean: bool
) -> None:
    """A behaviour that is read inside the environment, from a back end that does not show its
    inside.
    """
    allowed = ("auto", "stock", "lean") if lean else ("auto", "stock", "gym")
    if request.backend not in allowed:
        raise UsageError(
            f"the {request.backend} back end does not tell the {behaviour} of {entry.id}: "
            f"use --backend {' or '.join(allowed)}, or the behaviour last-observation"
        )


def _validate_envpool(entry: RegisteredEnvironment, request: EnvironmentRequest) -> None:
    plain = _is_lean_walker(entry, request) or not (
        entry.module or request.wrappers or request.arguments
    )
    if _is_lean_walker(entry, request) and _walker_variant(entry) == (True, True):
        raise UsageError(
            f"the envpool back end does not play {entry.id}: EnvPool has the lidar of "
            "version 3 alone; use lean"
        )
    if not plain or not has_task(entry.id, _envpool_task(entry)):
        raise UsageError(
            f"the envpool back end does not play {request.id} as asked for: it plays "
            "EnvPool's own ids, without wrappers and arguments"
        )


def _find_entry(request: EnvironmentRequest) -> RegisteredEnvironment:
    return find_gym_environment(request) if request.backend == "gym" else find_environment(request)


def _is_lean_walker(entry: RegisteredEnvironment, request: EnvironmentRequest) -> bool:
    """Whether it is a BipedalWalker, or Marvin, without anything that its own code does
    not know.
    """
    known = set() if entry.entry_point == MARVIN else {"hardcore"}
    plain = not (entry.module or request.wrappers or set(entry.arguments) - known)
    return plain and entry.entry_point in (WALKER_V2, WALKER_V3, MARVIN)


def _is_vector_cartpole(entry: RegisteredEnvironment, request: EnvironmentRequest) -> bool:
    """Whether it is a CartPole without anything that the vectorised class does not know."""
    plain = not (
        entry.module
        or request.wrappers
        or entry.spec.additional_wrappers
        or set(entry.arguments) - ARGUMENTS
    )
    return plain and entry.entry_point == ENTRY_POINT


def _envpool_task(entry: RegisteredEnvironment) -> str:
    """EnvPool's name of the environment."""
    if entry.entry_point in (WALKER_V2, WALKER_V3):
        return "BipedalWalkerHardcore-v3" if _walker_variant(entry)[0] else "BipedalWalker-v3"
    return entry.spec.id


def _open(entry: RegisteredEnvironment, request: EnvironmentRequest, backend: str) -> Environment:
    plays = resolve_backend(backend)
    if plays in _STOCK:
        return StockEnvironment(entry, request)
    return (
        UnbatchedEnvironment(EnvPoolVectorEnvironment(_envpool_task(entry)))
        if plays == "envpool"
        else _open_lean(entry, request)
    )


def _open_lean(entry: RegisteredEnvironment, request: EnvironmentRequest) -> Environment:
    if _is_vector_cartpole(entry, request):
        return UnbatchedEnvironment(CartPoleVectorEnvironment(entry.arguments))
    try:
        # start-up: Box2D
        from es_queue.environments.walker.lean_walker import LeanWalker
        from es_queue.environments.walker.marvin import LeanMarvin
    except ImportError as error:
        raise MissingPackage(format_missing_package(entry, error)) from error
    return LeanMarvin() if entry.entry_point == MARVIN else LeanWalker(*_walker_variant(entry))


def _open_rendered(entry: RegisteredEnvironment, render_mode: str) -> RenderedEnvironment:
    try:
        # start-up: pygame
        from es_queue.environments.walker.rendered_marvin import RenderedMarvin
        from es_queue.environments.walker.rendered_walker import RenderedWalker
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingPackage(format_missing_package(entry, error)) from error
    return (
        RenderedMarvin(render_mode)
        if entry.entry_point == MARVIN
        else RenderedWalker(*_walker_variant(entry), render_mode)
    )


def _walker_variant(entry: RegisteredEnvironment) -> tuple[bool, bool]:
    """Whether it is Hardcore, and whether it has the lidar of version 2."""
    return bool(entry.arguments.get("hardcore", False)), entry.entry_point == WALKER_V2


def _spec(
    entry: RegisteredEnvironment,
    backend: str,
    size: int,
    action: ActionSpec,
    highest: float | None,
    *,
    clean_reset: bool,
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
        note=entry.note,
    )


def _with_behaviour(env: Environment, spec: EnvironmentSpec, behaviour: str) -> EnvironmentSpec:
    """The spec with what is compared of an episode, tried out on the one that has just begun."""
    if not behaviour:
        return spec
    try:
        size = (
            len(cast(BehaviourEnvironment, env).behaviour())
            if is_read_inside(behaviour)
            else spec.observation_size
        )
        validate_length(size)
    except Exception as error:  # whatever a user's function raises
        raise EnvironmentFailure(
            f"{behaviour} of {spec.id} cannot be had: "
            f"{error if isinstance(error, EnvironmentFailure) else describe_error(error)}"
        ) from error
    return replace(spec, behaviour=behaviour, behaviour_size=size)


def composite_tree(tree: ObservationTree) -> ObservationTree | None:
    """What must be known of observations beside their size and shape; None for an array and for one
    Discrete.
    """
    return None if isinstance(tree, ObservationLeaf) and len(tree.choices) < 2 else tree


def _probe_environment(env: Environment, spec: EnvironmentSpec) -> None:
    try:
        first = env.reset(_PROBE_SEED)
        second = env.step(neutral_action(spec.action))[0]
    except Exception as error:
        raise EnvironmentFailure(f"{spec.id} fails when played: {describe_error(error)}") from error
    for observation in (first, second):
        if observation.shape != (spec.observation_size,):
            raise EnvironmentFailure(
                f"{spec.id} declares observations of {spec.observation_size} numbers "
                f"but yields {observation.size}"
            )
