"""The base of strategies: ``ask`` builds individuals on workers, ``tell`` learns on the master.

Strategies are pure functions of arrays: no Redis, no clock, no random state. A strategy defines
``tell``, and each of the other methods for which the default is not right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import STRATEGIES, RunConfig
from es_queue.config.scaling import ScaleRule
from es_queue.config.schedules import ASYNC, RateFactors
from es_queue.config.settings import AUTO, declared, join, setting
from es_queue.errors import EsQueueError, StrategyFailure
from es_queue.numerics.arrays import Doubles, Floats, Integers, NoiseRows, norm
from es_queue.numerics.statistics import Moments
from es_queue.slot_plan import max_slots
from es_queue.strategies.shaping import BY_SIGN
from es_queue.user_code import describe_error, last_line

__all__ = ["Batch", "NoiseRows", "State", "Strategy"]

#: Only arrays (0-d for counters), as a checkpoint holds them.
State = dict[str, NDArray[Any]]
Info = dict[str, float]
#: A figure of ``learn`` if the new state was not finite, so there was no step.
NOT_FINITE = "not_finite"

#: (what is published, sigma, generation, slot, noise index) -> the slot's individuals, float32
#: [per_slot, size]; an elite that is evaluated again has the index -1.
Builder = Callable[[Floats, float, int, int, int], Floats]
#: The number of a centre -> first parameters of its own, by the policy and --init.
Draw = Callable[[int], Floats]


@dataclass(frozen=True)
class Batch:
    """What a generation learns from, as columns: S rows of one slot each, in the order of
    publications and slots. A value is NaN where the slot failed on every worker.

    noise_indices:    int64 [S], each slot's place in the noise
    fitness:          float64 [S, per_slot]; of a pair, θ + σε comes first
    elite_fitness:    float64 [k], mean fitness of evaluated elites on fresh seeds
    spreads:          (rows, ``Strategy.spread``) of each publication in order; empty if all rows
                      are of the state that learns
    behaviour:        float32 [S, per_slot, b], if the strategy ``wants_behaviour``
    centre_fitness:   float64 [c], of the centres from slot 1 on
    centre_behaviour: float32 [c, b], theirs
    generation:       the one that closes
    slot_plans:       int64 [S, 2], generation and slot of each row; by default, row k is slot k
    best:             generation of the best evaluated policy, -1 for none
    elite_slots:      int64 [k, 2], generation and slot of each of ``elite_fitness``: as
                      ``candidates`` names them, or results of ``elite_slot_count``
    """

    noise: NoiseRows
    noise_indices: Integers
    fitness: Doubles
    elite_fitness: Doubles = field(default_factory=lambda: np.empty(0))
    spreads: Sequence[tuple[slice, Floats]] = ()
    behaviour: Floats = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))
    centre_fitness: Doubles = field(default_factory=lambda: np.empty(0))
    centre_behaviour: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))
    generation: int = 0
    slot_plans: Integers = field(default_factory=lambda: np.empty((0, 2), np.int64))
    elite_slots: Integers = field(default_factory=lambda: np.empty((0, 2), np.int64))
    best: int = -1

    def __post_init__(self) -> None:
        if not len(self.slot_plans):
            rows = np.arange(len(self.noise_indices))
            plans = np.stack([np.full(len(rows), self.generation), rows], axis=1)
            object.__setattr__(self, "slot_plans", plans)

    def by_spread(self, own: Floats) -> Sequence[tuple[slice, Floats]]:
        """``spreads``, or all rows with the spread of the state that learns."""
        return self.spreads or [(slice(None), own)]


class Strategy(ABC):
    """One algorithm. State is passed in and out; the object has only settings and never changes."""

    class Settings:
        """Its own settings, each made by ``setting``; a subclass's extend its base's."""

    #: What ``--strategy`` calls it; a class without a name of its own is not registered.
    name: ClassVar[str] = ""
    #: Individuals per slot: 2 for a pair θ ± σε, which shares its environment seed.
    per_slot: ClassVar[int] = 2
    #: Whether individuals are evaluated again, on fresh seeds, before it learns; its settings are
    #: then ReevaluationSettings.
    reevaluates: ClassVar[bool] = False
    #: Whether it learns from individuals' behaviours; its settings are then BehaviourSettings.
    wants_behaviour: ClassVar[bool] = False
    #: Whether it compares results of different generations, so that the normalisation of
    #: observations must not change.
    compares_generations: ClassVar[bool] = False
    #: Optimizers that it can use; the first is its own choice ("auto").
    optimizers: ClassVar[tuple[str, ...]] = ()
    #: What a larger population is worth, by optimizer; "" without optimizers.
    scale_rules: ClassVar[Mapping[str, ScaleRule]] = {}
    #: Whether it can learn from a batch of several publications (``Batch.spreads``).
    asynchronous: ClassVar[bool] = False
    #: Deviation of the perturbations if the configuration gives none.
    SIGMA: ClassVar[float]

    def __init__(self, config: RunConfig, size: int, pace: RateFactors = RateFactors()) -> None:
        """For policies of ``size`` parameters, with rates at ``pace``. Use ``make_strategy``, which
        validates the settings.
        """
        self.config, self.size, self.pace = config, size, pace
        #: Whether workers must send Σ_t sign(r_t) as fitness.
        self.fitness_by_sign: bool = getattr(config, "shaping", "") in BY_SIGN

    @classmethod
    def check(cls, config: RunConfig) -> None:
        """Raises UsageError for settings that this strategy does not support."""
        for name in ("population", "population_max") if cls.per_slot == 2 else ():
            if getattr(config, name) % 2:
                why = f"{config.strategy} samples mirrored pairs: use an even number"
                raise config.refused(name, why)
        if config.env_seeds == "pair" and cls.per_slot == 1:
            why = f"{config.strategy} samples no pairs: use generation or slot"
            raise config.refused("env_seeds", why)
        if config.schedule == ASYNC and not cls.asynchronous:
            fix = "set asynchronous = True in its class"
            if config.strategy in STRATEGIES:
                able = [name for name, kind in STRATEGIES.items() if kind.asynchronous]
                fix = f"the strategy {join(able)}"
            why = f"{config.strategy} learns from whole generations: use the schedule sync, or"
            raise config.refused("schedule", f"{why} {fix}")
        cls.check_own(config)

    @classmethod
    def check_own(cls, config: RunConfig) -> None:
        """The part of ``check`` about the settings that this class declares."""
        if not cls.optimizers:
            return
        name = cls.optimizer_name(config)
        if name not in cls.optimizers:
            known = join((AUTO, *cls.optimizers))
            raise config.refused("optimizer", f"{config.strategy} does not take it: use {known}")
        momentum = declared(cls.Settings)["momentum"].default
        if name == "adam" and config.momentum != momentum:
            users = join([one for one in cls.optimizers if one != "adam"])
            fix = f"leave it out, or use the optimizer {users}"
            raise config.refused("momentum", f"the optimizer adam does not use it: {fix}")

    @classmethod
    def optimizer_name(cls, config: RunConfig) -> str:
        """The chosen one of ``optimizers``; empty for a strategy without any."""
        if not cls.optimizers:
            return ""
        return cls.optimizers[0] if config.optimizer == AUTO else str(config.optimizer)

    # --- the first state, and a state from elsewhere

    def start(self, parameters: Floats) -> State:
        """The state before the first generation. Raises ValueError for another length."""
        if parameters.shape != (self.size,):
            raise ValueError(f"parameters of shape {parameters.shape} for a policy of {self.size}")
        return {"parameters": np.array(parameters, np.float32)}

    def begin(self, state: State, moments: Moments, draw: Draw, behaviour_size: int) -> State:
        """``start``'s state, completed for a run with these observation statistics, other centres'
        first parameters, and behaviours of so many numbers. Raises UsageError for settings that do
        not fit.
        """
        return state

    def migrate_state(self, state: State, before: Any) -> State:
        """``state`` of the strategy ``before``, for these settings and this generation."""
        return state

    def validate_state(self, state: State, behaviour_size: int) -> None:  # noqa: B027 # optional
        """Raises RunFolderError for a checkpoint's state that these settings cannot have."""

    # --- what is published

    def published(self, state: State) -> Floats:
        """The published vector, float32 [n]; the unperturbed policy comes first."""
        return state["parameters"]

    def digest_input(self, state: State, published: Floats) -> Floats:
        """The input of the run's digest, from the published vector."""
        return published

    def checked_part(self, published: Floats) -> Floats:
        """The part that workers check by the publication's digest."""
        return published

    def sigma(self, state: State) -> float:
        """The deviation of the perturbations, for workers (as float32) and for people."""
        return (self.config.sigma or self.SIGMA) * self.pace.sigma

    @property
    def step_rate(self) -> float | None:
        """The learning rate in effect; None for a strategy without one."""
        return None

    def spread(self, state: State) -> Floats:
        """What ``tell`` needs to learn from this state's individuals later, float32 [n]."""
        return np.empty(0, np.float32)

    # --- which slots are played

    def batch_slots(self) -> int:
        """How many training slots a generation learns from, unless --min-steps demands more."""
        return self.config.population // self.per_slot

    def elite_slot_count(self, state: State, generation: int) -> int:
        """How many elites are evaluated from the publication of a generation on: slots 0, 1, …"""
        return 0

    def candidates(self, state: State, batch: Batch) -> Integers:
        """Slots to evaluate again before ``tell``, ascending: the best that succeeded, ties to the
        lower slot, and last the current elite. None in the asynchronous schedule.
        """
        if not self.reevaluates or self.config.schedule == ASYNC:
            return np.empty(0, np.int64)
        best = rank_finite(batch.fitness[:, 0])[: self.config.candidates]
        return np.append(np.sort(best), self.centre_slot).astype(np.int64)

    @property
    def centre_slot(self) -> int:
        """The slot in which the centre is evaluated again: one more than a generation can have."""
        return max_slots(self.config, self.per_slot)

    @property
    def max_centres(self) -> int:
        """The most centre slots of a generation; slot 0 is the unperturbed policy."""
        return 1

    def centre_count(self, state: State) -> int:
        """Centre slots in the state's generation; those from 1 on have their own seeds."""
        return 1

    # --- what workers do with it

    def fits(self, size: int, observations: int) -> bool:
        """Whether a publication can have this many floats, for policies with this many
        observations; by default, as many as the first one.
        """
        return size == self.first_size

    @cached_property
    def first_size(self) -> int:
        """Floats of the first publication."""
        return len(self.published(self.start(np.zeros(self.size, np.float32))))

    def centre(self, published: Floats) -> Floats:
        """The unperturbed policy, float32 [size]."""
        return published[: self.size]

    def centre_of(self, published: Floats, slot: int, draw: Draw) -> Floats:
        """The policy of a centre slot, float32 [size]."""
        return self.centre(published)

    def centre_statistics(self, published: Floats, slot: int) -> tuple[Floats, Floats] | None:
        """Mean and deviation float32 [d] of its observations; None for the generation's."""
        return None

    def ask(self, published: Floats, sigma: float, noise: Floats) -> Floats:
        """θ + σε (and θ − σε if a slot is a pair) for each row of ``noise`` [S, size]: float32 [S,
        per_slot, size].
        """
        return self.around(published, np.float32(sigma) * noise)

    def around(self, published: Floats, steps: Floats) -> Floats:
        """The centre plus (and minus, in pairs) each row of ``steps`` [S, size]: float32 [S,
        per_slot, size].
        """
        centre = self.centre(published)
        individuals = np.empty((len(steps), self.per_slot, self.size), np.float32)
        np.add(centre, steps, out=individuals[:, 0])
        if self.per_slot == 2:
            np.subtract(centre, steps, out=individuals[:, 1])
        return individuals

    def builder(self, noise: NoiseRows) -> Builder:
        """The builder of a process, which can have a cache; by default, ``ask`` slot by slot."""

        def build(
            published: Floats, sigma: float, generation: int, slot: int, index: int
        ) -> Floats:
            if index < 0:
                return self.centre(published)[np.newaxis]
            (row,) = noise.views(np.array([index]), 0, self.size)
            individuals: Floats = self.ask(published, sigma, row[np.newaxis])[0]
            return individuals

        return build

    # --- what the master learns

    def learn(self, state: State, batch: Batch) -> tuple[State, Info]:
        """The state after a generation, and its figures; changes neither argument.

        Figures: norm (of the new parameters), gradient_norm, update_ratio (length of the step
        before decay over ``norm``), sigma (the next generation's), no_step (1: the state is
        unchanged, because every individual failed, there is nothing to learn, or the new state or
        a figure would not be finite). Raises ValueError if fitness does not fit the slots.
        """
        shape = (len(batch.noise_indices), self.per_slot)
        if batch.fitness.shape != shape:
            raise ValueError(f"fitness has shape {batch.fitness.shape}, but must have {shape}")
        if not np.isfinite(batch.fitness).any() and not self.handles_all_failed:
            return self.stay(state)
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
        """The next state and its ``figures``. An individual has succeeded, unless the strategy
        ``handles_all_failed``.
        """

    @property
    def handles_all_failed(self) -> bool:
        return False

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

    def exchange_statistics(
        self, before: State, after: State, moments: Moments
    ) -> tuple[State, Moments]:
        """The state ``after`` a generation and the observation statistics of the next one."""
        return after, moments

    def genome(self, state: State) -> State:
        """How the centre was made, for seed lists; empty if only its numbers define it."""
        return {}

    def behaviour_note(self, behaviour: Floats) -> str:
        """What people should change after these behaviours, float32 [k, b]; empty for nothing."""
        return ""


