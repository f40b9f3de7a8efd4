"""Published convolutional policies for images, by name, with their layers and parameter counts."""

from __future__ import annotations

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import (
    BoundPolicy,
    Forward,
    NormSettings,
    Policy,
    PolicyInputs,
    row_product,
)
from es_queue.policies.layers.activations import ACTIVATIONS, GAINS
from es_queue.policies.layers.cells import Cell
from es_queue.policies.layers.conv_layout import ARCHITECTURES, ConvLayout, Layer
from es_queue.policies.layers.convolution import PatchExtractor
from es_queue.policies.layers.image_shape import ImageShape, image_shape_of
from es_queue.policies.layers.initial_weights import draw_initial_weights
from es_queue.policies.layers.virtual_norm import (
    fold_normalisation,
    require_reference,
)


class ConvPolicy(Policy):
    """Convolutions, then a hidden layer or a recurrent cell, then x @ W + b. The activation follows
    each layer except the last.

    The flat vector holds, layer by layer, a matrix in C order and then b (if there are biases). A
    convolution's matrix is [kernel, kernel, channels, count], and its output is [height, width,
    count] in C order. Other layers have W transposed, [columns, rows], which BLAS multiplies up to
    three times as fast here. A cell has W_in [rows, gates · units], b_in, W_state [units, gates ·
    units] and b_state, with each W transposed (see :mod:`es_queue.policies.layers.cells`).

    With virtual batch normalisation (see :mod:`es_queue.policies.layers.virtual_norm`), scale and
    shift [columns each] of each convolution follow, and those of the hidden layer if there is no
    cell.

    layout:     the position of each part in the flat vector
    activation: as in the architecture
    reference:  float32[N, observation_size], the batch for normalisation; None if nothing is bound
    """

    Settings = NormSettings
    kinds = tuple(ARCHITECTURES)
    takes_pixels = True

    @classmethod
    def make(cls, config: RunConfig, inputs: PolicyInputs) -> Policy:
        return cls(
            config.policy,
            image_shape_of(inputs.shape, config.policy),
            inputs.outputs,
            normalised=config.has_virtual_norm,
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
        self.layout = ConvLayout(kind, image_shape, outputs, normalised)
        self.observation_size = image_shape.height * image_shape.width * image_shape.channels
        self.outputs, self.activation = outputs, ARCHITECTURES[kind].activation
        self.size, self.memory_size = self.layout.size, self.layout.memory_size
        self.reference = reference

    @property
    def description(self) -> tuple[object, ...]:
        layout = self.layout
        return layout.kind, layout.image_shape, layout.outputs, layout.normalised

    def initial(self, seed: int, init: str) -> Floats:
        """float32[size]; auto is normal. Biases are zero (one for a forget gate), and the last
        layer is small.
        """
        # Orthogonal weights take many seconds for millions of them.
        init = "normal" if init == "auto" else init
        vector, layout = np.zeros(self.size, np.float32), self.layout
        layers = layout.layers(vector)
        matrices = draw_initial_weights(layout.shapes, GAINS[self.activation], seed, init)
        for (weights, _), drawn in zip(layers, matrices, strict=True):
            weights[...] = drawn
        if layout.cell and layout.cell.forget is not None and init != "zero":
            bias = layers[len(layout.convolutions)][1].reshape(-1, layout.architecture.units)
            bias[layout.cell.forget] = 1
        for scale, _ in layout.scales(vector):
            scale[...] = 1
        return vector

    def acting_layers(self, vector: Floats) -> list[Layer]:
        """Like ``layers``, for the plain policy equal to float32[size]: the normalisation is folded
        into weights and biases.
        """
        layers = self.layout.layers(vector)
        if not self.layout.normalised:
            return layers
        with np.errstate(all="ignore"):  # a policy that breaks down is noticed by its outputs
            return [
                *self._normalised_layers(layers, self.layout.scales(vector)),
                *layers[len(self.layout.norms) :],
            ]

    def _normalised_layers(self, layers: list[Layer], scales: list[Layer]) -> list[Layer]:
        """The normalised layers, each by the outputs of the layers before it for the reference
        batch.
        """
        images = [
            self.layout.image_shape.upright(observation)
            for observation in require_reference(self.reference, self.observation_size)
        ]
        settled: list[Layer] = []
        for layer, (weights, _), scale in zip(
            self.layout.convolutions, layers, scales, strict=False
        ):
            patches = PatchExtractor(layer)
            products = np.stack([patches(image) @ weights for image in images])
            settled.append(fold_normalisation(weights, products, *scale))
            images = [
                make_convolution(patches, settled[-1], self.activation)(image) for image in images
            ]
        if len(scales) > len(settled):
            weights = layers[len(settled)][0]
            products = np.stack([image.reshape(-1).dot(weights) for image in images])
            settled.append(fold_normalisation(weights, products, *scales[-1]))
        return settled

    def bind(self, parameters: Floats) -> BoundPolicy:
        rows = self.checked(parameters)
        memory = np.zeros((len(rows), self.memory_size), np.float32)
        gather = [PatchExtractor(layer) for layer in self.layout.convolutions]
        each = [
            self._network(gather, self.acting_layers(row), row_memory)
            for row, row_memory in zip(rows, memory, strict=True)
        ]

        def act_many(observations: Floats) -> Floats:
            # One after another: a product of fixed shape has the same bits whoever else acts.
            return np.stack([act(seen) for act, seen in zip(each, observations, strict=True)])

        return BoundPolicy(len(rows), each[0], act_many, memory)

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
        upright = self.layout.image_shape.upright

        def act(observation: Floats) -> Floats:
            image = upright(observation)
            for convolve in convolutions:
                image = convolve(image)
            return last(hidden(image.reshape(-1)))

        return act

    def _hidden(self, layers: list[Layer], memory: Floats) -> Forward:
        if self.layout.cell:
            return make_cell_step(self.layout.cell, layers, memory)
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
