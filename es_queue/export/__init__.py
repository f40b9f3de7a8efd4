"""Exports a trained policy with its normalisation and action map; one file per format."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.spaces import ActionSpec
from es_queue.errors import UsageError
from es_queue.export.graph import ACTION, AFTER, MEMORY, OBSERVATION, RAW, Graph
from es_queue.export.layers import LAYERS
from es_queue.export.onnx_file import onnx_bytes
from es_queue.export.torch_file import torch_bytes
from es_queue.numerics.fingerprint import array_digest
from es_queue.policies.checkpoint_policy import SavedPolicy
from es_queue.policies.selected_inputs import SelectedInputsPolicy

#: What ``export_bytes`` writes, by the ending of a file's name; .json is a seed list.
ENDINGS = (".onnx", ".pt2", ".npz")

__all__ = ["ENDINGS", "build_graph", "export_bytes"]


def export_bytes(
    ending: str, saved: SavedPolicy, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> bytes:
    """The file's bytes; ``saved`` was made from ``arrays`` and ``meta``.

    Raises UsageError for another ending, a policy that has no such form, or a package that is not
    installed.
    """
    if ending == ".npz":
        return npz_bytes(arrays, meta)
    if ending not in ENDINGS:
        raise UsageError(
            f"es-queue cannot export to {ending or 'a file without an ending'}: use FILE.json "
            f"(seed list) or {', '.join('FILE' + suffix for suffix in ENDINGS)}"
        )
    write = onnx_bytes if ending == ".onnx" else torch_bytes
    return write(build_graph(saved), file_metadata(saved, meta))


def file_metadata(saved: SavedPolicy, meta: Mapping[str, Any]) -> dict[str, str]:
    settings = meta.get("config", {})
    metadata = {
        "env": settings.get("env", ""),
        "run": meta.get("run", ""),
        "policy": saved.config.policy,
        "digest": array_digest(saved.parameters),
        "action": saved.action.kind,
        "action_bound": saved.config.action_bound,
        "made_by": "es-queue",
    }
    return {name: str(text) for name, text in metadata.items()}


def npz_bytes(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """All ``arrays`` and the ``meta`` that ``read_checkpoint`` gives, uncompressed,
    without pickle.
    """
    buffer = io.BytesIO()
    stored_meta = {name: value for name, value in meta.items() if name != "state"}
    np.savez(buffer, allow_pickle=False, meta=np.array(json.dumps(stored_meta)), **arrays)
    return buffer.getvalue()


def build_graph(saved: SavedPolicy) -> Graph:
    """The graph of a saved policy. Raises UsageError for a kind of policy without a graph."""
    policy, numbers = saved.policy, None
    if isinstance(policy, SelectedInputsPolicy):
        numbers, policy = policy.numbers, policy.policy
    layers = LAYERS.get(type(policy))
    if layers is None:
        raise UsageError(
            f"a policy of the kind {saved.config.policy} cannot be exported to ONNX or "
            "torch: use FILE.npz, which load_policy reads"
        )
    graph = Graph({OBSERVATION: saved.policy.observation_size})
    graph.outputs[RAW] = ("float32", (saved.policy.outputs,))
    if saved.policy.memory_size:
        graph.inputs[MEMORY] = saved.policy.memory_size
    x = add_normalisation(saved, graph)
    if numbers is not None:  # a weight of zero would let a NaN through
        x = graph.add("Gather", x, graph.constant(numbers, np.int64), axis=1)
    raw = layers(policy, saved.parameters, graph, x)
    graph.outputs[ACTION] = add_action_map(saved.action, saved.config.action_bound, graph, raw)
    if saved.policy.memory_size:
        graph.outputs[AFTER] = ("float32", (saved.policy.memory_size,))
    graph.add("Identity", raw, output=RAW)
    return graph


def add_normalisation(saved: SavedPolicy, graph: Graph) -> str:
    """clip((observation - mean) / std), where the run normalised."""
    if not saved.config.obs_norm:
        return OBSERVATION
    x = graph.add("Sub", OBSERVATION, graph.constant(saved.statistics.mean))
    x = graph.add("Div", x, graph.constant(saved.statistics.std))
    clip = saved.statistics.clip
    return graph.clamp(x, [-clip], [clip]) if clip else x


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
    """The bin with the largest output for each number, the lowest of equal ones."""
    low, high = (np.array(bound).reshape(-1, 1) for bound in (spec.low, spec.high))
    values = low + (np.array(spec.bins) + 1) / 2 * (high - low)
    count, kinds = values.shape
    chosen = graph.add("ArgMax", graph.reshape(raw, (count, kinds)), axis=2, keepdims=0)
    places = graph.add("Add", chosen, graph.constant(np.arange(count) * kinds, np.int64))
    return graph.add("Gather", graph.constant(values.reshape(-1)), places, axis=0)


def choices(spec: ActionSpec, graph: Graph, raw: str) -> tuple[str, tuple[int, ...]]:
    """The position of the largest output in each group, the lowest of equal ones, counted from the
    group's start.
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
