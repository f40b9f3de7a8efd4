"""What an environment is to the rest of es-queue: what is requested, what plays, and its facts.

Plain data, storable as JSON, that needs only numpy: checkpoints keep it, and a loaded policy
accepts the environment's own observations by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.environments.episode_rules import parse_observe, parse_stall
from es_queue.numerics.arrays import Doubles, Floats, Mask


@dataclass(frozen=True)
class EnvironmentRequest:
    """An environment as the command line names it.

    id: a Gymnasium id; ``module:Id-v0`` imports the user's module first
    arguments: keyword arguments for ``gymnasium.make``
    wrappers: ``module:Class`` each, applied in order as ``Class(env)``
    backend: one of BACKENDS, or "auto": EnvPool if it is installed and known to be equal to lean,
    else lean if it exists, else stock
    parameters: length of an objective's vector (``id`` is then its ``module:function``), or 0
    behaviour: the behaviour that is compared, see ``stock.resolve_behaviour``; empty for none
    action_bins: values that a box action is discretised to, see ``episode_rules.parse_bins``
    seen: numbers of the observation that the policy or the rules read, None for all; an
    environment may leave out the others, which are then 0
    bounds: LOW,HIGH of every variable of an objective, in place of its own; empty for its own
    info: numbers of the environment's info that are averaged; empty for ``is_success``, if the
    environment reports it
    is_model: ``id`` is the ``module:Class`` of a model
    """

    id: str
    arguments: tuple[tuple[str, Any], ...] = ()
    wrappers: tuple[str, ...] = ()
    backend: str = "auto"
    parameters: int = 0
    behaviour: str = ""
    action_bins: str = "none"
    seen: tuple[int, ...] | None = None
    bounds: str = ""
    info: tuple[str, ...] = ()
    is_model: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> EnvironmentRequest:
        seen, stall = parse_observe(config.observe), parse_stall(config.stall)
        return cls(
            config.problem,
            config.env_arg,
            config.wrapper,
            config.backend,
            config.parameters,
            getattr(config, "behaviour", ""),  # some strategies have it
            config.action_bins,
            seen if seen is None or stall is None else (*seen, stall.index),
            config.bounds,
            config.info,
            bool(config.model),
        )


def best_batch_size(max_episodes: int, parameters: int) -> int:
    """The best number of episodes to play at once, at most ``max_episodes``: every step reads all
    their parameters, so these must stay in the cache.
    """
    return max(1, min(max_episodes, 2**23 // (4 * max(1, parameters))))


class Environment(Protocol):
    """Plays episodes, each independent of those before.

    It applies no step limit: the rollout does, from ``EnvironmentSpec.step_limit``.
    """

    def reset(self, seed: int) -> Floats:
        """Begin the episode of ``seed``; returns the first observation [observation_size]."""
        ...

    def step(self, action: Any) -> tuple[Floats, float, bool]:
        """Observation [observation_size], which the caller owns, reward, and whether the episode
        ended.

        action: float32 array of the box's shape, Python int (discrete), int64 array (multidiscrete)
        or int8 array (multibinary)
        """
        ...

    def close(self) -> None: ...


class BehaviourEnvironment(Environment, Protocol):
    """An Environment that reports behaviours that its observations do not contain."""

    def behaviour(self) -> Floats:
        """Float32 [b] of the episode so far."""
        ...


class InfoEnvironment(Environment, Protocol):
    def info(self, names: Sequence[str]) -> Floats:
        """float32 [k] of the newest step's info; NaN for what it lacks, or is no number."""
        ...


class LivesEnvironment(Environment, Protocol):
    def lives(self) -> int: ...


class RenderedEnvironment(Environment, Protocol):
    """An Environment that was opened with a render mode."""

    @property
    def fps(self) -> float:
        """Frames per second by the environment's own clock, one per step."""
        ...

    def render(self) -> NDArray[np.uint8] | None:
        """The frame [height, width, 3] under "rgb_array"; None under "human"."""
        ...


