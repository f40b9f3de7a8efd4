"""Users' own policies (docs/policies.md): ``NumpyPolicy`` to extend, and how a class is imported by
name, constructed, and tested before training.
"""

from __future__ import annotations

import inspect
import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from es_queue.config.run_config import ASKED
from es_queue.environments.episode_rules import parse_bounds
from es_queue.environments.interface import ActionSpec, EnvironmentRequest
from es_queue.errors import EnvironmentFailure, EsQueueError, UsageError
from es_queue.numerics.arrays import Doubles, Floats, Mask
from es_queue.policies.base import (
    MAX_PARAMETERS,
    BoundPolicy,
    Policy,
    bind_rows,
    draw_unlayered,
)
from es_queue.policies.torch_module import TorchPolicy
from es_queue.user_code import describe_error, load_attribute, load_function

MAX_MEMORY = 2**20
TRIED_INDIVIDUALS, TRIED_STEPS = 3, 3
#: So many float32 numbers are between two bounds at least.
LEAST_STEPS = 100
TORCH_HINT = ": pip install 'es-queue[torch]'"


class NumpyPolicy(Policy):
    """Extend it and define ``act``. ``__init__`` takes (observation_size, outputs), and if it wants
    the shape of the observation array, () for a vector, observation_shape.
    """

    def __init__(
        self, observation_size: int, outputs: int, size: int, memory_size: int = 0
    ) -> None:
        self.observation_size, self.outputs, self.size = observation_size, outputs, size
        self.memory_size = memory_size

    @property
    def description(self) -> tuple[object, ...]:
        kind = type(self)
        return (
            f"{kind.__module__}:{kind.__qualname__}",
            self.observation_size,
            self.outputs,
            self.size,
            self.memory_size,
        )

    @abstractmethod
    def act(self, parameters: Floats, observation: Floats, memory: Floats) -> Any:
        """The raw outputs [outputs] of one individual.

        parameters:  float32[size], read-only
        observation: float32[observation_size]
        memory:      float32[memory_size], zeros when an episode begins; write to it what the next
        step needs
        """

    def initial(self, seed: int, init: str) -> Floats:
        """auto: zeros; normal: standard normal numbers / √size."""
        drawn = draw_unlayered(self.size, seed, init, "your own policy has no known layers")
        first: Floats = (drawn / np.sqrt(self.size)).astype(np.float32)
        return first

    def bind(self, parameters: Floats) -> BoundPolicy:
        rows = self.checked(parameters).view()
        rows.flags.writeable = False
        memory = np.zeros((len(rows), self.memory_size), np.float32)

        def act_row(row: int, observation: Floats) -> Floats:
            raw = self.act(rows[row], observation, memory[row])
            flat = np.array(raw, np.float32).reshape(-1)
            if len(flat) != self.outputs:
                raise ValueError(
                    f"act returned {len(flat)} numbers, but must return {self.outputs}"
                )
            return flat

        return bind_rows(act_row, memory)


def load_custom_policy(
    path: str, observation_size: int, outputs: int, shape: tuple[int, ...]
) -> Policy:
    """The policy that ``module:Class`` names: a class that extends Policy (simplest: NumpyPolicy),
    or a torch.nn.Module. Raises UsageError if it cannot be imported, created or trained.
    """
    kind = _load_class(path)
    try:
        shaped = "observation_shape" in inspect.signature(kind).parameters
        named: dict[str, Any] = {"observation_shape": shape} if shaped else {}

        def build() -> Any:
            try:
                return kind(observation_size, outputs, **named)
            except Exception as error:  # whatever a user's class raises
                raise UsageError(
                    f"the policy {path} cannot be created with (observation_size, outputs) = "
                    f"({observation_size}, {outputs}): {describe_error(error)}"
                ) from error

        if issubclass(kind, Policy):
            policy: Policy = build()
        else:
            inputs = shape if shaped else ()
            policy = TorchPolicy(path, build, observation_size, outputs, inputs)
        for name, least, most in (
            ("observation_size", observation_size, observation_size),
            ("outputs", outputs, outputs),
            ("size", 1, MAX_PARAMETERS),
            ("memory_size", 0, MAX_MEMORY),
        ):
            value = getattr(policy, name, None)
            if type(value) is not int or not least <= value <= most:
                expected = str(least) if least == most else f"a whole number from {least} to {most}"
                raise UsageError(
                    f"the policy {path} has the {name} {value!r}, but must have {expected}"
                )
        _validate_actions(path, policy)
    except EsQueueError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise UsageError(f"the policy {path} fails in a test: {describe_error(error)}") from error
    return policy


