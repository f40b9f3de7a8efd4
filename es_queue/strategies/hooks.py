"""Capabilities that a strategy inherits, and defaults for other strategies.

Master and workers call the functions for any strategy; the methods have the same names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.normalization import RunningMoments
from es_queue.numerics.ordered_sums import NoiseRows
from es_queue.numerics.slot_plan import max_slots
from es_queue.protocol.messages import TRAIN
from es_queue.strategies.elite_evaluation import best_and_centre

State = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class SlotDraw:
    """A planned slot of a publication.

    kind: of the slot (``messages.TRAIN`` or ``ELITE``); noise: float32[size], the row at ``index``
    """

    kind: str
    generation: int
    slot: int
    index: int
    noise: Floats


#: (what is published, sigma, the slot) -> its individuals, float32[per_slot, size].
Builder = Callable[[Floats, float, SlotDraw], Floats]
#: The number of a centre -> first parameters of its own, by the policy and --init.
Draw = Callable[[int], Floats]


class LearntSpread(ABC):
    """The spread of the perturbations differs between publications."""

    @abstractmethod
    def spread(self, state: State) -> Floats:
        """What ``tell`` needs to learn later from this state's perturbations."""


def spread(strategy: object, state: State) -> Floats:
    """Nothing unless the strategy has a ``LearntSpread``."""
    return strategy.spread(state) if isinstance(strategy, LearntSpread) else np.empty(0, np.float32)


class MigratesState(ABC):
    """The state is converted when settings change, or by a schedule."""

    @abstractmethod
    def migrate_state(self, state: State, before: Any) -> State:
        """``state`` of the strategy ``before``, converted for this strategy's settings and
        generation.
        """


def migrate_state(strategy: object, state: State, before: Any) -> State:
    """The same state unless the strategy ``MigratesState``."""
    return strategy.migrate_state(state, before) if isinstance(strategy, MigratesState) else state


class ValidatesState(ABC):
    """The state of a checkpoint is checked before a run continues from it."""

    @abstractmethod
    def validate_state(self, state: State, numbers: int) -> None:
        """Raises RunFolderError for a state that these settings cannot have, with behaviours of so
        many numbers.
        """


def validate_state(strategy: object, state: State, numbers: int) -> None:
    """Nothing unless the strategy ``ValidatesState``."""
    if isinstance(strategy, ValidatesState):
        strategy.validate_state(state, numbers)


class BuildsIndividuals(ABC):
    """Workers cache individuals by their genome."""

    @abstractmethod
    def builder(self, noise: NoiseRows) -> Builder:
        """The builder of individuals in one process."""

    @abstractmethod
    def genome(self, state: State) -> State:
        """How the centre was made, for seed lists."""


def genome(strategy: object, state: State) -> State:
    """How the centre was made; empty if only its numbers define it."""
    return strategy.genome(state) if isinstance(strategy, BuildsIndividuals) else {}


class ReevaluatesBest:
    """The best individuals are evaluated again, on fresh seeds, before the strategy learns."""

    reevaluates: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("candidates", "elite_episodes")
    per_slot: ClassVar[int]
    config: RunConfig

    @property
    def centre_slot(self) -> int:
        """The slot number for evaluating the centre again: the one after all that a generation can
        have.
        """
        return max_slots(self.config, self.per_slot)[TRAIN]

    def candidates(self, state: State, batch: Any) -> Integers:
        """Slots to evaluate again before ``tell``, ascending: the best that succeeded, ties to the
        lower slot, and the current elite.
        """
        return best_and_centre(batch.fitness[:, 0], self.config.candidates, self.centre_slot)


def candidates(strategy: object, state: State, batch: Any) -> Integers:
    """None unless the strategy ``ReevaluatesBest``."""
    if isinstance(strategy, ReevaluatesBest):
        return strategy.candidates(state, batch)
    return np.empty(0, np.int64)


