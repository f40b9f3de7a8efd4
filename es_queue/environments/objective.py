"""The user's objective as an Environment: an episode is one step, its reward the function's value.

``function(vector, seed)``, or ``function(vector)``, takes a float32 array and an int and returns a
number, or ``(number, behaviour)``; larger is better. All its randomness must come from the seed.
With the attribute ``batched = True`` it takes float32[N, d] and int64[N] seeds, and returns N
numbers, or ``(numbers, behaviours)``. Other attributes describe its variables: see
``es_queue.policies.custom.objective_space``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from es_queue.backends import LEAN, STOCK
from es_queue.config.run_config import ASKED
from es_queue.environments.interface import EnvironmentRequest, EnvironmentSpec
from es_queue.environments.stock import behaviour_vector
from es_queue.errors import EnvironmentFailure, UsageError
from es_queue.numerics.arrays import Doubles, Floats, Mask
from es_queue.policies.actions import ActionMap
from es_queue.policies.custom import initial_vector, load_objective, objective_space
from es_queue.text import nearest_names
from es_queue.user_code import describe_error

#: What describes an objective, each with the names that other programs have for it.
ATTRIBUTES = {
    "lower": ("bounds", "minimum"),
    "upper": ("high", "maximum"),
    "start": ("initial", "x0"),
    "scale": (),
    "batched": ("vectorized", "vectorised"),
}
#: Vectors of the test whether a batch gives the bits of single calls, and of its smaller batch.
TRIED, TRIED_TOGETHER = 8, 3


class Objective:
    """A request of an objective, and what plays it."""

    def __init__(self, request: EnvironmentRequest) -> None:
        self.request = self.portable = request
        self.batch = ObjectiveBatch if request.backend == LEAN.name else None

    def open(self) -> ObjectiveEnvironment:
        if self.request.id == ASKED:
            raise UsageError(
                "other programs score this run's vectors (es_queue.AskTell), no worker: the best "
                "is load_policy(RUN).vector"
            )
        return ObjectiveEnvironment(self.request)

    def open_rendered(self, render_mode: str) -> NoReturn:
        raise UsageError(
            f"{self.request.id} is an objective, so there is nothing to draw: leave --render and "
            "--record out"
        )

    def open_vector(self) -> ObjectiveBatch | None:
        return self.batch and self.batch(self.request)

    def describe(self) -> EnvironmentSpec:
        """Call the function with its first vector, and choose the back end: lean for batches that
        give the bits of single calls. Raises EnvironmentFailure if it fails.
        """
        request = self.request
        parameters, space = initial_vector(request), objective_space(request)
        if request.id == ASKED:
            if request.behaviour:
                raise UsageError(
                    "objective is ask, but the strategy compares behaviours: use another"
                )
            return EnvironmentSpec(ASKED, 1, space, 1, None, None, STOCK.name)
        env, actions = ObjectiveEnvironment(request), ActionMap(space, "clip")
        tries = is_batched(request) and not request.behaviour and request.backend != STOCK.name
        try:
            env.reset(0)
            value = env.step(actions.act_one(parameters.copy()))[1]
            size = len(env.behaviour()) if request.behaviour else 0
            plays_batches = tries and _gives_equal_bits(request, parameters, actions)
        except EnvironmentFailure:
            raise
        except Exception as error:  # whatever a user's function raises
            raise EnvironmentFailure(
                f"{request.id} fails with its first vector: {describe_error(error)}"
            ) from error
        if not np.isfinite(value):
            raise EnvironmentFailure(
                f"{request.id} returned {value} for its first vector: it must return a finite "
                "number"
            )
        note = _misnamed_attributes(request.id)
        if tries and not plays_batches:
            note = (
                f"{request.id} gives other bits for many vectors at once than for single ones, or "
                "raises for one of the first few, so it gets one vector at a time"
            )
        if request.backend == LEAN.name and not plays_batches:
            raise UsageError(
                note
                if tries
                else f"backend is lean, but {request.id} takes one vector at a time: set its "
                "attribute batched, or leave backend at auto"
            )
        backend = LEAN if plays_batches else STOCK
        spec = EnvironmentSpec(request.id, 1, space, 1, None, None, backend.name)
        return replace(spec, behaviour=request.behaviour, behaviour_size=size, note=note)


class ObjectiveEnvironment:
    """An Environment whose action is the vector."""

    def __init__(self, request: EnvironmentRequest) -> None:
        self._function = seeded_objective(request.id)
        self._seed = 0
        self._id = request.id
        self._behaviour: Any = None
        self._batch = ObjectiveBatch(request) if is_batched(request) else None

    def reset(self, seed: int) -> Floats:
        self._seed = seed
        return np.zeros(1, np.float32)

    def step(self, action: Any) -> tuple[Floats, float, bool]:
        if self._batch is not None:
            values, behaviours = self._batch.call(action[None], [self._seed])
            self._behaviour = None if behaviours is None else behaviours[0]
            return np.zeros(1, np.float32), values.item(), True
        result = self._function(action, self._seed)
        if isinstance(result, tuple) and len(result) != 2:
            raise EnvironmentFailure(
                f"{self._id} returned {len(result)} values, but must return a number, or "
                "(number, behaviour)"
            )
        value, self._behaviour = result if isinstance(result, tuple) else (result, None)
        try:
            return np.zeros(1, np.float32), float(value), True
        except (TypeError, ValueError):
            shape = f" of shape {list(value.shape)}" if isinstance(value, np.ndarray) else ""
            raise TypeError(
                f"it returned {type(value).__name__}{shape}, but must return a number"
                f"{', such as float(value[0])' if shape == ' of shape [1]' else ''}"
            ) from None

    def behaviour(self) -> Floats:
        """What the last call returned. Raises EnvironmentFailure if that was only a number."""
        if self._behaviour is None:
            raise EnvironmentFailure(
                f"the objective {self._id} returns only a number, but the strategy compares "
                "behaviours: return (number, behaviour)"
            )
        return behaviour_vector(self._behaviour)

    def close(self) -> None: ...


class ObjectiveBatch:
    """Many vectors in one call of a batched function, as a VectorEnvironment."""

    min_episodes = 2
    max_episodes = 512

    def __init__(self, request: EnvironmentRequest) -> None:
        self._function = seeded_objective(request.id)

    def reset(self, seeds: Sequence[int]) -> Floats:
        self._seeds = np.array(seeds, np.int64)
        return np.zeros((len(seeds), 1), np.float32)

    def step(self, rows: NDArray[np.int32], actions: NDArray[Any]) -> tuple[Floats, Doubles, Mask]:
        values, _ = self.call(actions, self._seeds[rows])
        return np.zeros((len(rows), 1), np.float32), values, np.ones(len(rows), np.bool_)

    def call(self, vectors: Floats, seeds: Any) -> tuple[Doubles, Any]:
        """The values, float64[N], and the behaviours, or None. Raises TypeError for other
        numbers.
        """
        # the function may change its vectors
        result = self._function(vectors.copy(), np.asarray(seeds, np.int64))
        found, behaviours = result if isinstance(result, tuple) else (result, None)
        values = np.array(found, np.float64)
        shapes = [values.shape] if behaviours is None else [values.shape, (len(behaviours),)]
        if any(shape != (len(vectors),) for shape in shapes):
            raise TypeError(
                f"it returned {' and '.join(str(list(shape)) for shape in shapes)} numbers for "
                f"{len(vectors)} vectors, but is batched and must return one for each"
            )
        return values, behaviours

    def close(self) -> None: ...


def is_batched(request: EnvironmentRequest) -> bool:
    return bool(getattr(load_objective(request.id), "batched", False))


def seeded_objective(path: str) -> Callable[[Any, Any], Any]:
    """The objective as a function of (vector, seed). Raises EnvironmentFailure if it takes neither
    these nor only the vector.
    """
    function = load_objective(path)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C may not show its arguments
        return function
    with suppress(TypeError):
        signature.bind(None, 0)
        return function
    with suppress(TypeError):
        signature.bind(None)
        return lambda vector, seed: function(vector)
    raise EnvironmentFailure(
        f"the objective {path} has the arguments {signature}: it must take (vector, seed), or "
        "(vector)"
    )


def _misnamed_attributes(path: str) -> str:
    """A sentence about attributes that nothing reads, and that are named almost as those that
    count; empty if there are none.
    """
    given = getattr(load_objective(path), "__dict__", {}).keys() - ATTRIBUTES.keys()
    near = {
        name: next((known for known, others in ATTRIBUTES.items() if name in others), "")
        or next(iter(nearest_names(name, ATTRIBUTES)), "")
        for name in sorted(given)
    }
    return "; ".join(
        f"the attribute {name} of {path} is not used: did you mean {known}?"
        for name, known in near.items()
        if known
    )


def _gives_equal_bits(request: EnvironmentRequest, first: Floats, actions: ActionMap) -> bool:
    """Whether a few vectors have the same values in a large batch, a small one and alone."""
    bump = np.cos(np.arange(len(first), dtype=np.float32))
    rows: Floats = np.stack([first + np.float32(0.1 * row) * bump for row in range(TRIED)])
    vectors, batch = actions.act(rows), ObjectiveBatch(request)
    try:
        together, _ = batch.call(vectors, range(TRIED))
        few, _ = batch.call(vectors[:TRIED_TOGETHER], range(TRIED_TOGETHER))
        alone = [batch.call(vectors[row : row + 1], [row])[0] for row in range(TRIED_TOGETHER)]
    except Exception:  # of a vector that the function does not take
        return False
    expected = np.concatenate(alone).tobytes()
    return together[:TRIED_TOGETHER].tobytes() == few.tobytes() == expected
