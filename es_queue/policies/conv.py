"""Published convolutional policies for images, by name, with their layers.

A convolution is a matrix product: the patches of an image times the filters, in BLAS.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import (
    BiasSettings,
    BoundPolicy,
    Forward,
    Layer,
    LayeredPolicy,
    NormSettings,
    fold_normalisation,
    make_dense,
)
from es_queue.policies.linear_mlp import ACTIVATIONS, GAINS
from es_queue.policies.recurrent import CELLS

SAME = -1


@dataclass(frozen=True)
class Filters:
    """A convolution as papers define it: ``count`` filters of ``kernel`` x ``kernel`` pixels,
    ``stride`` apart.

    padding: zeros on each side, or SAME for ceil(length / stride) places, with an odd zero at the
    end (as in TensorFlow)
    """

    count: int
    kernel: int
    stride: int
    padding: int = 0

    def padding_for(self, length: int) -> tuple[int, int]:
        """Zeros before and after a side of that length."""
        if self.padding != SAME:
            return self.padding, self.padding
        missing = max((-(-length // self.stride) - 1) * self.stride + self.kernel - length, 0)
        return missing // 2, missing - missing // 2


@dataclass(frozen=True)
class Architecture:
    """A stack of convolutions, and a hidden layer of ``units``, or a recurrent ``cell``. The
    activation follows each.
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


