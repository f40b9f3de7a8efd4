"""Exports a trained policy with its normalisation and action map; one file per format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from es_queue.errors import UsageError
from es_queue.export.build import build_graph
from es_queue.export.npz_file import npz_bytes
from es_queue.export.onnx_file import onnx_bytes
from es_queue.export.torch_file import torch_bytes
from es_queue.numerics.fingerprint import array_digest
from es_queue.policies.checkpoint_policy import SavedPolicy

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