class VectorEnvironment(Protocol):
    """Many episodes played at once, one per row. Like an Environment, it applies no step limit.

    min_episodes: the fewest episodes that are faster together than one by one
    max_episodes: the best number of episodes to play together
    """

    min_episodes: int
    max_episodes: int

    def reset(self, seeds: Sequence[int]) -> Floats:
        """Begin one episode per seed; returns the first observations [B, observation_size]."""
        ...

    def step(self, rows: NDArray[np.int32], actions: NDArray[Any]) -> tuple[Floats, Doubles, Mask]:
        """Step the episodes ``rows`` [R], ascending, with one action each; an episode that is over
        or was left out cannot be stepped again. Returns new arrays: observations [R,
        observation_size] in C order, rewards [R], and which episodes ended [R].
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ActionSpec:
    """An action space.

    kind: "box", "discrete", "multidiscrete", "multibinary", or "vector" for all parameters
    shape: of the action that the environment takes ("discrete": empty)
    low, high: bounds of a box, flattened in C order, perhaps infinite; of a vector's variables
    start, scale: of a vector's variables, which are then start + scale · parameters, kept inside
    low and high; empty if the parameters themselves are the vector
    sizes: numbers of choices, one per group of "multidiscrete"; the number of bits of "multibinary"
    starts: the smallest value of each choice (zeros for "multibinary")
    bins: values from -1 (low) to 1 (high) that each number of a box can take; empty for any
    """

    kind: str
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    bins: tuple[float, ...] = ()
    start: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()

    @property
    def outputs(self) -> int:
        if self.kind == "vector":
            return self.shape[0]
        return len(self.low) * (len(self.bins) or 1) if self.kind == "box" else sum(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ActionSpec:
        names = ("shape", "low", "high", "sizes", "starts", "bins", "start", "scale")
        return cls(data["kind"], **{name: tuple(data.get(name, ())) for name in names})


@dataclass(frozen=True)
class EnvironmentSpec:
    """Facts about an environment.

    observation_size: length of the flat float32 observation (a discrete one is one-hot)
    step_limit: the environment's own limit in steps, None if it has none
    reward_threshold: the registered return at which the task counts as solved
    highest_reward: the largest reward of one step, if the environment declares it
    backend: one of BACKENDS ("any": each host decides), never "auto"
    behaviour, behaviour_size: the behaviour that is compared; empty and 0 for none
    info: numbers of the environment's info that are averaged over the ends of episodes
    lives: at the start of an episode; 0 if there are none, or the number is unknown
    note: a sentence for the user who starts a run; empty for none
    observation_shape: of an array before it was flattened in C order; () for a vector or no array
    observation: the parts of Dict, Tuple and MultiDiscrete observations; None for others
    discrete_start: smallest value of a discrete observation space; None for arrays
    """

    id: str
    observation_size: int
    action: ActionSpec
    step_limit: int | None
    reward_threshold: float | None
    highest_reward: float | None
    backend: str
    discrete_start: int | None = None
    observation_shape: tuple[int, ...] = ()
    behaviour: str = ""
    behaviour_size: int = 0
    info: tuple[str, ...] = ()
    lives: int = 0
    note: str = ""
    observation: ObservationTree | None = None

    @property
    def observation_parts(self) -> tuple[tuple[str, int, int], ...]:
        """(name, start, size) of each part of the flat observation; "" if it has no parts."""
        if self.observation is None:
            return (("", 0, self.observation_size),)
        return named_parts(self.observation)


Encoder = Callable[[Any], Floats]

#: More than a real observation has; a checkpoint may come from anyone.
MAX_NUMBERS, MAX_DEPTH = 2**26, 16


@dataclass(frozen=True)
class ObservationLeaf:
    """An array of ``size`` numbers, flattened in C order; with ``choices`` (the number of values of
    each whole number), a one-hot for each. starts: the smallest value of each.
    """

    size: int
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    def write(self, value: Any, out: Floats, name: str) -> None:
        """Fill ``out``, float32[size] of zeros. Raises ValueError."""
        flat = np.asarray(value).reshape(-1) if self.choices else flatten(value)
        if len(flat) != (len(self.choices) or self.size):
            raise ValueError(
                f"the observation{name and ' ' + name} has {len(flat)} numbers, but must have "
                f"{len(self.choices) or self.size}"
            )
        if not self.choices:
            out[:] = flat
            return
        at = 0
        for chosen, count, start in zip(flat.tolist(), self.choices, self.starts, strict=True):
            if not start <= chosen < start + count:
                raise ValueError(
                    f"the observation{name and ' ' + name} is {chosen}, but must be from "
                    f"{start} to {start + count - 1}"
                )
            out[at + int(chosen) - start] = 1
            at += count


@dataclass(frozen=True)
class ObservationGroup:
    """A mapping of observations by ``keys`` (texts), or a tuple (keys 0, 1, …)."""

    keys: tuple[str | int, ...]
    items: tuple[ObservationLeaf | ObservationGroup, ...]

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def write(self, value: Any, out: Floats, name: str) -> None:
        """Fill ``out``, float32[size] of zeros. Raises ValueError for other parts."""
        by_name = isinstance(self.keys[0], str)
        fits = (
            isinstance(value, Mapping) and all(key in value for key in self.keys)
            if by_name
            else isinstance(value, list | tuple)
        )
        if not fits or len(value) != len(self.keys):
            raise ValueError(
                f"the observation{name and ' ' + name} must have exactly the parts "
                f"{', '.join(map(str, self.keys))}"
            )
        at = 0
        for key, item in zip(self.keys, self.items, strict=True):
            item.write(value[key], out[at : at + item.size], join_name(name, key))
            at += item.size


ObservationTree = ObservationLeaf | ObservationGroup


def flatten(value: Any) -> Floats:
    """A new float32[size] in C order; images of bytes are scaled to 0 to 1."""
    flat = np.array(value, np.float32)
    if flat.ndim == 1:
        return flat
    if flat.ndim > 1 and getattr(value, "dtype", None) == np.uint8:
        np.divide(flat, np.float32(255), flat)
    return flat.reshape(-1)


def make_encoder(tree: ObservationTree) -> Encoder:
    """A function that encodes such an observation as a new float32[size]."""

    def encode(observation: Any) -> Floats:
        flat = np.zeros(tree.size, np.float32)
        tree.write(observation, flat, "")
        return flat

    return encode


def named_parts(
    tree: ObservationTree, name: str = "", start: int = 0
) -> tuple[tuple[str, int, int], ...]:
    """(name, start, size) of each leaf in the flat vector, such as ``arm.position``."""
    if isinstance(tree, ObservationLeaf):
        return ((name, start, tree.size),)
    parts: list[tuple[str, int, int]] = []
    for key, item in zip(tree.keys, tree.items, strict=True):
        parts += named_parts(item, join_name(name, key), start)
        start += item.size
    return tuple(parts)


def join_name(name: str, key: str | int) -> str:
    return f"{name}.{key}" if name else str(key)


def format_parts(parts: tuple[tuple[str, int, int], ...]) -> str:
    """Parts for people: ``arm.position 0-2, camera 3-66``."""
    return ", ".join(
        f"{name} {start}" if size == 1 else f"{name} {start}-{start + size - 1}"
        for name, start, size in parts
    )


# --- as JSON


def to_json(tree: ObservationTree) -> dict[str, Any]:
    """Plain data for a checkpoint's meta."""
    if isinstance(tree, ObservationLeaf):
        return {"size": tree.size, "choices": list(tree.choices), "starts": list(tree.starts)}
    return {"keys": list(tree.keys), "items": [to_json(item) for item in tree.items]}


