"""Convolutions as matrix products: patches of an image times the filters, in BLAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.layers.image_shape import ImageShape

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
class Convolution:
    """Filters over images [height, width, channels]; weights are [kernel, kernel, channels,
    count] in C order.

    vertical_padding, horizontal_padding: zeros around the image, in pixels
    """

    filters: Filters
    height: int
    width: int
    channels: int

    @property
    def vertical_padding(self) -> tuple[int, int]:
        return self.filters.padding_for(self.height)

    @property
    def horizontal_padding(self) -> tuple[int, int]:
        return self.filters.padding_for(self.width)

    @property
    def padded_shape(self) -> tuple[int, int, int]:
        return (
            self.height + sum(self.vertical_padding),
            self.width + sum(self.horizontal_padding),
            self.channels,
        )

    @property
    def output_shape(self) -> tuple[int, int]:
        """Height and width of the output [height, width, count]."""
        height, width, _ = self.padded_shape
        kernel, stride = self.filters.kernel, self.filters.stride
        return (height - kernel) // stride + 1, (width - kernel) // stride + 1

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the filters as one matrix."""
        return self.filters.kernel**2 * self.channels, self.filters.count


def build_convolutions(
    image_shape: ImageShape, stack: Sequence[Filters], policy: str
) -> list[Convolution]:
    """The convolutions of a stack, one after another. Raises UsageError if the image is too
    small for them.
    """
    height, width, channels = image_shape.height, image_shape.width, image_shape.channels
    layers = []
    for filters in stack:
        layer = Convolution(filters, height, width, channels)
        height, width = layer.output_shape
        if height < 1 or width < 1:
            raise UsageError(
                f"policy is {policy}, whose convolutions need larger images than "
                f"{image_shape.height} x {image_shape.width} pixels: use another policy, or "
                f"reduce the images less"
            )
        channels = filters.count
        layers.append(layer)
    return layers


class PatchExtractor:
    """Gathers the inputs of each position of a convolution, one row each; the next call overwrites
    the result.
    """

    def __init__(self, layer: Convolution) -> None:
        kernel, stride = layer.filters.kernel, layer.filters.stride
        height, width = layer.output_shape
        padded = np.zeros(layer.padded_shape, np.float32)
        self._inside = padded[layer.vertical_padding[0] :, layer.horizontal_padding[0] :][
            : layer.height, : layer.width
        ]
        # Points of a row and their channels lie side by side, so that long runs are copied.
        row_stride, column_stride, item_stride = padded.strides
        shape = (height, width, kernel, kernel * layer.channels)
        self._windows = as_strided(
            padded,
            shape,
            (stride * row_stride, stride * column_stride, row_stride, item_stride),
            writeable=False,
        )
        self._rows: Floats = np.empty((height * width, layer.shape[0]), np.float32)
        self._gathered = self._rows.reshape(shape)

    def __call__(self, image: Floats) -> Floats:
        """float32[height, width, channels], or as many numbers in that order -> float32[places,
        kernel · kernel · channels].
        """
        self._inside[...] = image.reshape(self._inside.shape)
        np.copyto(self._gathered, self._windows)
        return self._rows
