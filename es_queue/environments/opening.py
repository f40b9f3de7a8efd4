"""Opens environments: picks the back end, tries the environment out once, says what it is like."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, overload

import gymnasium

from es_queue.action_bins import binned
from es_queue.custom_code import describe_error
from es_queue.environments.behaviour import POSITION, inside, refuse_length, settled
from es_queue.environments.catalogue import (
    MARVIN,
    WALKER_V2,
    WALKER_V3,
    Entry,
    find,
    missing_package,
)
from es_queue.environments.encoding import idle_action
from es_queue.environments.envpool_worlds import EnvPoolWorlds, OneOfWorlds, installed, knows
from es_queue.environments.objective import ObjectiveWorld, describe_objective
from es_queue.environments.old_gym import find_old
from es_queue.environments.request import (
    BehavingWorld,
    DrawnWorld,
    EnvironmentRequest,
    World,
    Worlds,
    held_at_once,
)
from es_queue.environments.stock import StockWorld
from es_queue.environments.vectorised import ARGUMENTS, ENTRY_POINT, CartPoleWorlds
from es_queue.errors import EnvironmentFailure, MissingPackage, UsageError
from es_queue.observations import Leaf, Tree
from es_queue.spaces import ActionSpec, EnvironmentSpec

BACKENDS = ("auto", "lean", "envpool", "stock", "gym", "any")
#: Back ends of one library's own objects.
_STOCK = ("stock", "gym")
_WALKER_ACTION = ActionSpec("box", shape=(4,), low=(-1.0,) * 4, high=(1.0,) * 4)
_WALKER_OBSERVATION = 24
_PROBE_SEED = 0


def describe(request: EnvironmentRequest) -> EnvironmentSpec:
    """Make the environment, play one step, and say what it is like.

    Raises EnvironmentFailure where it is unknown, cannot be made or raises, UsageError for a bad back end
    or wrapper.
    """
    if request.parameters:
        return describe_objective(request)
    entry = _found(request)
    backend = choose(entry, request)
    if _walks(entry, request) and backend not in _STOCK:
        spec = _spec(entry, backend, _WALKER_OBSERVATION, _WALKER_ACTION, None, clean_reset=True)
        world = _open(entry, request, backend)
    else:
        stock = StockWorld(entry, request)
        size, action, highest = stock.observation_size, stock.action, stock.highest_reward
        spec = _spec(entry, backend, size, action, highest, clean_reset=stock.clean_reset)
        spec = replace(spec, discrete_start=stock.discrete_start, observation_shape=stock.observation_shape, observation=composed(stock.observation))
        spec = replace(
            spec,
            observation_low=stock.observation_low,
            observation_high=stock.observation_high,
            lowest_reward=stock.lowest_reward,
        )
        world = _instead(stock, entry, request, spec)
    try:
        _try_out(world, spec)
        if isinstance(world, StockWorld):
            spec = replace(spec, lives=world.lives())
        spec = replace(spec, action=binned(spec.action, request.action_bins))
        return _behaving(world, spec, settled(entry, request))
    finally:
        world.close()


def _instead(stock: StockWorld, entry: Entry, request: EnvironmentRequest, spec: EnvironmentSpec) -> World:
    """The world that the back end plays; Gymnasium's own has said what it is like."""
    if spec.backend in _STOCK:
        return stock
    stock.close()
    if spec.discrete_start is not None or spec.observation is not None or spec.action.kind not in ("box", "discrete") or any(spec.action.starts):
        raise UsageError(f"the envpool back end does not play {spec.id}: it takes observations that are arrays, and box or discrete actions")
    return _open(entry, request, spec.backend)


@overload
def open_world(request: EnvironmentRequest, render_mode: None = None) -> World: ...
@overload
def open_world(request: EnvironmentRequest, render_mode: str) -> DrawnWorld: ...


def open_world(request: EnvironmentRequest, render_mode: str | None = None) -> World:
    """The World of ``request``; with ``render_mode`` ("rgb_array" or "human") one that draws itself."""
    if request.parameters:
        if render_mode is not None:
            raise UsageError(f"{request.id} is an objective, which draws nothing: leave the picture out")
        return ObjectiveWorld(request)
    entry = _found(request)
    backend = choose(entry, request)
    if render_mode is None:
        return _open(entry, request, backend)
    if backend in _STOCK or (backend == "lean" and _balances(entry, request)):
        return StockWorld(entry, request, render_mode)
    if not _walks(entry, request):
        raise UsageError(f"EnvPool draws nothing, and {entry.id} of another back end plays other episodes: leave the picture out")
    return _open_drawn(entry, render_mode)