def from_json(values: Any, depth: int = MAX_DEPTH) -> ObservationTree:
    """The tree from ``to_json``. Raises ValueError for anything else."""
    if not isinstance(values, dict) or depth < 1:
        raise ValueError("the description of the observations is invalid")
    tree = _group_from_json(values, depth) if "keys" in values else _leaf_from_json(values)
    if not 0 < tree.size <= MAX_NUMBERS:
        raise ValueError(f"an observation of {tree.size} numbers is not possible")
    return tree


def _leaf_from_json(values: dict[str, Any]) -> ObservationLeaf:
    choices, starts = (_whole_numbers(values.get(name)) for name in ("choices", "starts"))
    (size,) = _whole_numbers([values.get("size")])
    if (
        len(choices) != len(starts)
        or min(choices, default=1) < 1
        or (choices and sum(choices) != size)
    ):
        raise ValueError("the choices of the observations are invalid")
    return ObservationLeaf(size, choices, starts)


def _group_from_json(values: dict[str, Any], depth: int) -> ObservationGroup:
    keys, items = values["keys"], values.get("items")
    if (
        not isinstance(keys, list)
        or not isinstance(items, list)
        or not keys
        or len(keys) != len(items)
    ):
        raise ValueError("the parts of the observations are invalid")
    if keys != list(range(len(keys))) and (
        any(type(key) is not str for key in keys) or len(set(keys)) != len(keys)
    ):
        raise ValueError("the names of the observations' parts are invalid")
    return ObservationGroup(tuple(keys), tuple(from_json(item, depth - 1) for item in items))


def _whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(number) is not int for number in values):
        raise ValueError(
            "the description of the observations contains something other than whole numbers"
        )
    return tuple(values)