@dataclass(frozen=True)
class Convolution:
    """Filters over images [height, width, channels]; weights are [kernel, kernel, channels, count]
    in C order.
    """

    filters: Filters
    height: int
    width: int
    channels: int

    @property
    def padding(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Pixels of zeros above and below the image, and before and after its rows."""
        return self.filters.padding_for(self.height), self.filters.padding_for(self.width)

    @property
    def output_shape(self) -> tuple[int, int]:
        """Height and width of the output [height, width, count]."""
        (top, bottom), (left, right) = self.padding
        kernel, stride = self.filters.kernel, self.filters.stride
        return (
            (top + self.height + bottom - kernel) // stride + 1,
            (left + self.width + right - kernel) // stride + 1,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the filters as one matrix."""
        return self.filters.kernel**2 * self.channels, self.filters.count

    def make_gather(self) -> Forward:
        """float32[height, width, channels], or as many numbers in that order -> float32[places,
        kernel · kernel · channels]: the inputs of each position. The next call overwrites the
        result.
        """
        kernel, stride = self.filters.kernel, self.filters.stride
        (top, bottom), (left, right) = self.padding
        image_shape = self.height, self.width, self.channels
        padded = np.zeros(
            (top + self.height + bottom, left + self.width + right, self.channels), np.float32
        )
        inside = padded[top : top + self.height, left : left + self.width]
        # Points of a row and their channels lie side by side, so that long runs are copied.
        row_stride, column_stride, item_stride = padded.strides
        shape = (*self.output_shape, kernel, kernel * self.channels)
        strides = (stride * row_stride, stride * column_stride, row_stride, item_stride)
        windows = as_strided(padded, shape, strides, writeable=False)
        rows: Floats = np.empty((shape[0] * shape[1], self.shape[0]), np.float32)
        gathered = rows.reshape(shape)

        def gather(image: Floats) -> Floats:
            inside[...] = image.reshape(image_shape)
            np.copyto(gathered, windows)
            return rows

        return gather


class ConvPolicy(LayeredPolicy):
    """Convolutions, then a hidden layer or a recurrent cell, then x @ W + b. The activation follows
    each layer except the last.

    A convolution's W is [kernel, kernel, channels, count], and its output is [height, width, count]
    in C order. Other layers have W transposed, [columns, rows], which BLAS multiplies up to three
    times as fast here. A cell has W_in, b_in, W_state and b_state (see
    :mod:`es_queue.policies.recurrent`).

    With virtual batch normalisation, the convolutions are normalised, and the hidden layer if there
    is no cell.

    shape:     of the observation, an image: [h, w], or with channels (colours, or the frames of a
    stack) in the smaller of the first and the last dimension
    """

    class Settings(BiasSettings, NormSettings):
        pass

    kinds = tuple(ARCHITECTURES)
    auto = "normal"  # orthogonal weights take many seconds for millions of them
    takes_pixels = True

    def build(self, config: RunConfig, shape: tuple[int, ...]) -> None:
        kind = self.kind
        if len(shape) not in (2, 3):
            described = f"arrays of shape {list(shape)}" if shape else "vectors"
            raise UsageError(
                f"policy is {kind}, which takes images of shape [stack, height, width] or [height, "
                f"width, colours], but the observations are {described}: use linear, mlp, rnn, "
                "lstm or gru"
            )
        self.architecture = architecture = ARCHITECTURES[kind]
        self.cell = CELLS[architecture.cell] if architecture.cell else None
        self.activation, self.gain = architecture.activation, GAINS[architecture.activation]
        #: Whether the flat observation is [channels, height, width] in C order.
        self.channels_first = len(shape) == 2 or shape[0] < shape[2]
        channels, height, width = (1, *shape) if len(shape) == 2 else shape
        if not self.channels_first:
            height, width, channels = shape
        self.image_shape = height, width, channels
        self.convolutions: list[Convolution] = []
        for filters in architecture.stack:
            layer = Convolution(filters, height, width, channels)
            (height, width), channels = layer.output_shape, filters.count
            if min(height, width) < 1:
                raise UsageError(
                    f"policy is {kind}, whose convolutions need larger images than "
                    f"{self.image_shape[0]} x {self.image_shape[1]} pixels: use another policy, or "
                    "reduce the images less"
                )
            self.convolutions.append(layer)
        units, depth = architecture.units, len(self.convolutions)
        gates = self.cell.gates if self.cell else 1
        shapes = [layer.shape for layer in self.convolutions]
        shapes.append((height * width * channels, gates * units))
        if self.cell:
            shapes.append((units, gates * units))
            self.memory_size = self.cell.states * units
        norms = [columns for _, columns in shapes[: depth + (self.cell is None)]]
        self.set_layers(
            [*shapes, (units, self.outputs)],
            architecture.biases and config.biases,
            norms if config.has_virtual_norm else [],
            transposed=depth,
            forget={depth: self.cell.forget_bias(units)} if self.cell else None,
        )

    @property
    def description(self) -> tuple[object, ...]:
        image = self.image_shape, self.channels_first
        return self.kind, image, self.outputs, bool(self.norms), self.biases

    def upright(self, flat: Floats) -> Floats:
        """float32[d] as float32[height, width, channels], a view."""
        height, width, channels = self.image_shape
        if self.channels_first:
            return flat.reshape(channels, height, width).transpose(1, 2, 0)
        return flat.reshape(height, width, channels)

    def acting_layers(self, vector: Floats) -> list[Layer]:
        layers = self.layers(vector)
        if not self.norms:
            return layers
        assert self.reference is not None
        images = [self.upright(observation) for observation in self.reference]
        with np.errstate(all="ignore"):  # a policy that breaks down is noticed by its outputs
            for number, scale in enumerate(self.scales(vector)):
                weights = layers[number][0]
                if number == len(self.convolutions):  # the hidden layer, which is the last
                    products = np.stack([image.reshape(-1).dot(weights) for image in images])
                    layers[number] = fold_normalisation(weights, products, *scale)
                    break
                gather = self.convolutions[number].make_gather()
                products = np.stack([gather(image) @ weights for image in images])
                layers[number] = fold_normalisation(weights, products, *scale)
                convolve = make_convolution(gather, layers[number], self.activation)
                images = [convolve(image) for image in images]
        return layers

    def bind(self, parameters: Floats) -> BoundPolicy:
        rows = self.checked(parameters)
        memory = np.zeros((len(rows), self.memory_size), np.float32)
        gathers = [layer.make_gather() for layer in self.convolutions]
        each = [
            self._network(gathers, self.acting_layers(row), row_memory)
            for row, row_memory in zip(rows, memory, strict=True)
        ]

        def act_many(observations: Floats) -> Floats:
            # One after another: a product of fixed shape has the same bits whoever else acts.
            return np.stack([act(seen) for act, seen in zip(each, observations, strict=True)])

        return BoundPolicy(len(rows), each[0], act_many, memory)

    def _network(self, gathers: list[Forward], layers: list[Layer], memory: Floats) -> Forward:
        """float32[d] -> float32[outputs] for one individual; ``gathers`` are shared by all."""
        depth, upright, cell = len(gathers), self.upright, self.cell
        convolutions = [
            make_convolution(gather, layer, self.activation)
            for gather, layer in zip(gathers, layers[:depth], strict=True)
        ]
        first, *states, last = map(make_dense, layers[depth:])
        activate, h = ACTIVATIONS[self.activation], memory[: self.architecture.units]

        def act(observation: Floats) -> Floats:
            image = upright(observation)
            for convolve in convolutions:
                image = convolve(image)
            x = first(image.reshape(-1))
            if cell:
                cell.step(x, states[0](h), memory)
                return last(h)
            activate(x, x)
            return last(x)

        return act


def make_convolution(gather: Forward, layer: Layer, activation: str) -> Forward:
    """float32[height, width, channels] -> float32[places, count], after the activation."""
    (weights, bias), activate = layer, ACTIVATIONS[activation]

    def convolve(image: Floats) -> Floats:
        x = gather(image) @ weights
        if len(bias):
            x += bias
        activate(x, x)
        return x

    return convolve
