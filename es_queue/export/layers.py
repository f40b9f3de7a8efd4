"""Policies as graphs: raw outputs from the normalised observation, by kind of policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from es_queue.export.cells import step
from es_queue.export.graph import AFTER, MEMORY, Graph
from es_queue.policies.base import Floats
from es_queue.policies.conv import ConvPolicy
from es_queue.policies.convolution import Convolution
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy
from es_queue.policies.normalised_mlp import NormalisedMlpPolicy
from es_queue.policies.pictures import Picture
from es_queue.policies.recurrent import RecurrentPolicy

Layers = Callable[[Any, Floats, Graph, str], str]


def linear(policy: LinearPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    return graph.add("MatMul", x, graph.constant(parameters.reshape(policy.observation_size, policy.outputs)))


def mlp(policy: MlpPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    *hidden, last = policy.layers(parameters[None])
    for weights, bias in hidden:
        x = activated(graph, graph.affine(x, weights[0], bias[0]), policy.activation)
    return graph.affine(x, last[0][0], last[1][0])


def normalised_mlp(policy: NormalisedMlpPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    """As the plain one that it acts as."""
    *hidden, last = policy.acting_layers(parameters)
    for weights, bias in hidden:
        x = activated(graph, graph.affine(x, weights, bias), policy.activation)
    return graph.affine(x, *last)


def activated(graph: Graph, x: str, activation: str) -> str:
    return graph.add(activation.capitalize(), x)


def conv(policy: ConvPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    """Convolutions on [batch, channels, height, width], then a hidden layer or a cell, then the outputs."""
    layers, depth = policy.acting_layers(parameters), len(policy.convolutions)
    x = upright(policy.picture, graph, x)
    for layer, (weights, bias) in zip(policy.convolutions, layers[:depth], strict=True):
        x = activated(graph, convolved(graph, x, layer, weights, bias), policy.activation)
    places, count = policy.convolutions[-1].places, policy.convolutions[-1].filters.count
    x = graph.shaped(graph.add("Transpose", x, perm=[0, 2, 3, 1]), (places[0] * places[1] * count,))
    if policy.cell:
        (w_in, b_in), (w_state, b_state) = layers[depth:-1]
        kept = graph.affine(graph.part(MEMORY, 0, policy.units), w_state, b_state)
        x, after = step(policy.cell.name, graph, graph.affine(x, w_in, b_in), kept, MEMORY, policy.units)
        graph.add("Identity", after, output=AFTER)
    else:
        x = activated(graph, graph.affine(x, *layers[depth]), policy.activation)
    return graph.affine(x, *layers[-1])


def upright(picture: Picture, graph: Graph, x: str) -> str:
    """[batch, channels, height, width] of flat observations."""
    if picture.channels_first:
        return graph.shaped(x, (picture.channels, picture.height, picture.width))
    return graph.add("Transpose", graph.shaped(x, (picture.height, picture.width, picture.channels)), perm=[0, 3, 1, 2])


def convolved(graph: Graph, x: str, layer: Convolution, weights: Floats, bias: Floats) -> str:
    kernel, stride = layer.filters.kernel, layer.filters.stride
    filters = weights.reshape(kernel, kernel, layer.channels, layer.filters.count).transpose(3, 2, 0, 1)
    pads = [layer.above_below[0], layer.left_right[0], layer.above_below[1], layer.left_right[1]]
    biases = [graph.constant(bias)] if len(bias) else []
    return graph.add("Conv", x, graph.constant(filters), *biases, strides=[stride, stride], pads=pads)


def recurrent(policy: RecurrentPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    """A layer of cells after the other, each with its part of the memory, then the outputs."""
    layers = [(weights[0], bias[0]) for weights, bias in policy.layers(parameters[None])]
    after, start = [], 0
    for look, keep, units in zip(layers[:-1:2], layers[1::2], policy.hidden, strict=True):
        stop = start + policy.cell.states * units
        memory = graph.part(MEMORY, start, stop)
        kept = graph.affine(graph.part(memory, 0, units), *keep)
        x, now = step(policy.kind, graph, graph.affine(x, *look), kept, memory, units)
        after.append(now)
        start = stop
    graph.add("Concat", *after, axis=1, output=AFTER)
    return graph.affine(x, *layers[-1])


LAYERS: dict[type[Any], Layers] = {LinearPolicy: linear, MlpPolicy: mlp, NormalisedMlpPolicy: normalised_mlp, ConvPolicy: conv, RecurrentPolicy: recurrent}