class ReevaluationSettings(Strategy.Settings):
    """Of a strategy that ``reevaluates``."""

    candidates = setting(
        10,
        "number of best individuals evaluated again before one of them becomes the elite",
        low=1,
        high=1000,
    )
    elite_episodes = setting(
        30,
        "fresh episodes of that evaluation, the same for all of these individuals",
        low=1,
        high=1000,
    )


class BehaviourSettings(Strategy.Settings):
    """Of a strategy that ``wants_behaviour``."""

    behaviour = setting(
        AUTO,
        "descriptor of an episode's behaviour: last-observation, final-position, feet-contact "
        "(walkers), ram (Atari games), or your own function of the environment at the episode's "
        "end; auto suits the environment",
        choices=(AUTO, "last-observation", "final-position", "feet-contact", "ram"),
        own="module:function",
    )


def strategy_failure(strategy: Strategy, method: str, error: Exception) -> Exception:
    """An error that names the user's own strategy and its line; else ``error`` itself."""
    if type(strategy).__module__.startswith("es_queue.") or isinstance(error, EsQueueError):
        return error
    return StrategyFailure(
        f"the strategy {strategy.config.strategy} failed in {method}: {describe_error(error)}"
        f"{last_line(error)}"
    )


def validate_individuals(strategy: Strategy, individuals: Any, shape: tuple[int, ...]) -> None:
    """Raises StrategyFailure for individuals that are not float32 of this shape."""
    actual = getattr(individuals, "shape", None), getattr(individuals, "dtype", None)
    if actual != (shape, np.float32):
        raise StrategyFailure(
            f"the strategy {strategy.config.strategy} made individuals of shape {actual[0]} and "
            f"type {actual[1]}: its individuals must be float32 of shape {shape} per slot"
        )


def rank_finite(fitness: Doubles) -> Integers:
    """Indices of the finite values of ``fitness`` [S], largest first, ties to the earlier one."""
    order = np.argsort(-fitness, kind="stable")
    return order[np.isfinite(fitness[order])]


def best_reevaluated(fitness: Doubles) -> int:
    """Index of the best second result; ties go to the last one, the current elite, then to the
    lower slot.
    """
    values = np.where(np.isfinite(fitness), fitness, -np.inf)
    last, place = len(values) - 1, int(np.argmax(values))
    return last if values[last] == values[place] else place
