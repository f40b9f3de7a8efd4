"""One step of the recurrent cells as graph operations, equal to es_queue.policies.layers.cells."""

from __future__ import annotations

from es_queue.export.graph import Graph


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