def _load_class(path: str) -> type[Any]:
    try:
        kind = load_attribute(f"policy {path}", path, UsageError)
    except UsageError as error:
        missing = error.__cause__
        lacks_torch = isinstance(missing, ModuleNotFoundError) and missing.name == "torch"
        raise UsageError(f"{error}{TORCH_HINT if lacks_torch else ''}") from missing
    torch: Any = sys.modules.get("torch")  # a module's class has imported it
    bases = (Policy, torch.nn.Module) if torch else (Policy,)
    if not isinstance(kind, type) or inspect.isabstract(kind) or not issubclass(kind, bases):
        raise UsageError(
            f"the policy {path} is neither a class that extends "
            "es_queue.policies.NumpyPolicy and defines act, nor a torch.nn.Module"
        )
    return kind


def _validate_actions(path: str, policy: Policy) -> None:
    """Raises UsageError if it has no first parameters, or if individuals act differently in a
    batch.
    """
    first = [np.asarray(policy.initial(seed, "auto")) for seed in (1, 1)]
    given, shape = first[0], (policy.size,)
    if given.dtype != np.float32 or given.shape != shape or not np.isfinite(given).all():
        raise UsageError(
            f"the policy {path} has initial parameters {given.dtype}{list(given.shape)}, "
            f"but must have {policy.size} finite float32"
        )
    if first[0].tobytes() != first[1].tobytes():
        raise UsageError(
            f"the policy {path} has different initial parameters each time: initial must draw "
            "only from its seed"
        )
    bump = np.cos(np.arange(policy.size, dtype=np.float32))
    rows: Floats = np.stack(
        [given + np.float32(0.1 * row) * bump for row in range(TRIED_INDIVIDUALS)]
    )
    with np.errstate(all="ignore"):
        together = _probe_outputs(policy, rows)
        alone = [_probe_outputs(policy, rows[row : row + 1]) for row in range(TRIED_INDIVIDUALS)]
    expected = (2, TRIED_STEPS, TRIED_INDIVIDUALS, policy.outputs)
    if together.dtype != np.float32 or together.shape != expected:
        raise UsageError(
            f"the policy {path} returns {together.dtype}{list(together.shape[2:])} for "
            f"{TRIED_INDIVIDUALS} individuals, but must return float32[{TRIED_INDIVIDUALS}, "
            f"{policy.outputs}]"
        )
    if together.tobytes() != np.concatenate(alone, axis=2).tobytes():
        raise UsageError(
            f"the policy {path} gives different bits for many individuals at once than for "
            "single ones: results would depend on the number of workers"
        )
    if together[0].tobytes() != together[1].tobytes():
        raise UsageError(
            f"the policy {path} acts differently in a second, equal episode: it must keep its "
            "state only in memory"
        )


def _probe_outputs(policy: Policy, rows: Floats) -> Floats:
    """float32[2, TRIED_STEPS, B, outputs] of two episodes with the same few observations."""
    bound = policy.bind(rows)
    count = TRIED_STEPS * policy.observation_size
    observations = np.sin(np.arange(count, dtype=np.float32)).reshape(TRIED_STEPS, -1)
    episodes = []
    for _ in range(2):
        one = bound.begin()
        episodes.append(
            [
                np.copy(one(seen)[None] if len(rows) == 1 else bound(np.stack([seen] * len(rows))))
                for seen in observations
            ]
        )
    return np.array(episodes)


