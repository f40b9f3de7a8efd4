"""A policy as a small graph of ONNX operations, from which each format is written.

observation float32[batch, d] (flat) → normalised → layers → raw float32[batch, outputs] → action. A
policy with memory also takes memory float32[batch, m] and returns memory_after.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Floats

OBSERVATION, RAW, ACTION, MEMORY, AFTER = "observation", "raw", "action", "memory", "memory_after"


@dataclass(frozen=True)
class Node:
    """One operation of ONNX's default set, version 17, with one output."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: dict[str, Any]


@dataclass
class Graph:
    """inputs: name -> numbers per row; outputs: name -> (type, shape of a row); constants: name ->
    array.
    """

    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """The name of an array that is part of the graph."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(value, kind)
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operation; returns the name of its output."""
        name = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(Node(kind, inputs, name, attributes))
        return name

    def columns(self, x: str, start: int, stop: int) -> str:
        whole = (self.constant([bound], np.int64) for bound in (start, stop, 1))
        return self.add("Slice", x, *whole)

    def reshape(self, x: str, shape: tuple[int, ...], output: str = "") -> str:
        return self.add("Reshape", x, self.constant((-1, *shape), np.int64), output=output)

    def clamp(self, x: str, low: Any, high: Any) -> str:
        return self.add("Min", self.add("Max", x, self.constant(low)), self.constant(high))

    def affine(self, x: str, weights: Floats, bias: Floats) -> str:
        """x @ weights + bias; an empty bias adds nothing."""
        product = self.add("MatMul", x, self.constant(weights))
        return self.add("Add", product, self.constant(bias)) if len(bias) else product