def open_worlds(request: EnvironmentRequest) -> Worlds | None:
    """What plays many episodes of ``request`` at once; None where its back end here plays them one by one.

    A few episodes are played one by one all the same, where ``everywhere`` names a back end with equal bits.
    """
    if request.parameters:
        return None
    entry = _found(request)
    backend = choose(entry, request)
    if played_by(backend) == "envpool":
        return EnvPoolWorlds(_task(entry))
    return CartPoleWorlds(entry.arguments) if backend == "lean" and _balances(entry, request) else None


def at_once(request: EnvironmentRequest, parameters: int = 1) -> tuple[int, int] | None:
    """How many episodes of policies of that size are best played at once, the fewest and the most; None where they are played one by one."""
    if request.parameters:
        return None
    entry = _found(request)
    backend = choose(entry, request)
    kind: type[EnvPoolWorlds] | type[CartPoleWorlds] = EnvPoolWorlds if backend in ("envpool", "any") else CartPoleWorlds
    if kind is CartPoleWorlds and not (backend == "lean" and _balances(entry, request)):
        return None
    most = held_at_once(kind.most, parameters)
    if most < kind.fewest and everywhere(request) != request:
        return None
    return min(kind.fewest, most), most


def everywhere(request: EnvironmentRequest) -> EnvironmentRequest:
    """The same episodes, to the bit, from a back end that every installation has and that plays one by one, where there is one."""
    if request.parameters:
        return request
    entry = _found(request)
    if request.backend in ("envpool", "any") and proven(entry, request):
        return replace(request, backend="lean")
    return replace(request, backend="stock") if request.backend in ("auto", "lean") and _balances(entry, request) else request


def played_by(backend: str) -> str:
    """The back end that plays on this host for a chosen one: EnvPool for "any" where it is installed, else lean."""
    if backend != "any":
        return backend
    return "envpool" if installed() else "lean"


def proven(entry: Entry, request: EnvironmentRequest) -> bool:
    """Whether lean and EnvPool are known to play the same episodes to the bit.

    BipedalWalker-v2 is not among them: EnvPool has the lidar of version 3. That of version 2 differs from it now and
    then on the normal terrain too (22 of 8.5 million readings at random poses), and often on Hardcore's.
    """
    return _walks(entry, request) and entry.entry_point == WALKER_V3


def choose(entry: Entry, request: EnvironmentRequest) -> str:
    """The back end, never "auto"; UsageError for one that is unknown or does not play this environment.

    "any" stays: each host decides for itself.
    """
    wanted = request.backend
    if wanted not in BACKENDS:
        raise UsageError(f"there is no back end {wanted!r}; there are {', '.join(BACKENDS)}")
    lean = _walks(entry, request) or _balances(entry, request)
    behaviour = settled(entry, request)
    looks_inside = inside(behaviour)
    if looks_inside:
        lean = lean and _walks(entry, request) and behaviour == POSITION
        _refuse_unseen(entry, request, behaviour, lean)
    if wanted == "auto":
        if proven(entry, request) and installed() and not looks_inside:
            return "envpool"
        return "lean" if lean else "stock"
    if wanted == "lean" and not lean:
        raise UsageError(
            f"the lean back end does not play {request.id} as asked for: it plays BipedalWalker and "
            "BipedalWalkerHardcore, v2 and v3, Marvin and CartPole, without wrappers and without arguments but hardcore and "
            "sutton_barto_reward"
        )
    if wanted == "any" and not proven(entry, request):
        raise UsageError(
            f"backend is any, but only BipedalWalker-v3 and BipedalWalkerHardcore-v3 are known to play the same episodes "
            f"on each back end, not {request.id} as asked for: use auto, or name one back end"
        )
    if wanted == "envpool":
        _refuse_foreign_to_envpool(entry, request)
    return wanted


