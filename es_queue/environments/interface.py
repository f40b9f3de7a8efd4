"""What an environment is to the rest of es-queue: what is requested, what plays, and its facts.

It needs only numpy: checkpoints keep it as JSON, and a loaded policy accepts the environment's own
observations by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
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
    arguments: of ``gymnasium.make``
    wrappers: ``module:Class`` each, applied in order as ``Class(env)``
    backend: one of BACKENDS, or "auto"
    parameters: length of an objective's vector (``id`` is then its ``module:function``), or 0
    behaviour: the behaviour that is compared, see ``stock.resolve_behaviour``; empty for none
    action_bins: see ``episode_rules.parse_bins``
    seen: numbers of the observation that the policy or the rules read, None for all; an environment
    may leave the others at 0
    bounds: LOW,HIGH of every variable of an objective; empty for its own
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
    """The best number of episodes to play at once: each step reads all their parameters, which must
    stay in the cache.
    """
    return max(1, min(max_episodes, 2**23 // (4 * max(1, parameters))))


class Environment(Protocol):
    """Plays episodes, each independent of those before. It applies no step limit."""

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
    """Many episodes played at once, one per row. It applies no step limit.

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
    backend: one of BACKENDS, never "auto"
    behaviour, behaviour_size: the behaviour that is compared; empty and 0 for none
    info: numbers of the environment's info that are averaged over the ends of episodes
    lives: at the start of an episode; 0 if there are none, or the number is unknown
    note: a sentence for the user who starts a run; empty for none
    observation_shape: of an array before it was flattened in C order; () for a vector or no array
    observation: the parts of other observations than arrays; () for an array
    """

    id: str
    observation_size: int
    action: ActionSpec
    step_limit: int | None
    reward_threshold: float | None
    highest_reward: float | None
    backend: str
    observation_shape: tuple[int, ...] = ()
    behaviour: str = ""
    behaviour_size: int = 0
    info: tuple[str, ...] = ()
    lives: int = 0
    note: str = ""
    observation: tuple[ObservationPart, ...] = ()


# --- the layout of observations: one vector of parts

#: More than a real observation has; a checkpoint may come from anyone.
MAX_NUMBERS, MAX_DEPTH = 2**26, 16


#: The keys of mappings and places in tuples that lead to a part; () is the whole observation.
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class ObservationPart:
    """An array of ``size`` numbers, flattened in C order; with ``choices`` (the number of values of
    each whole number), a one-hot for each, whose smallest value is in ``starts``.
    """

    path: Path
    size: int
    choices: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    def write(self, value: Any, out: Floats) -> None:
        """Fill ``out``, zeros. Raises ValueError."""
        flat = np.asarray(value).reshape(-1) if self.choices else flatten(value)
        if len(flat) != (expected := len(self.choices) or self.size):
            raise ValueError(
                f"the observation{path_suffix(self.path)} has {len(flat)} numbers, but must have "
                f"{expected}"
            )
        if not self.choices:
            out[:] = flat
            return
        at = 0
        for chosen, count, start in zip(flat.tolist(), self.choices, self.starts, strict=True):
            if not start <= chosen < start + count:
                raise ValueError(
                    f"the observation{path_suffix(self.path)} is {chosen}, but must be from "
                    f"{start} to {start + count - 1}"
                )
            out[at + int(chosen) - start] = 1
            at += count


def path_suffix(path: Path) -> str:
    """`` arm.position``; empty for the whole observation."""
    return f" {'.'.join(map(str, path))}" if path else ""


def flatten(value: Any) -> Floats:
    """A new float32[size] in C order; images of bytes are scaled to 0 to 1."""
    flat = np.array(value, np.float32)
    if flat.ndim == 1:
        return flat
    if flat.ndim > 1 and getattr(value, "dtype", None) == np.uint8:
        np.divide(flat, np.float32(255), flat)
    return flat.reshape(-1)


def make_encoder(parts: Sequence[ObservationPart]) -> Callable[[Any], Floats]:
    """Encodes an observation as a new float32[size]; raises ValueError for other parts."""
    stops = list(accumulate(part.size for part in parts))
    groups = groups_of(parts)
    place_of: dict[Path, int] = {(): 0}
    for path, keys in groups.items():
        place_of |= {(*path, key): len(place_of) + number for number, key in enumerate(keys)}
    plan = [
        (place_of[path], keys, Mapping if isinstance(keys[0], str) else list | tuple)
        for path, keys in groups.items()
    ]
    writes = [
        (part.write, place_of[part.path], slice(stop - part.size, stop))
        for part, stop in zip(parts, stops, strict=True)
    ]

    def encode(observation: Any) -> Floats:
        values, flat = [observation], np.zeros(stops[-1], np.float32)
        for place, keys, kind in plan:
            group = values[place]
            try:
                if not isinstance(group, kind) or len(group) != len(keys):
                    raise KeyError
                values += [group[key] for key in keys]
            except KeyError:
                path = next(path for path, known in place_of.items() if known == place)
                raise ValueError(
                    f"the observation{path_suffix(path)} must have exactly the parts "
                    f"{', '.join(map(str, keys))}"
                ) from None
        for write, place, where in writes:
            write(values[place], flat[where])
        return flat

    return encode


def groups_of(parts: Sequence[ObservationPart]) -> dict[Path, list[Any]]:
    """The keys of each mapping and tuple by its path, the outermost first."""
    groups: dict[Path, dict[str | int, None]] = {}
    for part in parts:
        for depth, key in enumerate(part.path):
            groups.setdefault(part.path[:depth], {})[key] = None
    return {path: list(keys) for path, keys in groups.items()}


def format_parts(parts: Sequence[ObservationPart]) -> str:
    """For people: ``arm.position 0-2, camera 3-66``."""
    shown, start = [], 0
    for part in parts:
        last = f"-{start + part.size - 1}" if part.size > 1 else ""
        shown.append(f"{path_suffix(part.path).strip()} {start}{last}")
        start += part.size
    return ", ".join(shown)


def parts_from_json(values: Any) -> tuple[ObservationPart, ...]:
    """Parts that a checkpoint's meta holds as dictionaries. Raises ValueError for anything else."""
    names = ("path", "choices", "starts")
    try:
        parts = tuple(
            ObservationPart(size=one["size"], **{name: tuple(one[name]) for name in names})
            for one in values
        )
        if max(len(part.path) for part in parts) > MAX_DEPTH:
            raise ValueError("the observations have too many levels")
        groups = groups_of(parts)
    except (TypeError, KeyError):
        raise ValueError("the description of the observations is invalid") from None
    for part in parts:
        if any(type(number) is not int for number in (part.size, *part.choices, *part.starts)):
            raise ValueError("the sizes of the observations are not all whole numbers")
        if (
            len(part.choices) != len(part.starts)
            or min(part.choices, default=1) < 1
            or (part.choices and sum(part.choices) != part.size)
        ):
            raise ValueError("the choices of the observations are invalid")
    for keys in groups.values():
        if keys != list(range(len(keys))) and any(type(key) is not str for key in keys):
            raise ValueError("the names of the observations' parts are invalid")
    paths = {part.path for part in parts}
    if len(paths) < len(parts) or paths & groups.keys():
        raise ValueError("the parts of the observations are invalid")
    if min(part.size for part in parts) < 1 or sum(part.size for part in parts) > MAX_NUMBERS:
        raise ValueError("an observation of so many numbers is not possible")
    return parts
