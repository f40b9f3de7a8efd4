"""The base of strategies: ``ask`` builds individuals on workers, ``tell`` learns on the master.

Strategies are pure functions of arrays: no Redis, no clock, no random state. Optional features are
in ``hooks``.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from es_queue.config.declarations import ScaleRule, StrategyFacts
from es_queue.config.run_config import RunConfig
from es_queue.config.schedules import RateFactors
from es_queue.errors import EsQueueError, StrategyFailure
from es_queue.numerics.arrays import Doubles, Floats, Integers
from es_queue.numerics.ordered_sums import NoiseRows, norm
from es_queue.strategies.hooks import (
    Builder,
    BuildsIndividuals,
    Draw,
    SeveralCentres,
    SteadyState,
    candidates,
    centre_count,
)
from es_queue.strategies.shaping import BY_SIGN

__all__ = ["Batch", "NoiseRows", "State", "Strategy"]

#: Arrays only (0-d for counters), so that it goes into an .npz checkpoint as it is.
State = dict[str, NDArray[Any]]
Info = dict[str, float]
#: A figure of ``learn`` where there was no step because the new state was not finite.
NOT_FINITE = "not_finite"


@dataclass(frozen=True)
class BatchSegment:
    """Rows of a batch, up to ``stop``, that were perturbed from an older state than the learning
    one.

    spread: that state's ``Strategy.spread``
    """

    stop: int
    spread: Floats


@dataclass(frozen=True)
class Batch:
    """A closed generation in slot order: the individuals and their results.

    generation:  the one that closes
    slot_plans:  int64[S, 2], generation and slot of each row; None if row k is slot k of
    ``generation``
    elite_slots: int64[k, 2], generation and slot of each of ``elite_fitness``; None if they are
    those of ``candidates``
    segments:    in the asynchronous schedule, the states that perturbed the rows, in order; else
    none
    """

    noise: NoiseRows
    noise_indices: Integers  # [S], one a slot
    fitness: Doubles  # [S, per_slot]: plus, minus; NaN: failed everywhere
    #: [k]: mean fitness on fresh seeds of those whom ``candidates`` names, in its order; NaN:
    #: failed everywhere.
    elite_fitness: Doubles = field(default_factory=lambda: np.empty(0))
    segments: Sequence[BatchSegment] = ()
    #: float32 [S, per_slot, b], how individuals behaved, where the strategy ``wants_behaviour``;
    #: NaN: failed everywhere.
    behaviour: Floats = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))
    #: Fitness float64 [k] and behaviour float32 [k, b] of the other ``centres``, in their order;
    #: NaN: failed everywhere.
    centre_fitness: Doubles = field(default_factory=lambda: np.empty(0))
    centre_behaviour: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))
    generation: int = 0
    slot_plans: Integers | None = None
    elite_slots: Integers | None = None

    def plans(self) -> Integers:
        """int64[S, 2]: generation and slot of each row."""
        slots = len(self.noise_indices)
        if self.slot_plans is None:
            return np.stack([np.full(slots, self.generation), np.arange(slots)], axis=1)
        return self.slot_plans

    def by_spread(self, spread: Floats) -> list[tuple[slice, Floats]]:
        """(rows, spread) of each segment; without segments, all rows with the state's own
        ``spread``.
        """
        starts = [0, *(part.stop for part in self.segments)]
        ends = zip(starts, self.segments, strict=False)  # the last start has no segment
        return [(slice(start, part.stop), part.spread) for start, part in ends] or [
            (slice(None), spread)
        ]


class Strategy(ABC):
    """One algorithm. State is passed in and out; the object has only settings and never changes."""

    #: What ``--strategy`` calls it; a class without a name of its own is not registered.
    name: ClassVar[str] = ""
    #: Individuals per slot: 2 for a pair θ ± σε, which shares its environment seed.
    per_slot: ClassVar[int] = 2
    #: Names of settings that this class adds to those of its bases; ``used_settings`` has all.
    settings: ClassVar[tuple[str, ...]] = ()
    #: True when individuals are evaluated again, on fresh seeds, before the strategy learns.
    reevaluates: ClassVar[bool] = False
    #: True when workers must say how individuals behaved (see
    #: ``es_queue.environments.behaviour_descriptor``).
    wants_behaviour: ClassVar[bool] = False
    #: True when results of old generations are compared with new ones, so that observations must
    #: not be normalised by statistics that change.
    compares_generations: ClassVar[bool] = False
    #: Optimizers that the strategy can use; the first is its own choice ("auto").
    optimizers: ClassVar[tuple[str, ...]] = ()
    #: What a larger population is worth, by optimizer; "" without optimizers.
    scale_rules: ClassVar[Mapping[str, ScaleRule]] = {}
    #: True when it can learn from a batch of several publications (``Batch.segments``).
    asynchronous: ClassVar[bool] = False
    #: Deviation of the perturbations when the configuration says 0.
    SIGMA: ClassVar[float]

    #: True when workers must send Σ_t sign(r_t) as fitness.
    fitness_by_sign: bool

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        """For policies of ``size`` parameters, with rates at ``pace``. Use ``make_strategy``, which
        validates the settings.
        """
        self.config = config
        self.size = size
        self.pace = pace
        self.fitness_by_sign = "shaping" in self.used_settings() and config.shaping in BY_SIGN

    @classmethod
    def used_settings(cls) -> tuple[str, ...]:
        """The names of the settings of this class and of its bases, in order."""
        return tuple(
            sorted({name for base in cls.__mro__ for name in vars(base).get("settings", ())})
        )

    @classmethod
    def facts(cls) -> StrategyFacts:
        return StrategyFacts(
            f"{cls.__module__}:{cls.__qualname__}",
            cls.per_slot == 2,
            cls.used_settings(),
            cls.asynchronous,
            cls.optimizers,
            cls.scale_rules,
        )

    # --- what is published, and what workers do with it

    def start(self, parameters: Floats) -> State:
        """The state before the first generation, from float32 [size]. Raises ValueError for another
        length.
        """
        if parameters.shape != (self.size,):
            raise ValueError(f"parameters of shape {parameters.shape} for a policy of {self.size}")
        return {"parameters": np.array(parameters, np.float32)}

    def published(self, state: State) -> Floats:
        """The published vector, float32 [published_size]."""
        return state["parameters"]

    def digest_input(self, state: State, published: Floats) -> Floats:
        """The input of the run's digest, from the published vector."""
        return published

    def fits(self, size: int, observations: int) -> bool:
        """Whether a publication can have this many floats, for policies with this many
        observations.
        """
        return size == self.size

    def centre(self, published: Floats) -> Floats:
        """The unperturbed policy, float32 [size]."""
        return published[: self.size]

    def sigma(self, state: State) -> float:
        """The deviation of the perturbations, for workers (as float32) and for people."""
        return (self.config.sigma or self.SIGMA) * self.pace.sigma

    @property
    def step_rate(self) -> float | None:
        """The learning rate in effect; None for a strategy without one."""
        return None

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """θ + σε (and θ − σε if a slot is a pair) for each row of ``noise`` [S, size]: float32 [S,
        per_slot, size], in float32 arithmetic.
        """
        steps = np.float32(sigma) * noise
        if self.per_slot == 2:
            return mirror(self.centre(published), steps)
        single: Floats = self.centre(published) + steps
        return single[:, np.newaxis]

    # --- what the master learns

    def learn(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The state after a generation, and its figures; changes neither argument.

        Figures: norm (of the new parameters), gradient_norm, update_ratio (length of the step
        before decay over ``norm``), sigma (the next generation's), no_step (1: the state is
        unchanged). There is no step if every individual failed, if the strategy finds nothing to
        learn, or if the new state or a figure would not be finite. Raises ValueError if the batch's
        shapes disagree, or if the second results of ``candidates`` are missing.
        """
        expected_shape = (len(batch.noise_indices), self.per_slot)
        if batch.fitness.shape != expected_shape:
            raise ValueError(
                f"fitness has shape {batch.fitness.shape}, but must have {expected_shape}"
            )
        handles_all_failed = isinstance(self, SteadyState) and self.handles_all_failed
        if not np.isfinite(batch.fitness).any() and not handles_all_failed:
            return self.stay(state)
        expected_count = len(
            candidates(self, state, batch) if batch.elite_slots is None else batch.elite_slots
        )
        if batch.elite_fitness.shape != (expected_count,):
            raise ValueError(
                f"elite_fitness has shape {batch.elite_fitness.shape}, not {expected_count}"
            )
        if self.wants_behaviour and (
            batch.behaviour.shape[:2] != expected_shape
            or len(batch.centre_behaviour) != centre_count(self, state) - 1
        ):
            raise ValueError(
                f"behaviour has shape {batch.behaviour.shape}, with "
                f"{len(batch.centre_behaviour)} of centres, but must have {expected_shape} and "
                f"{centre_count(self, state) - 1}"
            )
        # What overflows is seen, and dropped, below.
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                after, info = self.tell(state, batch)
                numbers: tuple[Any, ...] = (*after.values(), *info.values())
                finite = all(bool(np.isfinite(array).all()) for array in numbers)
            except Exception as error:
                raise strategy_failure(self, "tell", error) from error
        if finite:
            return after, info
        state, info = self.stay(state)
        return state, {**info, NOT_FINITE: 1.0}

    @abstractmethod
    def tell(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The next state and its ``figures``, from a valid batch in which at least one individual
        succeeded.
        """

    def stay(self, state: State) -> tuple[State, Info]:
        """The result of ``learn`` when there is no step."""
        return dict(state), self.figures(state, 0.0, 0.0, no_step=True)

    def figures(
        self, state: State, gradient_norm: float, step_norm: float, *, no_step: bool = False
    ) -> Info:
        """The figures of ``learn`` for the new ``state``."""
        length = norm(state["parameters"])
        return {
            "norm": length,
            "gradient_norm": gradient_norm,
            "update_ratio": step_norm / length if length > 0 else 0.0,
            "sigma": self.sigma(state),
            "no_step": float(no_step),
        }


def make_builder(strategy: Strategy, noise: NoiseRows) -> Builder:
    """The builder of individuals in one process: the strategy's own, or ``ask`` slot by slot."""
    if isinstance(strategy, BuildsIndividuals):
        return strategy.builder(noise)
    return lambda published, sigma, drawn: strategy.ask(published, sigma, drawn.noise[np.newaxis])[
        0
    ]


def centre_of(strategy: Strategy, published: Floats, slot: int, draw: Draw) -> Floats:
    if isinstance(strategy, SeveralCentres):
        return strategy.centre_of(published, slot, draw)
    return strategy.centre(published)


def strategy_failure(strategy: Strategy, method: str, error: Exception) -> Exception:
    """An error that names the user's own strategy and the line that raised ``error``; for a
    strategy of es-queue, ``error`` itself.
    """
    if type(strategy).__module__.startswith("es_queue.") or isinstance(error, EsQueueError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return StrategyFailure(
        f"the strategy {strategy.config.strategy} failed in {method}: {type(error).__name__}: "
        f"{text}{place}"
    )


def validate_individuals(strategy: Strategy, individuals: Any, shape: tuple[int, ...]) -> None:
    """Raises StrategyFailure for individuals that are not float32 of this shape."""
    actual = getattr(individuals, "shape", None), getattr(individuals, "dtype", None)
    if actual != (shape, np.float32):
        raise StrategyFailure(
            f"the strategy {strategy.config.strategy} made individuals of shape {actual[0]} and "
            f"type {actual[1]}: its individuals must be float32 of shape {shape} per slot"
        )


def mirror(centre: Floats, steps: Floats) -> Floats:
    """``centre`` [size] + and − each row of ``steps`` [S, size], as float32 [S, 2, size]."""
    pairs = np.empty((len(steps), 2, len(centre)), np.float32)
    np.add(centre, steps, out=pairs[:, 0])
    np.subtract(centre, steps, out=pairs[:, 1])
    return pairs