def _refuse_unseen(entry: Entry, request: EnvironmentRequest, behaviour: str, lean: bool) -> None:
    """A behaviour that is read inside the environment, from a back end that does not show its inside."""
    shown = ("auto", "stock", "lean") if lean else ("auto", "stock", "gym")
    if request.backend not in shown:
        raise UsageError(f"the {request.backend} back end does not tell the {behaviour} of {entry.id}: use --backend {' or '.join(shown)}, or the behaviour last-observation")


def _refuse_foreign_to_envpool(entry: Entry, request: EnvironmentRequest) -> None:
    plain = _walks(entry, request) or not (entry.module or request.wrappers or request.arguments)
    if _walks(entry, request) and _walker(entry) == (True, True):
        raise UsageError(f"the envpool back end does not play {entry.id}: EnvPool has the lidar of version 3 alone; use lean")
    if not plain or not knows(entry.id, _task(entry)):
        raise UsageError(f"the envpool back end does not play {request.id} as asked for: it plays EnvPool's own ids, without wrappers and arguments")


def _found(request: EnvironmentRequest) -> Entry:
    return find_old(request) if request.backend == "gym" else find(request)


def _walks(entry: Entry, request: EnvironmentRequest) -> bool:
    """Whether it is a BipedalWalker, or Marvin, without anything that its own code does not know."""
    known = set() if entry.entry_point == MARVIN else {"hardcore"}
    plain = not (entry.module or request.wrappers or set(entry.arguments) - known)
    return plain and entry.entry_point in (WALKER_V2, WALKER_V3, MARVIN)


def _balances(entry: Entry, request: EnvironmentRequest) -> bool:
    """Whether it is a CartPole without anything that the vectorised class does not know."""
    plain = not (entry.module or request.wrappers or entry.spec.additional_wrappers or set(entry.arguments) - ARGUMENTS)
    return plain and entry.entry_point == ENTRY_POINT


def _task(entry: Entry) -> str:
    """EnvPool's name of the environment."""
    if entry.entry_point in (WALKER_V2, WALKER_V3):
        return "BipedalWalkerHardcore-v3" if _walker(entry)[0] else "BipedalWalker-v3"
    return entry.spec.id


def _open(entry: Entry, request: EnvironmentRequest, backend: str) -> World:
    plays = played_by(backend)
    if plays in _STOCK:
        return StockWorld(entry, request)
    return OneOfWorlds(EnvPoolWorlds(_task(entry))) if plays == "envpool" else _open_lean(entry, request)


def _open_lean(entry: Entry, request: EnvironmentRequest) -> World:
    if _balances(entry, request):
        return OneOfWorlds(CartPoleWorlds(entry.arguments))
    try:
        # Box2D is imported when a walker is asked for, not before.
        from es_queue.environments.lean_walker import LeanWalker
        from es_queue.environments.marvin import LeanMarvin
    except ImportError as error:
        raise MissingPackage(missing_package(entry, error)) from error
    return LeanMarvin() if entry.entry_point == MARVIN else LeanWalker(*_walker(entry))


def _open_drawn(entry: Entry, render_mode: str) -> DrawnWorld:
    try:
        from es_queue.environments.drawn_marvin import DrawnMarvin
        from es_queue.environments.drawn_walker import DrawnWalker
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingPackage(missing_package(entry, error)) from error
    return DrawnMarvin(render_mode) if entry.entry_point == MARVIN else DrawnWalker(*_walker(entry), render_mode)


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
        note=entry.note,
    )


def _behaving(world: World, spec: EnvironmentSpec, behaviour: str) -> EnvironmentSpec:
    """The spec with what is compared of an episode, tried out on the one that has just begun."""
    if not behaviour:
        return spec
    try:
        size = len(cast(BehavingWorld, world).behaviour()) if inside(behaviour) else spec.observation_size
        refuse_length(size)
    except Exception as error:  # whatever a user's function raises
        raise EnvironmentFailure(f"{behaviour} of {spec.id} cannot be had: {error if isinstance(error, EnvironmentFailure) else describe_error(error)}") from error
    return replace(spec, behaviour=behaviour, behaviour_size=size)


def composed(tree: Tree) -> Tree | None:
    """What must be known of observations beside their size and shape; None for an array and for one Discrete."""
    return None if isinstance(tree, Leaf) and len(tree.choices) < 2 else tree


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
