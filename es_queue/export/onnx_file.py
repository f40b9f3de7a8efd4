"""The graph as an ONNX model (operations of version 17), built with ``onnx.helper``; torch is not
needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from es_queue.errors import UsageError
from es_queue.export.graph import Graph

OPERATIONS, FILE_VERSION = 17, 8


def onnx_bytes(graph: Graph, about: Mapping[str, str]) -> bytes:
    """A checked model; ``about`` is kept in its metadata. Raises UsageError if onnx is not
    installed.
    """
    try:
        onnx: Any = importlib.import_module("onnx")
    except ImportError:
        raise UsageError(
            "a .onnx file needs a package that is not installed: pip install 'es-queue[onnx]'"
        ) from None
    helper = onnx.helper
    onnx_graph = helper.make_graph(
        [_node(onnx, node) for node in graph.nodes],
        "policy",
        [_value(onnx, name, "float32", (size,)) for name, size in graph.inputs.items()],
        [_value(onnx, name, *signature) for name, signature in graph.outputs.items()],
        [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    model = helper.make_model(
        onnx_graph,
        producer_name="es-queue",
        opset_imports=[helper.make_opsetid("", OPERATIONS)],
        ir_version=FILE_VERSION,
    )
    helper.set_model_props(model, dict(about))
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def _node(onnx: Any, node: Any) -> Any:
    attributes = {
        name: _type(onnx, value) if name == "to" else value
        for name, value in node.attributes.items()
    }
    return onnx.helper.make_node(node.kind, list(node.inputs), [node.output], **attributes)


def _value(onnx: Any, name: str, kind: str, shape: tuple[int, ...]) -> Any:
    return onnx.helper.make_tensor_value_info(name, _type(onnx, kind), ["batch", *shape])


def _type(onnx: Any, kind: str) -> Any:
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
