"""Convolutional policies on pictures, as published: by name, what they are made of and how many
parameters that gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from es_queue.config.run_config import VIRTUAL, RunConfig
from es_queue.policies.base import (
    BoundPolicy,
    Floats,
    Forward,
    Policy,
    PolicyInputs,
    row_product,
    single_only,
)
from es_queue.policies.layers.activations import ACTIVATIONS, GAINS
from es_queue.policies.layers.cells import CELLS, Cell
from es_queue.policies.layers.convolution import (
    SAME,
    Convolution,
    Filters,
    PatchExtractor,
    build_convolutions,
)
from es_queue.policies.layers.image_shape import ImageShape, image_shape_of
from es_queue.policies.layers.initial_weights import draw_initial_weights
from es_queue.policies.layers.virtual_norm import (
    BATCH_NORM,
    fold_normalisation,
    require_reference,
)

Layer = tuple[Floats, Floats]  # weights float32[rows, columns], bias float32[columns]


@dataclass(frozen=True)
class Architecture:
    """What a convolutional policy is made of.

    stack:      its convolutions, in order
    units:      width of the hidden layer, or of the cell, between the last convolution and the
    outputs
    activation: after each convolution and the hidden layer
    biases:     whether its layers add one
    cell:       name of the recurrent cell in place of the hidden layer, empty for none
    """

    stack: tuple[Filters, ...]
    units: int
    activation: str = "relu"
    biases: bool = True
    cell: str = ""


ARCHITECTURES = {
    # Mnih et al. 2015, "Human-level control through deep reinforcement learning"
    "nature": Architecture((Filters(32, 8, 4), Filters(64, 4, 2), Filters(64, 3, 1)), 512),
    # Such et al. 2017, arXiv:1712.06567, and Salimans et al. 2017, arXiv:1703.03864, in the code of
    # the former
    "uber": Architecture((Filters(16, 8, 4, SAME), Filters(32, 4, 2, SAME)), 256),
    "uber-large": Architecture(
        (Filters(32, 8, 4, SAME), Filters(64, 4, 2, SAME), Filters(64, 3, 1, SAME)), 512
    ),
    # github.com/cshenton/neuroevolution; its constant batch normalisation only scales the outputs,
    # which moves no argmax
    "cshenton": Architecture((Filters(16, 8, 4, SAME), Filters(32, 4, 2, SAME)), 256, biases=False),
    # github.com/atgambardella/pytorch-es
    "conv-lstm": Architecture((Filters(32, 3, 2, 1),) * 4, 256, "selu", cell="lstm"),
}


class ConvPolicy(Policy):
    """Convolutions, then a hidden layer or a recurrent cell, then x @ W + b; each but the last
    followed by the activation.

    The flat vector holds, layer by layer, a matrix in C order and then b (where there are biases):
    a convolution's is [kernel, kernel, channels, count]; the next layer sees what comes out as
    [height, width, count] in C order; that of any other layer is W transposed, [columns, rows],
    which BLAS multiplies up to three times as fast here. A cell has W_in [rows, gates · units],
    b_in, W_state [units, gates · units], b_state, each W transposed too (see
    :mod:`es_queue.policies.layers.cells`).

    With virtual batch normalisation (see :mod:`es_queue.policies.layers.virtual_norm`) follow
    scale, shift [columns each] of the first convolution, of the second …, and of the hidden layer
    where there is no cell.

    kind: the architecture's name; image_shape: of the observations; convolutions: in order; shapes:
    rows and columns of all matrices, W not transposed, in the flat vector's order; activation,
    biases, cell (None for none), units: as in the architecture; normalised: whether by a batch;
    norms: columns of those layers;
    reference: that batch, float32[N, observation_size], None where nothing is bound
    """

    kinds = tuple(ARCHITECTURES)
    settings = (*Policy.settings, BATCH_NORM)
    takes_pixels = True

    @classmethod
    def make(cls, config: RunConfig, inputs: PolicyInputs) -> Policy:
        return cls(
            config.policy,
            image_shape_of(inputs.shape, config.policy),
            inputs.outputs,
            normalised=config.batch_norm == VIRTUAL,
            reference=inputs.reference,
        )

    def __init__(
        self,
        kind: str,
        image_shape: ImageShape,
        outputs: int,
        *,
        normalised: bool = False,
        reference: Floats | None = None,
    ) -> None:
        architecture = ARCHITECTURES[kind]
        self.kind = kind
        self.image_shape = image_shape
        self.observation_size = image_shape.height * image_shape.width * image_shape.channels
        self.outputs = outputs
        self.convolutions: list[Convolution] = build_convolutions(
            image_shape, architecture.stack, kind
        )
        self.activation, self.biases, self.units = (
            architecture.activation,
            architecture.biases,
            architecture.units,
        )
        self.cell: Cell | None = CELLS[architecture.cell] if architecture.cell else None
        self.shapes = [layer.shape for layer in self.convolutions] + self._dense(
            architecture.units, outputs
        )
        self.normalised, self.reference = normalised, reference
        self.norms = (
            [columns for _, columns in self.shapes[: len(self.convolutions) + (self.cell is None)]]
            if normalised
            else []
        )
        self._plain = sum(rows * columns + columns * self.biases for rows, columns in self.shapes)
        self.size = self._plain + 2 * sum(self.norms)
        self.memory_size = self.cell.states * architecture.units if self.cell else 0

    def _dense(self, units: int, outputs: int) -> list[tuple[int, int]]:
        height, width = self.convolutions[-1].output_shape
        inputs, gates = (
            height * width * self.convolutions[-1].filters.count,
            self.cell.gates if self.cell else 1,
        )
        state = [(units, gates * units)] if self.cell else []
        return [(inputs, gates * units), *state, (units, outputs)]

    @property
    def description(self) -> tuple[object, ...]:
        """See :attr:`Policy.description`."""
        return self.kind, self.image_shape, self.outputs, self.normalised

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]; auto is normal. Biases are zero (a forget gate's: one), the last layer is
        small.
        """
        init = (
            "normal" if init == "auto" else init
        )  # orthogonal takes many seconds for millions of weights
        vector = np.zeros(self.size, np.float32)
        layers = self.layers(vector)
        for (weights, _), drawn in zip(
            layers,
            draw_initial_weights(self.shapes, GAINS[self.activation], seed, init),
            strict=True,
        ):
            weights[...] = drawn
        if self.cell and self.cell.forget is not None and init != "zero":
            layers[len(self.convolutions)][1].reshape(-1, self.units)[self.cell.forget] = 1
        for scale, _ in self._scales(vector):
            scale[...] = 1
        return vector

    def layers(self, vector: Floats) -> list[Layer]:
        """Views of each layer's W [rows, columns] and bias (of no length where there is none) in
        float32[size].
        """
        layers, start = [], 0
        for number, (rows, columns) in enumerate(self.shapes):
            middle = start + rows * columns
            stop = middle + columns * self.biases
            matrix = vector[start:middle]
            weights = (
                matrix.reshape(rows, columns)
                if number < len(self.convolutions)
                else matrix.reshape(columns, rows).T
            )
            layers.append((weights, vector[middle:stop]))
            start = stop
        return layers

    def _scales(self, vector: Floats) -> list[Layer]:
        """Views of scale and shift of each normalised layer in float32[size]."""
        stops = self._plain + 2 * np.cumsum([0, *self.norms])
        return [
            (vector[start : start + columns], vector[start + columns : start + 2 * columns])
            for start, columns in zip(stops.tolist(), self.norms, strict=False)
        ]

    def acting_layers(self, vector: Floats) -> list[Layer]:
        """As ``layers``, of the plain policy that float32[size] acts as: with what normalises taken
        into weights and biases.
        """
        layers = self.layers(vector)
        if not self.normalised:
            return layers
        with np.errstate(all="ignore"):  # a policy that breaks down is noticed by its outputs
            return [
                *self._normalised_layers(layers, self._scales(vector)),
                *layers[len(self.norms) :],
            ]

    def _normalised_layers(self, layers: list[Layer], scales: list[Layer]) -> list[Layer]:
        """The normalised layers, each by what comes out of those before it for the
        reference batch.
        """
        images = [
            self.image_shape.upright(observation)
            for observation in require_reference(self.reference, self.observation_size)
        ]
        settled: list[Layer] = []
        for layer, (weights, _), scale in zip(self.convolutions, layers, scales, strict=False):
            patches = PatchExtractor(layer)
            products = np.stack([patches(image) @ weights for image in images])
            settled.append(fold_normalisation(weights, products, *scale))
            images = [
                make_convolution(patches, settled[-1], self.activation)(image) for image in images
            ]
        if len(scales) > len(settled):
            weights = layers[len(settled)][0]
            settled.append(
                fold_normalisation(
                    weights,
                    np.stack([image.reshape(-1).dot(weights) for image in images]),
                    *scales[-1],
                )
            )
        return settled

    def bind(self, parameters: Floats) -> BoundPolicy:
        """See :meth:`Policy.bind`."""
        rows = self.checked(parameters)
        count = len(rows)
        memory = np.zeros((count, self.memory_size), np.float32)
        gather = [PatchExtractor(layer) for layer in self.convolutions]
        each = [
            self._network(gather, self.acting_layers(row), row_memory)
            for row, row_memory in zip(rows, memory, strict=True)
        ]

        def act_many(observations: Floats) -> Floats:
            # One after another: a product of fixed shape has the same bits whoever else acts.
            return np.stack([act(seen) for act, seen in zip(each, observations, strict=True)])

        return BoundPolicy(count, each[0] if count == 1 else single_only(count), act_many, memory)

    def _network(
        self, gather: list[PatchExtractor], layers: list[Layer], memory: Floats
    ) -> Forward:
        """float32[d] -> float32[outputs] for one individual; ``gather`` is shared by all,
        ``memory`` its own.
        """
        depth = len(gather)
        convolutions = [
            make_convolution(patches, layer, self.activation)
            for patches, layer in zip(gather, layers[:depth], strict=True)
        ]
        hidden, last = self._hidden(layers[depth:-1], memory), make_dense(layers[-1])
        upright = self.image_shape.upright

        def act(observation: Floats) -> Floats:
            image = upright(observation)
            for convolve in convolutions:
                image = convolve(image)
            return last(hidden(image.reshape(-1)))

        return act

    def _hidden(self, layers: list[Layer], memory: Floats) -> Forward:
        if self.cell:
            return make_cell_step(self.cell, layers, memory)
        product, activate = make_dense(layers[0]), ACTIVATIONS[self.activation]

        def hidden(x: Floats) -> Floats:
            x = product(x)
            activate(x, x)
            return x

        return hidden


def make_convolution(gather: PatchExtractor, layer: Layer, activation: str) -> Forward:
    """float32[height, width, channels] -> float32[places, count], after the activation."""
    (weights, bias), activate = layer, ACTIVATIONS[activation]

    def convolve(image: Floats) -> Floats:
        x = gather(image) @ weights
        if len(bias):
            x += bias
        activate(x, x)
        return x

    return convolve


def make_dense(layer: Layer) -> Forward:
    """x -> x @ W + b for one row."""
    weights, bias = layer
    product = row_product(weights)
    if not len(bias):
        return product

    def plus_bias(x: Floats) -> Floats:
        x = product(x)
        x += bias
        return x

    return plus_bias


def make_cell_step(cell: Cell, layers: list[Layer], memory: Floats) -> Forward:
    """x -> h of a cell, whose memory float32[states · units] changes in place."""
    input_product, state_product = map(make_dense, layers)
    h = memory[: len(layers[1][0])]

    def step(x: Floats) -> Floats:
        cell.step(input_product(x), state_product(h), memory)
        return h

    return step