class SteadyState(ABC):
    """In the asynchronous schedule the strategy has no generations."""

    @abstractmethod
    def batch_slots(self) -> int:
        """How many training slots close a batch."""

    @abstractmethod
    def elite_slot_count(self, state: State, generation: int) -> int:
        """How many slots of kind elite are evaluated in a generation: all from 0 on."""

    @property
    @abstractmethod
    def handles_all_failed(self) -> bool:
        """Whether ``tell`` also learns if every individual failed."""


def batch_slots(strategy: Any) -> int:
    """A population's, unless the strategy is a ``SteadyState``."""
    if isinstance(strategy, SteadyState):
        return strategy.batch_slots()
    return int(strategy.config.population // strategy.per_slot)


def elite_slot_count(strategy: object, state: State, generation: int) -> int:
    """None unless the strategy is a ``SteadyState``."""
    if isinstance(strategy, SteadyState):
        return strategy.elite_slot_count(state, generation)
    return 0


class ComparesBehaviour:
    """Results contain behaviours (``es_queue.environments.behaviour_descriptor``)."""

    wants_behaviour: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("behaviour",)

    def begin_behaviours(self, state: State, numbers: int) -> State:
        """The first state, for behaviours of so many numbers. Raises UsageError if the settings fit
        no such behaviour.
        """
        return state

    def behaviour_note(self, behaviour: Floats) -> str:
        """What people should change after a generation with these behaviours, float32 [k, b]; empty
        for nothing.
        """
        return ""


def begin_behaviours(strategy: object, state: State, numbers: int) -> State:
    if isinstance(strategy, ComparesBehaviour):
        return strategy.begin_behaviours(state, numbers)
    return state


class SeveralCentres(ABC):
    """Several unperturbed policies play, by default under the same statistics."""

    @property
    @abstractmethod
    def max_centres(self) -> int:
        """Centre slots that a generation can have; slot 0 is the unperturbed policy."""

    @abstractmethod
    def centre_count(self, state: State) -> int:
        """Number of centre slots in the state's generation; those from 1 on have seeds of their
        own, for ``tell``.
        """

    @abstractmethod
    def centre_of(self, published: Floats, slot: int, draw: Draw) -> Floats:
        """The policy of a centre slot, float32 [size]."""

    def centre_statistics(self, published: Floats, slot: int) -> tuple[Floats, Floats] | None:
        """Mean and deviation float32 [d] of a centre slot's observations; None for the
        generation's.
        """
        return None

    def begin_centres(self, state: State, moments: RunningMoments, draw: Draw) -> State:
        """The first state with all centres and the run's first observation statistics."""
        return state

    def exchange_statistics(
        self, before: State, after: State, moments: RunningMoments
    ) -> tuple[State, RunningMoments]:
        """The state ``after`` a generation and its observation statistics, ready for the next
        generation.
        """
        return after, moments


def max_centres(strategy: object) -> int:
    """Only the unperturbed policy, unless the strategy has ``SeveralCentres``."""
    return strategy.max_centres if isinstance(strategy, SeveralCentres) else 1


def centre_count(strategy: object, state: State) -> int:
    return strategy.centre_count(state) if isinstance(strategy, SeveralCentres) else 1


def centre_statistics(
    strategy: object, published: Floats, slot: int
) -> tuple[Floats, Floats] | None:
    if isinstance(strategy, SeveralCentres):
        return strategy.centre_statistics(published, slot)
    return None


def begin_centres(strategy: object, state: State, moments: RunningMoments, draw: Draw) -> State:
    if isinstance(strategy, SeveralCentres):
        return strategy.begin_centres(state, moments, draw)
    return state


def exchange_statistics(
    strategy: object, before: State, after: State, moments: RunningMoments
) -> tuple[State, RunningMoments]:
    if isinstance(strategy, SeveralCentres):
        return strategy.exchange_statistics(before, after, moments)
    return after, moments
