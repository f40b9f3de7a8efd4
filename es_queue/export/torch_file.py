"""The graph as a torch program: ``torch.export.load("FILE.pt2").module()(observation)`` gives (raw,
action), or with memory ``(observation, memory)`` gives (raw, action, memory_after).
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping
from typing import Any

from es_queue.errors import UsageError
from es_queue.export.graph import Graph

Operation = Callable[..., Any]


def torch_bytes(graph: Graph, about: Mapping[str, str]) -> bytes:
    """What ``torch.export.save`` writes; ``about`` is in it as the file policy.txt. Raises
    UsageError if torch is not installed.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise UsageError(
            "a .pt2 file needs a package that is not installed: pip install 'es-queue[torch]'"
        ) from None
    batch = torch.export.Dim("batch", min=1)
    examples = tuple(torch.zeros(2, size) for size in graph.inputs.values())
    program = torch.export.export(
        make_module(torch, graph), examples, dynamic_shapes=[({0: batch},) * len(examples)]
    )
    buffer = io.BytesIO()
    torch.export.save(
        program,
        buffer,
        extra_files={"policy.txt": "".join(f"{name}: {text}\n" for name, text in about.items())},
    )
    return buffer.getvalue()


def make_module(torch: Any, graph: Graph) -> Any:
    table = operations(torch)
    plain = {
        name
        for node in graph.nodes
        if node.kind in ("Slice", "Reshape")
        for name in node.inputs[1:]
    }  # torch takes numbers there

    class Run(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name in set(graph.constants) - plain:
                self.register_buffer(name, torch.tensor(graph.constants[name]))

        def forward(self, *given: Any) -> Any:
            known = dict(zip(graph.inputs, given, strict=True))
            for node in graph.nodes:
                inputs = [
                    graph.constants[name].tolist()
                    if name in plain
                    else known[name]
                    if name in known
                    else getattr(self, name)
                    for name in node.inputs
                ]
                known[node.output] = table[node.kind](*inputs, **node.attributes)
            return tuple(known[name] for name in graph.outputs)

    return Run().eval()


def operations(torch: Any) -> dict[str, Operation]:
    """The operations of ONNX that the graphs use, as torch functions."""
    functional = torch.nn.functional
    return {
        "Identity": lambda x: x.clone(),
        "MatMul": torch.matmul,
        "Add": torch.add,
        "Sub": torch.sub,
        "Mul": torch.mul,
        "Div": torch.div,
        "Max": torch.maximum,
        "Min": torch.minimum,
        "Greater": torch.gt,
        "Tanh": torch.tanh,
        "Sigmoid": torch.sigmoid,
        "Relu": torch.relu,
        "LeakyRelu": lambda x, alpha: functional.leaky_relu(x, alpha),
        "Selu": functional.selu,
        "Elu": functional.elu,
        "Cast": lambda x, to: x.to(getattr(torch, to)),
        "ArgMax": lambda x, axis, keepdims: torch.argmax(x, axis, bool(keepdims)),
        "Concat": lambda *parts, axis: torch.cat(parts, axis),
        "Slice": lambda x, start, stop, axis: x.narrow(axis[0], start[0], stop[0] - start[0]),
        "Gather": lambda x, places, axis: x[(slice(None),) * axis + (places,)],
        "Transpose": lambda x, perm: x.permute(perm),
        "Conv": lambda x, filters, *bias, strides, pads: functional.conv2d(
            functional.pad(x, (pads[1], pads[3], pads[0], pads[2])), filters, *bias, stride=strides
        ),
        "Reshape": lambda x, shape: x.reshape(shape),
    }
