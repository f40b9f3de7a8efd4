"""The layers of a convolutional policy, and their positions in its flat vector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from es_queue.numerics.arrays import Floats
from es_queue.policies.layers.cells import CELLS, Cell
from es_queue.policies.layers.convolution import (
    SAME,
    Convolution,
    Filters,
    build_convolutions,
)
from es_queue.policies.layers.image_shape import ImageShape

Layer = tuple[Floats, Floats]  # weights float32[rows, columns], bias float32[columns]


@dataclass(frozen=True)
class Architecture:
    """The layers of a convolutional policy.

    stack:      its convolutions, in order
    units:      width of the hidden layer or cell after the last convolution
    activation: after each convolution and the hidden layer
    biases:     whether its layers add one
    cell:       name of the recurrent cell in place of the hidden layer; empty for none
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
class ConvLayout:
    """The layers of one architecture on observations of one shape, in the flat vector's order.

    kind: the architecture's name; image_shape: of the observations; outputs: of the last layer;
    normalised: whether its layers are normalised by a batch

    Reading the layers raises UsageError if the image is too small for them.
    """

    kind: str
    image_shape: ImageShape
    outputs: int
    normalised: bool = False

    @cached_property
    def architecture(self) -> Architecture:
        return ARCHITECTURES[self.kind]

    @cached_property
    def convolutions(self) -> list[Convolution]:
        return build_convolutions(self.image_shape, self.architecture.stack, self.kind)

    @cached_property
    def cell(self) -> Cell | None:
        return CELLS[self.architecture.cell] if self.architecture.cell else None

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of all matrices, W not transposed."""
        last, units = self.convolutions[-1], self.architecture.units
        height, width = last.output_shape
        gates = self.cell.gates if self.cell else 1
        state = [(units, gates * units)] if self.cell else []
        return [
            *(layer.shape for layer in self.convolutions),
            (height * width * last.filters.count, gates * units),
            *state,
            (units, self.outputs),
        ]

    @cached_property
    def norms(self) -> list[int]:
        """Columns of the normalised layers."""
        count = len(self.convolutions) + (self.cell is None)
        return [columns for _, columns in self.shapes[:count]] if self.normalised else []

    @cached_property
    def plain_size(self) -> int:
        """Length of the flat vector up to the first scale."""
        return sum(
            rows * columns + columns * self.architecture.biases for rows, columns in self.shapes
        )

    @property
    def size(self) -> int:
        return self.plain_size + 2 * sum(self.norms)

    @property
    def memory_size(self) -> int:
        return self.cell.states * self.architecture.units if self.cell else 0

    def layers(self, vector: Floats) -> list[Layer]:
        """Views of each layer's W [rows, columns] and bias (empty without one) in float32[size]."""
        layers, start = [], 0
        for number, (rows, columns) in enumerate(self.shapes):
            middle = start + rows * columns
            stop = middle + columns * self.architecture.biases
            matrix = vector[start:middle]
            weights = (
                matrix.reshape(rows, columns)
                if number < len(self.convolutions)
                else matrix.reshape(columns, rows).T
            )
            layers.append((weights, vector[middle:stop]))
            start = stop
        return layers

    def scales(self, vector: Floats) -> list[Layer]:
        """Views of scale and shift of each normalised layer in float32[size]."""
        stops = self.plain_size + 2 * np.cumsum([0, *self.norms])
        return [
            (vector[start : start + columns], vector[start + columns : start + 2 * columns])
            for start, columns in zip(stops.tolist(), self.norms, strict=False)
        ]
