"""Policies as graphs: raw outputs from the normalised observation, by kind of policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from es_queue.export.graph import AFTER, MEMORY, Graph
from es_queue.numerics.arrays import Floats
from es_queue.policies.conv import ConvPolicy
from es_queue.policies.layers.activations import LRELU_SLOPE
from es_queue.policies.layers.convolution import Convolution
from es_queue.policies.layers.image_shape import ImageShape
from es_queue.policies.linear import LinearPolicy
from es_queue.policies.mlp import MlpPolicy, NormalisedMlpPolicy
from es_queue.policies.recurrent import RecurrentPolicy


def step(
    cell: str, graph: Graph, input_gates: str, state_gates: str, memory: str, units: int
) -> tuple[str, str]:
    """(h, memory afterwards) of the cell ``rnn``, ``lstm`` or ``gru``; ``input_gates`` and
    ``state_gates`` are [batch, gates · units].
    """
    if cell == "rnn":
        h = graph.add("Tanh", graph.add("Add", input_gates, state_gates))
        return h, h
    return (
        lstm(graph, graph.add("Add", input_gates, state_gates), memory, units)
        if cell == "lstm"
        else gru(graph, input_gates, state_gates, memory, units)
    )


def lstm(graph: Graph, gates: str, memory: str, units: int) -> tuple[str, str]:
    """c <- f · c + i · g, h <- o · tanh(c); the memory is h, then c."""
    i, f, g, o = (graph.columns(gates, gate * units, (gate + 1) * units) for gate in range(4))
    retained = graph.add("Mul", graph.add("Sigmoid", f), graph.columns(memory, units, 2 * units))
    c = graph.add("Add", retained, graph.add("Mul", graph.add("Sigmoid", i), graph.add("Tanh", g)))
    h = graph.add("Mul", graph.add("Sigmoid", o), graph.add("Tanh", c))
    return h, graph.add("Concat", h, c, axis=1)


def gru(
    graph: Graph, input_gates: str, state_gates: str, memory: str, units: int
) -> tuple[str, str]:
    """n = tanh(seen_n + r · kept_n), h <- (1 - z) · n + z · h, the second as (h - n) · z + n."""
    r, z = (
        graph.add(
            "Sigmoid",
            graph.add(
                "Add",
                *(
                    graph.columns(gates, gate * units, (gate + 1) * units)
                    for gates in (input_gates, state_gates)
                ),
            ),
        )
        for gate in range(2)
    )
    new_input, new_state = (
        graph.columns(gates, 2 * units, 3 * units) for gates in (input_gates, state_gates)
    )
    n = graph.add("Tanh", graph.add("Add", new_input, graph.add("Mul", r, new_state)))
    h = graph.add("Add", graph.add("Mul", graph.add("Sub", memory, n), z), n)
    return h, h


Layers = Callable[[Any, Floats, Graph, str], str]


def linear(policy: LinearPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    return graph.add(
        "MatMul", x, graph.constant(parameters.reshape(policy.observation_size, policy.outputs))
    )


def mlp(policy: MlpPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    *hidden, last = policy.layers(parameters[None])
    for weights, bias in hidden:
        x = add_activation(graph, graph.affine(x, weights[0], bias[0]), policy.activation)
    return graph.affine(x, last[0][0], last[1][0])


def normalised_mlp(policy: NormalisedMlpPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    """The graph of the equal plain mlp."""
    *hidden, last = policy.acting_layers(parameters)
    for weights, bias in hidden:
        x = add_activation(graph, graph.affine(x, weights, bias), policy.activation)
    return graph.affine(x, *last)


def add_activation(graph: Graph, x: str, activation: str) -> str:
    if activation == "lrelu":
        return graph.add("LeakyRelu", x, alpha=float(LRELU_SLOPE))
    return graph.add(activation.capitalize(), x)


def conv(policy: ConvPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    """Convolutions on [batch, channels, height, width], then a hidden layer or a cell, then the
    outputs.
    """
    layout = policy.layout
    layers, depth = policy.acting_layers(parameters), len(layout.convolutions)
    x = add_image_layout(layout.image_shape, graph, x)
    for layer, (weights, bias) in zip(layout.convolutions, layers[:depth], strict=True):
        x = add_activation(
            graph, add_convolution(graph, x, layer, weights, bias), policy.activation
        )
    places, count = layout.convolutions[-1].output_shape, layout.convolutions[-1].filters.count
    x = graph.reshape(
        graph.add("Transpose", x, perm=[0, 2, 3, 1]), (places[0] * places[1] * count,)
    )
    if layout.cell:
        (w_in, b_in), (w_state, b_state) = layers[depth:-1]
        state_gates = graph.affine(
            graph.columns(MEMORY, 0, layout.architecture.units), w_state, b_state
        )
        x, after = step(
            layout.cell.name,
            graph,
            graph.affine(x, w_in, b_in),
            state_gates,
            MEMORY,
            layout.architecture.units,
        )
        graph.add("Identity", after, output=AFTER)
    else:
        x = add_activation(graph, graph.affine(x, *layers[depth]), policy.activation)
    return graph.affine(x, *layers[-1])


def add_image_layout(image_shape: ImageShape, graph: Graph, x: str) -> str:
    """[batch, channels, height, width] of flat observations."""
    if image_shape.channels_first:
        return graph.reshape(x, (image_shape.channels, image_shape.height, image_shape.width))
    return graph.add(
        "Transpose",
        graph.reshape(x, (image_shape.height, image_shape.width, image_shape.channels)),
        perm=[0, 3, 1, 2],
    )


def add_convolution(graph: Graph, x: str, layer: Convolution, weights: Floats, bias: Floats) -> str:
    kernel, stride = layer.filters.kernel, layer.filters.stride
    filters = weights.reshape(kernel, kernel, layer.channels, layer.filters.count).transpose(
        3, 2, 0, 1
    )
    pads = [
        layer.vertical_padding[0],
        layer.horizontal_padding[0],
        layer.vertical_padding[1],
        layer.horizontal_padding[1],
    ]
    biases = [graph.constant(bias)] if len(bias) else []
    return graph.add(
        "Conv", x, graph.constant(filters), *biases, strides=[stride, stride], pads=pads
    )


def recurrent(policy: RecurrentPolicy, parameters: Floats, graph: Graph, x: str) -> str:
    """One layer of cells after another, each with its part of the memory, then the outputs."""
    layers = [(weights[0], bias[0]) for weights, bias in policy.layers(parameters[None])]
    after, start = [], 0
    for input_layer, state_layer, units in zip(
        layers[:-1:2], layers[1::2], policy.hidden, strict=True
    ):
        stop = start + policy.cell.states * units
        memory = graph.columns(MEMORY, start, stop)
        state_gates = graph.affine(graph.columns(memory, 0, units), *state_layer)
        x, updated = step(
            policy.kind, graph, graph.affine(x, *input_layer), state_gates, memory, units
        )
        after.append(updated)
        start = stop
    graph.add("Concat", *after, axis=1, output=AFTER)
    return graph.affine(x, *layers[-1])


LAYERS: dict[type[Any], Layers] = {
    LinearPolicy: linear,
    MlpPolicy: mlp,
    NormalisedMlpPolicy: normalised_mlp,
    ConvPolicy: conv,
    RecurrentPolicy: recurrent,
}
