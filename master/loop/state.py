"""The state of a run between two generations: what a checkpoint holds, and a resume needs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import DecodeError, RunFolderError
from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.statistics import FrozenStatistics, Moments
from es_queue.protocol.messages import publication_generation
from es_queue.strategies.base import State

Arrays = dict[str, NDArray[Any]]

TRAINING, CLOSING, ENDING = "training", "closing", "final"
#: Why training ends by itself: settings that limit its generations, steps and seconds; its target.
BUDGETS, TARGET = ("generations", "max_steps", "max_seconds"), "target"


@dataclass(frozen=True)
class Best:
    """The best evaluated parameters so far, with the statistics under which they were evaluated.

    confirmed: they passed the target on fresh episodes; then nothing replaces them
    genome: ``Strategy.genome`` of them; empty if the numbers are the shortest form
    """

    parameters: Floats
    mean: Floats
    std: Floats
    generation: int
    eval_mean: float
    confirmed: bool = False
    genome: State = field(default_factory=dict)


@dataclass(frozen=True)
class RollbackPoint:
    """The whole search at the evaluation of the best parameters, for a rollback; or at the
    beginning of each descent of --restart-deadlines.

    std, count: of the returns of that evaluation, whose mean is the best's
    """

    generation: int
    strategy: State
    moments: Moments
    step_limit: int
    std: float
    count: int

    @classmethod
    def of(cls, state: RunState, std: float = 0.0, count: int = 0) -> RollbackPoint:
        search = state.generation, state.strategy, state.moments, state.step_limit
        return cls(*search, std, count)


@dataclass(frozen=True)
class CurrentDescent:
    """The part of a run since the search last began.

    number: of the descent, from 0; generation: its first; steps: training steps counted before it;
    best: mean of its best evaluation; reached: share of the last generation's individuals whose
    return was at least the target
    """

    number: int = 0
    generation: int = 0
    steps: int = 0
    best: float | None = None
    reached: float = 0.0


@dataclass(frozen=True)
class Change:
    """Settings that were changed during the run, from ``generation`` on.

    by, time: the user who asked, and their clock in seconds; id: the request, which counts once
    """

    generation: int
    settings: dict[str, Any]
    by: str = ""
    time: float = 0.0
    id: str = ""


@dataclass(frozen=True)
class Counters:
    """Totals of a run since its start. Papers compare env_steps, and --max-steps limits it."""

    episodes: int = 0
    env_steps: int = 0
    eval_steps: int = 0
    surplus_steps: int = 0
    lost_steps: int = 0
    seconds: float = 0.0
    patience_generations: int = 0
    late: int = 0
    duplicate: int = 0
    reissued: int = 0
    refused: int = 0
    recovered: int = 0


@dataclass(frozen=True)
class OpenPublication:
    """A replaced publication whose results still count (--schedule async).

    step_limit: of its training episodes; spread: of its perturbations
    counted: int64 [R, 2], ranges (start, stop) of the rows that have been learnt from
    spans: int64 [K, 3], of its slot table
    """

    publication: str
    step_limit: int
    spread: Floats
    counted: Integers
    spans: Integers

    @property
    def generation(self) -> int:
        return publication_generation(self.publication)


@dataclass(frozen=True)
class RunState:
    """The state at the start of ``generation``: publishing it and learning from its answers gives
    the next one.

    epoch: number of the newest fencing token that published it; a successor's is higher, whatever
    Redis has lost
    numerics: fingerprint of the run's first worker; reproducible: whether every worker since had
    the same
    stage: training; closing, when the run ends and its last parameters must still be evaluated;
    final, when the chosen parameters play their last episodes. reason: why the run ends
    changes: settings changed during the run, including those for later generations; anchor: kept
    only with --rollback and --restart-deadlines; descent: a second begins only with the latter
    origin: the source of a warm start, in words; empty without one
    recoveries: count, seconds and worst by cause, see ``master.loop.generation_record``
    noise: digest of the noise table
    open: older publications, oldest first; only in the asynchronous schedule
    """

    generation: int
    strategy: State
    moments: Moments
    step_limit: int
    stage: str = TRAINING
    reason: str = ""
    best: Best | None = None
    confirm_mean: float | None = None
    last_evaluation: float | None = None
    reproducible: bool = True
    epoch: int = 0
    numerics: str = ""
    counters: Counters = field(default_factory=Counters)
    changes: tuple[Change, ...] = ()
    anchor: RollbackPoint | None = None
    descent: CurrentDescent = CurrentDescent()
    origin: str = ""
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    noise: str = ""
    open: tuple[OpenPublication, ...] = ()

    def statistics(self, clip: float) -> FrozenStatistics:
        return self.moments.freeze(clip)

    def add_counts(self, **more: float) -> Counters:
        return replace(
            self.counters,
            **{name: getattr(self.counters, name) + value for name, value in more.items()},
        )

    def save(self) -> tuple[Arrays, dict[str, Any]]:
        """Its arrays and its other values, for a checkpoint."""
        arrays: Arrays = {}
        return arrays, save_part(self, "", arrays)

    @classmethod
    def restore(cls, arrays: Arrays, values: dict[str, Any]) -> RunState:
        """The state that ``save`` gave these. Raises RunFolderError in one sentence."""
        try:
            state: RunState = restore_part(cls, values, "", arrays)
            if not all(type(number) is int for number in (state.generation, state.step_limit)):
                raise TypeError("its generation and step limit are whole numbers")
        except (LookupError, TypeError, ValueError, DecodeError) as error:
            raise RunFolderError(
                f"the checkpoint does not hold a run's state: {type(error).__name__} {error}"
            ) from None
        return state


#: Fields that are a strategy's own arrays, and those that are dataclasses, or several of them.
STRATEGY_ARRAYS = ("strategy", "genome")
PARTS = {
    "best": Best,
    "counters": Counters,
    "changes": Change,
    "anchor": RollbackPoint,
    "descent": CurrentDescent,
    "open": OpenPublication,
}


def save_part(part: object, place: str, arrays: Arrays) -> dict[str, Any]:
    """The values of a dataclass; its arrays go into ``arrays``, each under its place."""
    values: dict[str, Any] = {}
    for name, value in vars(part).items():
        inside = f"{place}{name}."
        if isinstance(value, Moments):
            arrays |= {f"{place}{key}": array for key, array in value.to_arrays().items()}
        elif name in STRATEGY_ARRAYS:
            arrays |= {f"{inside}{key}": array for key, array in value.items()}
        elif isinstance(value, np.ndarray):
            arrays[f"{place}{name}"] = value
        elif isinstance(value, tuple):
            numbered = enumerate(value)
            values[name] = [save_part(each, f"{inside}{k}.", arrays) for k, each in numbered]
        elif is_dataclass(value):
            values[name] = save_part(value, inside, arrays)
        else:
            values[name] = value
    return values


def restore_part(kind: Any, values: dict[str, Any], place: str, arrays: Arrays) -> Any:
    """The inverse. Raises LookupError, TypeError or ValueError for what is missing or unknown."""
    found = dict[str, Any]()
    for one in fields(kind):
        name, value = one.name, values.get(one.name)
        inside = f"{place}{name}."
        if name == "moments":
            found[name] = Moments.from_arrays(without_prefix(place, arrays))
        elif name in STRATEGY_ARRAYS:
            found[name] = without_prefix(inside, arrays)
        elif name not in values:
            found[name] = arrays[f"{place}{name}"]
        elif name in PARTS and isinstance(value, list):
            parts = (
                restore_part(PARTS[name], each, f"{inside}{k}.", arrays)
                for k, each in enumerate(value)
            )
            found[name] = tuple(parts)
        elif name in PARTS and isinstance(value, dict):
            found[name] = restore_part(PARTS[name], value, inside, arrays)
        else:
            found[name] = value
    return kind(**found)


def without_prefix(prefix: str, arrays: Arrays) -> Arrays:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def vector_digest(vector: Floats) -> str:
    """BLAKE2b-128 of the bytes that are published: little-endian float32."""
    return bytes_digest(vector.astype("<f4").tobytes())
