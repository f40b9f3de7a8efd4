"""The contract of a policy: a flat vector becomes a function from observations to raw outputs.

``Policy`` is what a policy promises, ``LayeredPolicy`` is one of matrices and biases, whose flat
vector holds one layer after another.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import VIRTUAL, RunConfig
from es_queue.config.settings import AUTO, setting
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Doubles, Floats

Forward = Callable[[Floats], Floats]
#: Weights float32[..., rows, columns], and bias float32[..., columns] or [..., 0].
Layer = tuple[Floats, Floats]

#: Of one individual. A run's settings come over the network: whoever joins makes no larger vector
#: for them.
MAX_PARAMETERS = 2**28


@dataclass(frozen=True, slots=True)
class BoundPolicy:
    """The weights of B individuals, ready to act. It holds views, so do not change the vector.

    count:    B
    act_one:  float32[d] -> float32[outputs], C-contiguous input, only for B = 1; the caller owns
    the result
    act_many: float32[B, d] -> float32[B, outputs], row b by individual b's weights
    memory:   float32[B, m], zeros when an episode begins, which both functions read and update

    Both give the same bits for the same row and memory, for any B. Neither silences numpy's
    floating-point warnings: the rollout enters ``np.errstate(all="ignore")`` once, and the action
    map reports non-finite outputs.
    """

    count: int
    act_one: Forward
    act_many: Forward
    memory: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def __call__(self, observations: Floats) -> Floats:
        """float32[B, d] -> float32[B, outputs]."""
        return self.act_many(observations)

    def begin(self) -> Forward:
        """``act_one`` for a new episode, with an empty memory."""
        self.memory.fill(0)
        return self.act_one


def bind_rows(act_row: Callable[[int, Floats], Floats], memory: Floats) -> BoundPolicy:
    """Individuals that act one after the other; ``act_row`` takes a row and its observation."""

    def act_many(observations: Floats) -> Floats:
        return np.stack([act_row(row, observation) for row, observation in enumerate(observations)])

    return BoundPolicy(len(memory), partial(act_row, 0), act_many, memory)


class Policy(ABC):
    """Flat vector -> raw outputs. Each class defines the layout of its vector.

    observation_size: d, length of the flat float32 observation
    outputs:          numbers that the policy returns for one action
    size:             length of the flat vector
    memory_size:      m, numbers of memory per individual
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

    #: Names under ``--policy``. A class that has some is made from (config, observation_size,
    #: outputs, shape, reference). shape: see ``EnvironmentSpec.observation_shape``. reference:
    #: float32[N, observation_size], the batch of ``batch_norm virtual``, which ``bind`` needs.
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


class BiasSettings(Policy.Settings):
    biases = setting(True, "each layer adds a bias to its outputs")


class HiddenSettings(BiasSettings):
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