# --- an objective's function and first vector


def load_objective(path: str) -> Callable[..., Any]:
    """Raises EnvironmentFailure in one sentence."""
    if path == ASKED:
        return _not_called
    return load_function("objective", path, EnvironmentFailure)


def _not_called(vector: Floats) -> float:
    raise EnvironmentFailure("other programs score this run's vectors: see es_queue.AskTell")


def initial_vector(request: EnvironmentRequest) -> Floats:
    """float32 [parameters]: zeros in a box, else the function's ``start`` or zeros. Raises
    EnvironmentFailure if it does not fit.
    """
    space = objective_space(request)
    if space.scale:
        return np.zeros(request.parameters, np.float32)
    return _variables(request, "start", 0.0).astype(np.float32)


def objective_space(request: EnvironmentRequest) -> ActionSpec:
    """The variables of an objective: its attributes ``lower``, ``upper``, ``scale`` and ``start``,
    a number for all or one for each; ``--bounds`` replaces the first two. Without bounds and scale,
    the parameters are the variables.

    Parameters from -1 to 1 fill the box, unless it has a scale; they are the variables' own unit
    where a bound is missing. Raises EnvironmentFailure for bounds that enclose nothing, or no more
    than a few float32 numbers.
    """
    plain = ActionSpec("vector", shape=(request.parameters,))
    function = load_objective(request.id)
    if not request.bounds and all(
        getattr(function, name, None) is None for name in ("lower", "upper", "scale")
    ):
        return plain
    low, high = _variables(request, "lower", -np.inf), _variables(request, "upper", np.inf)
    if request.bounds:
        low, high = np.array(parse_bounds(request.bounds)).T
        low, high = low + np.zeros(request.parameters), high + np.zeros(request.parameters)

    def refuse(bad: Mask, why: str, *figures: Doubles) -> None:
        for place in np.flatnonzero(bad).tolist():
            shown = why.format(*(f"{figure[place]:.10g}" for figure in figures))
            raise EnvironmentFailure(f"in variable {place} of {request.id}, {shown}")

    refuse(~(low < high), "lower is {} and upper is {}: lower must be below upper", low, high)
    with np.errstate(invalid="ignore"):
        half, middle = high / 2 - low / 2, high / 2 + low / 2
        step = np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
    refuse(
        high - low < LEAST_STEPS * step,
        "the bounds {} and {} are too close for float32, the type of the vector: search the "
        "difference from a fixed number",
        low,
        high,
    )
    near_zero = np.minimum(np.maximum(0.0, low), high)
    start = _variables(request, "start", np.where(np.isfinite(half), middle, near_zero))
    scale = _variables(request, "scale", np.where(np.isfinite(half), half, 1.0))
    refuse(~(scale > 0), "scale is {}: it must be above 0", scale)
    is_inside = (low <= start) & (start <= high)
    refuse(~is_inside, "start is {}, outside its bounds {} to {}", start, low, high)
    return replace(
        plain,
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        start=tuple(start.tolist()),
        scale=tuple(scale.tolist()),
    )


def _variables(request: EnvironmentRequest, name: str, default: Doubles | float) -> Doubles:
    """float64[parameters] of an objective's attribute, one number for all or one for each."""
    given = getattr(load_objective(request.id), name, None)
    size, is_bound = request.parameters, name in ("lower", "upper")
    try:
        values = np.array(default if given is None else given, np.float64)
    except (TypeError, ValueError) as error:
        raise EnvironmentFailure(
            f"the attribute {name} of {request.id} is not an array of numbers: "
            f"{describe_error(error)}"
        ) from None
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32)) | (is_bound & np.isinf(values))
    if values.shape not in ((), (size,)) or not finite.all():
        what = f"the shape {list(values.shape)}" if finite.all() else "numbers that are not finite"
        raise EnvironmentFailure(
            f"the attribute {name} of {request.id} has {what}: give one finite number for all "
            f"variables, or a list of {size}"
        )
    return np.broadcast_to(values, (size,)).copy()
