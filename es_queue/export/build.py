"""From a saved policy to its graph: normalisation, layers, action map."""

from __future__ import annotations

import numpy as np

from es_queue.errors import UsageError
from es_queue.export.actions import add_action_map
from es_queue.export.graph import ACTION, AFTER, MEMORY, OBSERVATION, RAW, Graph
from es_queue.export.layers import LAYERS
from es_queue.policies.checkpoint_policy import SavedPolicy
from es_queue.policies.selected_inputs import SelectedInputsPolicy


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
