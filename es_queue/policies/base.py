"""The contract of a policy: a flat vector becomes a function from observations to raw outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import VIRTUAL, RunConfig
from es_queue.config.settings import AUTO, setting
from es_queue.numerics.arrays import Floats

Forward = Callable[[Floats], Floats]

#: Of one individual. A run's settings come over the network: whoever joins makes no larger vector
#: for them.
MAX_PARAMETERS = 2**28


@dataclass(frozen=True)
class PolicyInputs:
    """The inputs and outputs that a policy must fit.

    observation_size, outputs: see Policy
    shape: see ``EnvironmentSpec.observation_shape``
    reference: float32[N, observation_size], the batch of ``batch_norm virtual``; None if the policy
    is not to be bound
    """

    observation_size: int
    outputs: int
    shape: tuple[int, ...] = ()
    reference: Floats | None = None


@dataclass(frozen=True, slots=True)
class BoundPolicy:
    """The weights of B individuals, ready to act. It holds views, so do not change the vector.

    count:    B
    act_one:  float32[d] -> float32[outputs], C-contiguous input, only for B = 1; the caller owns
    the result
    act_many: float32[B, d] -> float32[B, outputs], row b by individual b's weights
    memory:   float32[B, m], the memory of each individual within an episode, which both functions
    read and update; m is the policy's ``memory_size``, 0 without memory

    Both give the same bits for the same row and memory, for any B. Neither silences numpy's
    floating-point warnings: the rollout enters ``np.errstate(all="ignore")`` once, and the action
    map reports non-finite outputs.
    """

    count: int
    act_one: Forward
    act_many: Forward
    memory: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def __post_init__(self) -> None:
        if self.count != 1:
            # No method of this object: it would keep itself, and with it the weights of a batch,
            # until Python looks for cycles.
            object.__setattr__(self, "act_one", partial(refuse_one, self.count))

    def __call__(self, observations: Floats) -> Floats:
        """float32[B, d] -> float32[B, outputs]."""
        return self.act_many(observations)

    def begin(self) -> Forward:
        """``act_one`` for a new episode, with an empty memory."""
        self.memory.fill(0)
        return self.act_one


def refuse_one(count: int, observation: Floats) -> Floats:
    """Takes the place of ``act_one`` where several individuals are bound."""
    raise ValueError(
        f"act_one is for one individual; {count} are bound, call the policy with their rows"
    )


class Policy(ABC):
    """Flat vector -> raw outputs. Each class defines the layout of its vector.

    observation_size: d, length of the flat float32 observation
    outputs:          numbers that the policy returns for one action
    size:             length of the flat vector
    memory_size:      m, numbers of memory per individual, zero when an episode begins
    reference:        float32[N, d], the observations that the policy normalises by; None without
    row_length:       r, if the flat vector begins with a matrix [d, r], whose rows ``--observe``
    can leave out; else 0
    numbers:          indices into the observation that the policy receives; None for all of it
    takes_pixels:     whether observations are images of numbers from 0 to 1, which are not
    normalised
    """

    class Settings:
        """The settings that shape it, each made by ``setting``."""

        init = setting(
            AUTO,
            "initial parameters; auto is zero for linear policies, normal for images, and "
            "orthogonal for all others",
            choices=(AUTO, "zero", "orthogonal", "normal"),
        )

    #: Names under ``--policy``; a class without any is not registered.
    kinds: ClassVar[tuple[str, ...]] = ()

    observation_size: int
    outputs: int
    size: int
    memory_size: int = 0
    row_length: int = 0
    takes_pixels: bool = False
    reference: Floats | None = None
    numbers: NDArray[np.intp] | None = None

    @property
    def description(self) -> tuple[object, ...]:
        """The policy's structure: flat vectors with equal descriptions have equal meanings. Empty
        if unknown.
        """
        return ()

    @classmethod
    def make(cls, config: RunConfig, inputs: PolicyInputs) -> Policy:
        """The configured policy, of a class that has ``kinds``. Raises UsageError."""
        raise NotImplementedError

    @abstractmethod
    def initial(self, seed: int, init: str) -> Floats:
        """float32[size], the first parameters, which depend only on (seed, init).

        init: auto (the class's own choice), zero, orthogonal or normal. Raises UsageError for
        others.
        """

    @abstractmethod
    def bind(self, parameters: Floats) -> BoundPolicy:
        """The policies of float32[B, size], as views. Raises ValueError for another shape or
        dtype.
        """

    def checked(self, parameters: Floats) -> Floats:
        """``parameters`` as C-contiguous float32[B, size], copied only if necessary."""
        if (
            parameters.dtype != np.float32
            or parameters.ndim != 2
            or parameters.shape[1] != self.size
        ):
            expected = f"float32[B, {self.size}]"
            raise ValueError(
                f"parameters must be {expected}, not {parameters.dtype}{list(parameters.shape)}"
            )
        return np.ascontiguousarray(parameters)


class HiddenSettings(Policy.Settings):
    hidden = setting(
        (64, 64),
        "widths of the hidden layers, or of the recurrent layers, separated by commas",
        unit="units",
        low=1,
        high=65536,
        metavar="N,N",
    )


class NormSettings(Policy.Settings):
    batch_norm = setting(
        "none",
        "virtual: normalise units or convolutions with a reference batch of observations, which "
        "depends only on the seed",
        choices=("none", VIRTUAL),
    )


def bind_rows(act_row: Callable[[int, Floats], Floats], memory: Floats) -> BoundPolicy:
    """Individuals that act one after the other; ``act_row`` takes a row and its observation."""

    def act_many(observations: Floats) -> Floats:
        return np.stack([act_row(row, observation) for row, observation in enumerate(observations)])

    return BoundPolicy(len(memory), partial(act_row, 0), act_many, memory)


def row_product(weights: Floats) -> Forward:
    """x -> x @ weights for one row by the fastest call; ``weights`` is float32[d, outputs].

    ``x.dot`` costs 0.4 us less than ``x @ weights`` and gives the same bits, except for a 1x1
    matrix: there it keeps the sign of a zero that the stacked product loses.
    """
    if weights.size == 1:
        return lambda x: x @ weights
    return lambda x: x.dot(weights)


def stacked_product(x: Floats, weights: Floats) -> Floats:
    """float32[B, d] and float32[B, d, outputs] -> x[b] @ weights[b], with the same bits as one by
    one.

    vecmat is ``matmul(x[:, None, :], weights)[:, 0]`` with less overhead. One matrix shared by all
    rows, its transpose, or einsum would give other bits.
    """
    product: Floats = np.vecmat(x, weights)
    return product
