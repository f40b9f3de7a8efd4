"""A policy as a small graph of ONNX's operations, from which each format is written.

observation float32[batch, d], as the environment yields it and flat → normalised → layers → raw float32[batch, outputs] →
action; a policy that remembers also takes memory float32[batch, m] and gives memory_after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import UsageError
from es_queue.policies.base import Floats
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.saved import SavedPolicy
from es_queue.spaces import ActionSpec

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
    """inputs: name -> numbers a row; outputs: name -> (type, shape of a row); constants: name -> array."""

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
        """The name of the output of one more operation."""
        name = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(Node(kind, inputs, name, attributes))
        return name

    def part(self, x: str, start: int, stop: int) -> str:
        """Columns start … stop-1 of a matrix."""
        whole = (self.constant([one], np.int64) for one in (start, stop, 1))
        return self.add("Slice", x, *whole)

    def shaped(self, x: str, shape: tuple[int, ...], output: str = "") -> str:
        """Rows of another shape."""
        return self.add("Reshape", x, self.constant((-1, *shape), np.int64), output=output)


Layers = Callable[[Any, Floats, Graph, str], str]


def graph_of(saved: SavedPolicy) -> Graph:
    """The graph of a saved policy. Raises UsageError for a kind of policy that no graph is known of."""
    layers = LAYERS.get(type(saved.policy))
    if layers is None:
        raise UsageError(f"a policy of the kind {saved.config.policy} cannot be exported to ONNX or torch: use FILE.npz, which load_policy reads")
    graph = Graph({OBSERVATION: saved.policy.observation_size})
    if saved.policy.memory_size:
        graph.inputs[MEMORY] = saved.policy.memory_size
        graph.outputs[AFTER] = ("float32", (saved.policy.memory_size,))
    raw = layers(saved.policy, saved.parameters, graph, normalised(saved, graph))
    graph.outputs = {RAW: ("float32", (saved.policy.outputs,)), ACTION: action(saved.action, saved.config.action_bound, graph, raw), **graph.outputs}
    graph.add("Identity", raw, output=RAW)
    return graph


def normalised(saved: SavedPolicy, graph: Graph) -> str:
    """clip((observation - mean) / std), where the run normalised."""
    if not saved.config.obs_norm:
        return OBSERVATION
    x = graph.add("Sub", OBSERVATION, graph.constant(saved.statistics.mean))
    x = graph.add("Div", x, graph.constant(saved.statistics.std))
    clip = saved.statistics.clip
    return between(graph, x, [-clip], [clip]) if clip else x


def between(graph: Graph, x: str, low: Any, high: Any) -> str:
    return graph.add("Min", graph.add("Max", x, graph.constant(low)), graph.constant(high))


# --- layers: raw outputs from the normalised observation


def linear(policy: LinearPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    return graph.add("MatMul", x, graph.constant(parameters.reshape(policy.observation_size, policy.outputs)))


def mlp(policy: MlpPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    *hidden, last = policy.layers(parameters[None])
    for weights, bias in hidden:
        x = activated(graph, affine(graph, x, weights[0], bias[0]), policy.activation)
    return affine(graph, x, last[0][0], last[1][0])


def affine(graph: Graph, x: str, weights: Floats, bias: Floats) -> str:
    return graph.add("Add", graph.add("MatMul", x, graph.constant(weights)), graph.constant(bias))


def activated(graph: Graph, x: str, activation: str) -> str:
    return graph.add(activation.capitalize(), x)


LAYERS: dict[type[Any], Layers] = {LinearPolicy: linear, MlpPolicy: mlp}

# --- actions: as es_queue.policies.actions, in the form that the environment's step takes


def action(spec: ActionSpec, bound: str, graph: Graph, raw: str) -> tuple[str, tuple[int, ...]]:
    """Add the action map; type and shape of one action."""
    if spec.kind == "box":
        graph.shaped(box(spec, bound, graph, raw), spec.shape, ACTION)
        return "float32", spec.shape
    if spec.kind == "multibinary":
        positive = graph.add("Greater", raw, graph.constant([0]))
        graph.shaped(graph.add("Cast", positive, to="int8"), spec.shape, ACTION)
        return "int8", spec.shape
    return choices(spec, graph, raw)


def box(spec: ActionSpec, bound: str, graph: Graph, raw: str) -> str:
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    if bound == "clip":
        return between(graph, raw, low, high)
    x = graph.add("Add", graph.add("Tanh", raw), graph.constant([1]))
    x = graph.add("Add", graph.add("Mul", x, graph.constant((high - low) * np.float32(0.5))), graph.constant(low))
    return graph.add("Min", x, graph.constant(high))


def choices(spec: ActionSpec, graph: Graph, raw: str) -> tuple[str, tuple[int, ...]]:
    """The largest output's place in each group, the lowest among equals, counted from the group's start."""
    stops = np.cumsum(spec.sizes).tolist()
    chosen = [graph.add("ArgMax", graph.part(raw, stop - size, stop), axis=1, keepdims=1) for size, stop in zip(spec.sizes, stops, strict=True)]
    places = graph.add("Concat", *chosen, axis=1) if len(chosen) > 1 else chosen[0]
    graph.shaped(graph.add("Add", places, graph.constant(spec.starts, np.int64)), spec.shape, ACTION)
    return "int64", spec.shape
