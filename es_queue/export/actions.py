"""The action map as graph operations, equal to es_queue.policies.actions."""

from __future__ import annotations

import numpy as np

from es_queue.environments.spaces import ActionSpec
from es_queue.export.graph import ACTION, Graph


def add_action_map(
    spec: ActionSpec, bound: str, graph: Graph, raw: str
) -> tuple[str, tuple[int, ...]]:
    """Add the action map; type and shape of one action."""
    if spec.kind == "box":
        graph.reshape(box(spec, bound, graph, raw), spec.shape, ACTION)
        return "float32", spec.shape
    if spec.kind == "multibinary":
        positive = graph.add("Greater", raw, graph.constant([0]))
        graph.reshape(graph.add("Cast", positive, to="int8"), spec.shape, ACTION)
        return "int8", spec.shape
    return choices(spec, graph, raw)


def box(spec: ActionSpec, bound: str, graph: Graph, raw: str) -> str:
    low, high = np.array(spec.low, np.float32), np.array(spec.high, np.float32)
    if spec.bins:
        return bins(spec, graph, raw)
    if bound == "clip":
        return graph.clamp(raw, low, high)
    x = graph.add("Add", graph.add("Tanh", raw), graph.constant([1]))
    x = graph.add(
        "Add",
        graph.add("Mul", x, graph.constant((high - low) * np.float32(0.5))),
        graph.constant(low),
    )
    return graph.add("Min", x, graph.constant(high))


def bins(spec: ActionSpec, graph: Graph, raw: str) -> str:
    """Of each number's bins the one with the largest output, the lowest among equals."""
    low, high = (np.array(bound).reshape(-1, 1) for bound in (spec.low, spec.high))
    values = low + (np.array(spec.bins) + 1) / 2 * (high - low)
    count, kinds = values.shape
    chosen = graph.add("ArgMax", graph.reshape(raw, (count, kinds)), axis=2, keepdims=0)
    places = graph.add("Add", chosen, graph.constant(np.arange(count) * kinds, np.int64))
    return graph.add("Gather", graph.constant(values.reshape(-1)), places, axis=0)


def choices(spec: ActionSpec, graph: Graph, raw: str) -> tuple[str, tuple[int, ...]]:
    """The largest output's place in each group, the lowest among equals, counted from the group's
    start.
    """
    stops = np.cumsum(spec.sizes).tolist()
    chosen = [
        graph.add("ArgMax", graph.columns(raw, stop - size, stop), axis=1, keepdims=1)
        for size, stop in zip(spec.sizes, stops, strict=True)
    ]
    places = graph.add("Concat", *chosen, axis=1) if len(chosen) > 1 else chosen[0]
    graph.reshape(
        graph.add("Add", places, graph.constant(spec.starts, np.int64)), spec.shape, ACTION
    )
    return "int64", spec.shape
