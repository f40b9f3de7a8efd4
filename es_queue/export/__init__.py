"""Exports a trained policy with its normalisation and action map; one file per format."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.errors import UsageError
from es_queue.export.actions import add_action_map
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
    """The file's bytes; ``arrays`` and ``meta`` are what ``saved`` was made from.

    Raises UsageError for another ending, a policy that has no such form, or a package that is not
    installed.
    """
    if ending == ".npz":
        return npz_bytes(arrays, meta)
    if ending not in ENDINGS:
        raise UsageError(
            f"es-queue cannot export to {ending or 'a file without an ending'}: use FILE.json "
            f"(seed list), {', '.join('FILE' + suffix for suffix in ENDINGS)}"
        )
    write = onnx_bytes if ending == ".onnx" else torch_bytes
    return write(build_graph(saved), file_metadata(saved, meta))


def file_metadata(saved: SavedPolicy, meta: Mapping[str, Any]) -> dict[str, str]:
    """What a file says of itself."""
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
    """The graph of a saved policy. Raises UsageError for a kind of policy that no graph is known
    of.
    """
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
