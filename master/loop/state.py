"""The state of a run between two generations: what a checkpoint holds, and a resume needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import DecodeError, RunFolderError
from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.statistics import FrozenStatistics, RunningMoments
from es_queue.protocol.messages import publication_generation
from es_queue.strategies.base import State

Arrays = dict[str, NDArray[Any]]

TRAINING, CLOSING, ENDING = "training", "closing", "final"
#: Why training ends by itself: settings that limit its generations, steps and seconds; its target.
BUDGETS, TARGET = ("generations", "max_steps", "max_seconds"), "target"
#: Names of a checkpoint's scalars.
SCALARS = (
    *("generation", "step_limit", "stage", "reason", "confirm_mean", "last_evaluation"),
    *("reproducible", "epoch", "numerics", "origin", "recoveries", "noise"),
)
BEST_SCALARS = ("generation", "eval_mean", "confirmed")
ANCHOR_SCALARS = ("generation", "step_limit", "std", "count")
OPEN_ARRAYS = ("spread", "counted", "spans")


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
    moments: RunningMoments
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

    @classmethod
    def from_checkpoint(
        cls, arrays: Mapping[str, NDArray[Any]], publication: str, step_limit: int
    ) -> OpenPublication:
        spread, counted, spans = (arrays[f"open.{publication}.{name}"] for name in OPEN_ARRAYS)
        if counted.ndim != 2 or counted.shape[1] != 2 or spans.ndim != 2 or spans.shape[1] != 3:
            raise ValueError("the counted slots are not ranges")
        return cls(
            publication,
            int(step_limit),
            spread.astype(np.float32),
            counted.astype(np.int64),
            spans.astype(np.int64),
        )


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
    moments: RunningMoments
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

    def to_arrays(self) -> Arrays:
        arrays = prefixed("strategy.", self.strategy) | self.moments.to_arrays()
        if self.best is not None:
            best = {name: getattr(self.best, name) for name in ("parameters", "mean", "std")}
            arrays |= prefixed("best.", best | prefixed("genome.", self.best.genome))
        for older in self.open:
            own = {name: getattr(older, name) for name in OPEN_ARRAYS}
            arrays |= prefixed(f"open.{older.publication}.", own)
        if (anchor := self.anchor) is not None:
            arrays |= prefixed("anchor.", {**anchor.strategy, **anchor.moments.to_arrays()})
        return arrays

    def to_dict(self) -> dict[str, Any]:

        def some(each: object, names: tuple[str, ...]) -> dict[str, Any] | None:
            return None if each is None else {name: getattr(each, name) for name in names}

        return {
            **{name: getattr(self, name) for name in SCALARS},
            "best": some(self.best, BEST_SCALARS),
            "counters": asdict(self.counters),
            "changes": [asdict(change) for change in self.changes],
            "anchor": some(self.anchor, ANCHOR_SCALARS),
            "open": [[older.publication, older.step_limit] for older in self.open],
            "descent": asdict(self.descent),
        }

    @classmethod
    def from_checkpoint(
        cls, arrays: Mapping[str, NDArray[Any]], values: Mapping[str, Any]
    ) -> RunState:
        """Restore the output of ``to_arrays`` and ``to_dict``. Raises RunFolderError in one
        sentence.
        """
        try:
            best, anchor = values["best"], values["anchor"]
            if best is not None:
                saved = without_prefix("best.", arrays)
                genome = without_prefix("genome.", saved)
                best = Best(saved["parameters"], saved["mean"], saved["std"], **best, genome=genome)
            if anchor is not None:
                saved = without_prefix("anchor.", arrays)
                moments = RunningMoments.from_arrays(saved)
                search = {name: saved[name] for name in saved if not name.startswith("moments_")}
                anchor = RollbackPoint(strategy=search, moments=moments, **anchor)
            return cls(
                int(values["generation"]),
                step_limit=int(values["step_limit"]),
                strategy=without_prefix("strategy.", arrays),
                moments=RunningMoments.from_arrays(arrays),
                best=best,
                counters=Counters(**values["counters"]),
                changes=tuple(Change(**change) for change in values["changes"]),
                anchor=anchor,
                descent=CurrentDescent(**values["descent"]),
                open=tuple(
                    OpenPublication.from_checkpoint(arrays, *publication)
                    for publication in values["open"]
                ),
                **{name: values[name] for name in SCALARS[2:]},
            )
        except (KeyError, TypeError, ValueError, DecodeError) as error:
            raise RunFolderError(
                f"the checkpoint does not hold a run's state: {type(error).__name__} {error}"
            ) from None


def prefixed(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def vector_digest(vector: Floats) -> str:
    """BLAKE2b-128 of the bytes that are published: little-endian float32."""
    return bytes_digest(vector.astype("<f4").tobytes())
