"""Policies as graphs: raw outputs from the normalised observation, by kind of policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from es_queue.export.graph import Graph
from es_queue.policies.base import Floats
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy

Layers = Callable[[Any, Floats, Graph, str], str]


def linear(policy: LinearPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    return graph.add("MatMul", x, graph.constant(parameters.reshape(policy.observation_size, policy.outputs)))


def mlp(policy: MlpPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    *hidden, last = policy.layers(parameters[None])
    for weights, bias in hidden:
        x = activated(graph, graph.affine(x, weights[0], bias[0]), policy.activation)
    return graph.affine(x, last[0][0], last[1][0])


def activated(graph: Graph, x: str, activation: str) -> str:
    return graph.add(activation.capitalize(), x)


LAYERS: dict[type[Any], Layers] = {LinearPolicy: linear, MlpPolicy: mlp}