class LayeredPolicy(Policy):
    """Layers x @ W + b. The flat vector is W, b of the first layer, W, b of the second …, each W
    [rows, columns] in C order, and then the scale and the shift [columns each] of each normalised
    layer.

    shapes:     rows and columns of each W
    biases:     whether there is a b
    norms:      columns of the normalised layers, which are the first ones
    gain:       factor of the first weights, except those of the last layer
    auto:       what ``--init auto`` is
    transposed: W is stored as [columns, rows] from this layer on
    forget:     by layer, the part of its bias that is one at first
    """

    auto: ClassVar[str] = "orthogonal"
    gain: float = 1.0

    def __init__(
        self,
        config: RunConfig,
        observation_size: int,
        outputs: int,
        shape: tuple[int, ...] = (),
        reference: Floats | None = None,
    ) -> None:
        self.kind: str = config.policy
        self.observation_size, self.outputs, self.reference = observation_size, outputs, reference
        self.build(config, shape)

    @abstractmethod
    def build(self, config: RunConfig, shape: tuple[int, ...]) -> None:
        """Call ``set_layers``."""

    def set_layers(
        self,
        shapes: list[tuple[int, int]],
        biases: bool,
        norms: list[int],
        transposed: int | None = None,
        forget: dict[int, slice] | None = None,
    ) -> None:
        self.shapes, self.biases, self.norms, self.forget = shapes, biases, norms, forget or {}
        self.transposed = len(shapes) if transposed is None else transposed
        self._plain = sum((rows + biases) * columns for rows, columns in shapes)
        self.size = self._plain + 2 * sum(self.norms)

    def layers(self, parameters: Floats) -> list[Layer]:
        """Views of W [..., rows, columns] and b of each layer in float32[..., size]."""
        layers, start = [], 0
        for number, (rows, columns) in enumerate(self.shapes):
            middle = start + rows * columns
            stop = middle + columns * self.biases
            flat, before = parameters[..., start:middle], parameters.shape[:-1]
            if number < self.transposed:
                weights = flat.reshape(*before, rows, columns)
            else:
                weights = flat.reshape(*before, columns, rows).swapaxes(-1, -2)
            layers.append((weights, parameters[..., middle:stop]))
            start = stop
        return layers

    def acting_layers(self, vector: Floats) -> list[Layer]:
        """The layers of the plain policy that is equal to float32[size]."""
        return self.layers(vector)

    def scales(self, vector: Floats) -> list[Layer]:
        """Views of scale and shift of each normalised layer in float32[size]."""
        return [
            (part[: len(part) // 2], part[len(part) // 2 :])
            for part in np.split(vector[self._plain :], 2 * np.cumsum(self.norms))[:-1]
        ]

    def initial(self, seed: int, init: str) -> Floats:
        """Biases are zero, the last layer is small, scales are one. A forget gate's bias is one, so
        that it keeps its memory at first (Gers et al. 2000, Jozefowicz et al. 2015).
        """
        init = self.auto if init == AUTO else init
        vector = np.zeros(self.size, np.float32)
        layers = self.layers(vector)
        matrices = draw_initial_weights(self.shapes, self.gain, seed, init)
        for (weights, _), drawn in zip(layers, matrices, strict=True):
            weights[...] = drawn
        for number, gate in self.forget.items():
            layers[number][1][gate] = init != "zero"
        for scale, _ in self.scales(vector):
            scale[...] = 1
        return vector


def affine(x: Floats, layer: Layer) -> Floats:
    """float32[B, rows] and a layer of each individual -> x[b] @ W[b] + b[b], with the same bits as
    one by one.

    vecmat is ``matmul(x[:, None, :], weights)[:, 0]`` with less overhead. One matrix shared by all
    rows, its transpose, or einsum would give other bits.
    """
    product: Floats = np.vecmat(x, layer[0])
    if layer[1].size:
        product += layer[1]
    return product


def make_dense(layer: Layer) -> Forward:
    """x -> x @ W + b for one row.

    ``x.dot`` costs 0.4 us less than ``x @ weights`` and gives the same bits, except for a 1x1
    matrix: there it keeps the sign of a zero that the stacked product loses.
    """
    weights, bias = layer
    if weights.size == 1:
        return lambda x: x @ weights + bias if len(bias) else x @ weights
    if not len(bias):
        return lambda x: x.dot(weights)

    def dense(x: Floats) -> Floats:
        x = x.dot(weights)
        x += bias
        return x

    return dense


class SelectedInputsPolicy(Policy):
    """``--observe``: ``policy`` on some ``numbers`` of an observation, in that order; the flat
    vector is that of ``policy``. whole: the same kind of policy for the whole observation
    """

    numbers: NDArray[np.intp]

    def __init__(self, policy: Policy, whole: Policy, numbers: tuple[int, ...]) -> None:
        self.policy = policy
        self.whole = whole
        self.numbers = np.array(numbers)
        self.observation_size = whole.observation_size
        self.outputs = policy.outputs
        self.size = policy.size
        self.memory_size = policy.memory_size

    def initial(self, seed: int, init: str) -> Floats:
        return self.policy.initial(seed, init)

    def bind(self, parameters: Floats) -> BoundPolicy:
        bound = self.policy.bind(parameters)

        def act_one(observation: Floats) -> Floats:
            return bound.act_one(observation[self.numbers])

        def act_many(observations: Floats) -> Floats:
            return bound.act_many(np.take(observations, self.numbers, axis=1))

        return BoundPolicy(bound.count, act_one, act_many, bound.memory)

    def for_whole(self, parameters: Floats) -> Floats:
        """float32[whole.size], with which ``whole`` acts like this policy with ``parameters``
        [size], up to rounding.
        """
        weights = parameters[: len(self.numbers) * self.whole.row_length]
        first = np.zeros((self.observation_size, self.whole.row_length), np.float32)
        first[self.numbers] = weights.reshape(len(self.numbers), self.whole.row_length)
        return np.concatenate([first.ravel(), parameters[len(weights) :]])


class ConstantPolicy(Policy):
    """The policy of an objective: outputs = the flat vector itself, whatever it observes.

    box: bounds, start and scale of the variables
    """

    def __init__(self, size: int, box: tuple[object, ...] = ()) -> None:
        self.observation_size = 1
        self.outputs = self.size = size
        self.box = box

    @property
    def description(self) -> tuple[object, ...]:
        return "vector", self.size, *self.box

    def initial(self, seed: int, init: str) -> Floats:
        return draw_unlayered(self.size, seed, init, "a vector has no layers").astype(np.float32)

    def bind(self, parameters: Floats) -> BoundPolicy:
        rows = self.checked(parameters)
        return BoundPolicy(len(rows), lambda _: rows[0].copy(), lambda _: rows.copy())


# --- virtual batch normalisation: each unit is normalised by its statistics over a fixed reference
# batch. Salimans et al. 2016, arXiv:1606.03498, section 3.2; used for Evolution Strategies in 2017,
# arXiv:1703.03864, section 2.2. The statistics depend on the individual's own parameters, so the
# batch passes through its layers once, when it is bound. A normalised layer is
# activation(scale · (z - mean) / √(var + EPSILON) + shift), z = x @ W + b. It acts as a plain layer
# with weights W · gain and bias shift - mean · gain.

EPSILON = 1e-5


def fold_normalisation(weights: Floats, products: Floats, scale: Floats, shift: Floats) -> Layer:
    """Weights [rows, columns] and bias [columns] of the plain layer equal to a normalised one.

    products: float32[..., columns], x @ W for the whole reference batch (b shifts the mean equally,
    and cancels)
    """
    flat = products.reshape(-1, products.shape[-1])
    mean, variance = flat.mean(0, dtype=np.float64), flat.var(0, dtype=np.float64)
    gain = scale / np.sqrt(variance + EPSILON)
    return (weights * gain).astype(np.float32), (shift - mean * gain).astype(np.float32)


# --- initial weights, from raw Philox words: equal on every numpy, unlike ``Generator.normal``

# Second word of the Philox key: far above those of es_queue.slot_plan, so that no stream
# is shared.
DOMAIN = int.from_bytes(b"initial.")
LAST_LAYER = 0.01  # near-zero first outputs: no action is saturated before anything is learnt


def draw_normals(generator: np.random.Philox, count: int) -> Doubles:
    """float64[count] of the standard normal distribution (Box and Muller 1958)."""
    pairs = (count + 1) // 2
    words = np.asarray(generator.random_raw(2 * pairs), dtype=np.uint64) >> np.uint64(11)
    uniform = words.astype(np.float64) * 2.0**-53
    # 1 - u lies in (0, 1], so the logarithm is finite.
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform[:pairs]))
    angle = (2.0 * math.pi) * uniform[pairs:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def seeded_generator(seed: int) -> np.random.Philox:
    return np.random.Philox(key=np.array([seed, DOMAIN], dtype=np.uint64))


def draw_unlayered(size: int, seed: int, init: str, reason: str) -> Doubles:
    """float64[size] for a policy whose layers are unknown: zeros for auto and zero, standard normal
    numbers for normal. Raises UsageError with the ``reason`` for another init.
    """
    if init in (AUTO, "zero"):
        return np.zeros(size)
    if init != "normal":
        raise UsageError(f"init is {init}, but {reason}: use auto, zero or normal")
    return draw_normals(seeded_generator(seed), size)


def draw_initial_weights(
    shapes: list[tuple[int, int]], gain: float, seed: int, init: str
) -> list[Floats]:
    """The first matrices, float32[rows, columns] each, of consecutive layers.

    gain: factor of all layers except the last, which has LAST_LAYER
    init: zero, orthogonal (Saxe et al. 2014: orthonormal columns, or rows if there are fewer), or
    normal (deviation 1/sqrt(rows), so that outputs are as large as inputs)
    """
    if init == "zero":
        return [np.zeros(shape, np.float32) for shape in shapes]
    generator = seeded_generator(seed)
    matrices = []
    for number, (rows, columns) in enumerate(shapes, start=1):
        drawn = draw_normals(generator, rows * columns).reshape(rows, columns)
        if init == "orthogonal":
            # QR, with the signs of R's diagonal moved to Q, which makes it uniform.
            wide = columns > rows
            q, r = np.linalg.qr(drawn.T if wide else drawn)
            q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
            drawn = q.T if wide else q
        else:
            drawn = drawn / math.sqrt(rows)
        factor = LAST_LAYER if number == len(shapes) else gain
        matrices.append((factor * drawn).astype(np.float32))
    return matrices
