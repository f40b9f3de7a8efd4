"""Exports a trained policy with its normalisation and action map: one torch module, which
``torch.export`` and ``torch.onnx`` write.

observation float32[batch, d] (flat) → normalised → layers → raw float32[batch, outputs] → action. A
policy with memory also takes memory float32[batch, m] and returns memory_after.
"""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.interface import ActionSpec
from es_queue.errors import UsageError
from es_queue.files import npz_bytes
from es_queue.numerics.arrays import Floats
from es_queue.numerics.fingerprint import array_digest
from es_queue.policies.actions import middle_of
from es_queue.policies.base import Layer, LayeredPolicy, Policy, SelectedInputsPolicy
from es_queue.policies.conv import ConvPolicy
from es_queue.policies.linear_mlp import LRELU_SLOPE, MlpPolicy
from es_queue.policies.recurrent import RecurrentPolicy
from es_queue.policies.saved_policy import SavedPolicy

#: What ``export_bytes`` writes, by the ending of a file's name; .json is a seed list.
ENDINGS = (".onnx", ".pt2", ".npz")
#: (normalised observation, memory or None) -> (raw outputs, memory afterwards or None), of tensors.
Layers = Callable[[Any, Any], tuple[Any, Any]]


def export_bytes(
    ending: str, saved: SavedPolicy, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> bytes:
    """The file's bytes; ``saved`` was made from ``arrays`` and ``meta``. Raises UsageError for
    another ending, a policy without such a form, or a missing package.
    """
    if ending == ".npz":
        return npz_bytes(arrays, {name: one for name, one in meta.items() if name != "state"})
    if ending not in ENDINGS:
        raise UsageError(
            f"es-queue cannot export to {ending or 'a file without an ending'}: use FILE.json "
            f"(seed list) or {', '.join('FILE' + suffix for suffix in ENDINGS)}"
        )
    about = {
        "env": meta.get("config", {}).get("env", ""),
        "run": meta.get("run", ""),
        "policy": saved.config.policy,
        "digest": array_digest(saved.parameters),
        "action": saved.action.kind,
        "action_bound": saved.config.action_bound,
        "made_by": "es-queue",
    }
    about = {name: str(text) for name, text in about.items()}
    extra = "onnx" if ending == ".onnx" else "torch"
    try:
        torch: Any = importlib.import_module("torch")
        if extra == "onnx":
            importlib.import_module("onnxscript")
    except ImportError:
        raise UsageError(
            f"a {ending} file needs a package that is not installed: "
            f"pip install 'es-queue[{extra}]'"
        ) from None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its own parts
        program = make_program(torch, saved)
        return (onnx_bytes if extra == "onnx" else torch_bytes)(torch, program, about)


def torch_bytes(torch: Any, program: Any, about: Mapping[str, str]) -> bytes:
    """What ``torch.export.save`` writes; ``about`` is in it as the file policy.txt."""
    buffer = io.BytesIO()
    text = "".join(f"{name}: {value}\n" for name, value in about.items())
    torch.export.save(program, buffer, extra_files={"policy.txt": text})
    return buffer.getvalue()


def onnx_bytes(torch: Any, program: Any, about: Mapping[str, str]) -> bytes:
    """An ONNX model; ``about`` is kept in its metadata."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # torchvision is not needed
    count = len(program.graph_signature.user_inputs)
    exported = torch.onnx.export(
        program,
        dynamo=True,
        verbose=False,
        input_names=("observation", "memory")[:count],
        output_names=("raw", "action", "memory_after")[: 1 + count],
    )
    exported.model.metadata_props.update(about)
    data: bytes = exported.model_proto.SerializeToString()
    return data


def make_program(torch: Any, saved: SavedPolicy) -> Any:
    """Raises UsageError for a kind of policy without one."""
    policy, numbers = saved.policy, None
    if isinstance(policy, SelectedInputsPolicy):
        numbers, policy = torch.from_numpy(policy.numbers), policy.policy
    layers = make_layers(torch, policy, saved.parameters)
    to_action = make_action_map(torch, saved.action, saved.config.action_bound)
    mean, std = torch.tensor(saved.statistics.mean), torch.tensor(saved.statistics.std)
    clip = saved.statistics.clip

    class Exported(torch.nn.Module):  # type: ignore[misc]
        def forward(self, observation: Any, memory: Any = None) -> Any:
            x = observation
            if saved.config.obs_norm:
                x = (x - mean) / std
                x = x.clamp(-clip, clip) if clip else x
            if numbers is not None:  # a weight of zero would let a NaN through
                x = x[:, numbers]
            raw, after = layers(x, memory)
            return (raw, to_action(raw)) if after is None else (raw, to_action(raw), after)

    sizes = (saved.policy.observation_size, *filter(None, [saved.policy.memory_size]))
    batch = {0: torch.export.Dim("batch", min=1)}
    return torch.export.export(
        Exported().eval(),
        tuple(torch.zeros(2, size) for size in sizes),
        dynamic_shapes=(batch,) * len(sizes),
    )


def make_layers(torch: Any, policy: Policy, parameters: Floats) -> Layers:
    """The policy's forward pass with these parameters."""
    functional = torch.nn.functional

    if not isinstance(policy, LayeredPolicy):
        raise UsageError(
            f"a policy of the class {type(policy).__name__} cannot be exported to ONNX or torch: "
            "use FILE.npz, which load_policy reads"
        )

    def affine(layer: Layer) -> Callable[[Any], Any]:
        weights, bias = (torch.tensor(part) for part in layer)
        return lambda x: x @ weights + bias if len(bias) else x @ weights

    def activation(name: str) -> Callable[[Any], Any]:
        if name == "lrelu":
            return lambda x: functional.leaky_relu(x, float(LRELU_SLOPE))
        function: Callable[[Any], Any] = getattr(torch, name, None) or getattr(functional, name)
        return function

    arrays = policy.acting_layers(parameters)
    depth = len(policy.convolutions) if isinstance(policy, ConvPolicy) else 0
    *hidden, last = map(affine, arrays[depth:])

    if isinstance(policy, MlpPolicy):
        activate = activation(policy.activation)

        def mlp(x: Any, memory: Any) -> tuple[Any, Any]:
            for layer in hidden:
                x = activate(layer(x))
            return last(x), None

        return mlp

    if isinstance(policy, RecurrentPolicy):
        cells = list(zip(hidden[::2], hidden[1::2], policy.hidden, strict=True))
        widths = [policy.cell.states * units for units in policy.hidden]

        def recurrent(x: Any, memory: Any) -> tuple[Any, Any]:
            after = []
            for (inputs, state, units), part in zip(cells, memory.split(widths, 1), strict=True):
                x, updated = cell_step(torch, policy.kind, inputs(x), state(part[:, :units]), part)
                after.append(updated)
            return last(x), torch.cat(after, 1)

        return recurrent

    assert isinstance(policy, ConvPolicy)
    activate, units = activation(policy.activation), policy.architecture.units
    height, width, channels = policy.image_shape
    convolutions = []
    for convolution, (weights, bias) in zip(policy.convolutions, arrays[:depth], strict=True):
        filters = convolution.filters
        kernel = weights.reshape(
            filters.kernel, filters.kernel, convolution.channels, filters.count
        )
        vertical, horizontal = convolution.padding
        convolutions.append(
            (
                torch.tensor(kernel.transpose(3, 2, 0, 1).copy()),
                torch.tensor(bias) if len(bias) else None,
                filters.stride,
                (*horizontal, *vertical),
            )
        )

    def conv(x: Any, memory: Any) -> tuple[Any, Any]:
        if policy.channels_first:
            x = x.reshape(-1, channels, height, width)
        else:
            x = x.reshape(-1, height, width, channels).permute(0, 3, 1, 2)
        for kernel, bias, stride, padding in convolutions:
            x = activate(functional.conv2d(functional.pad(x, padding), kernel, bias, stride))
        x = x.permute(0, 2, 3, 1).flatten(1)
        if policy.cell is None:
            return last(activate(hidden[0](x))), None
        states = hidden[1](memory[:, :units])
        x, after = cell_step(torch, policy.cell.name, hidden[0](x), states, memory)
        return last(x), after

    return conv


def cell_step(torch: Any, cell: str, inputs: Any, state: Any, memory: Any) -> tuple[Any, Any]:
    """(h, memory afterwards); ``inputs`` and ``state`` are the gates, [batch, gates · units]."""
    if cell == "rnn":
        h = torch.tanh(inputs + state)
        return h, h.clone()
    if cell == "lstm":  # c <- f · c + i · g, h <- o · tanh(c); the memory is h, then c
        i, f, g, o = (inputs + state).chunk(4, 1)
        c = torch.sigmoid(f) * memory.chunk(2, 1)[1] + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, torch.cat([h, c], 1)
    # n = tanh(n_x + r · n_h), h <- (1 - z) · n + z · h, the second as (h - n) · z + n
    (r_x, z_x, n_x), (r_h, z_h, n_h) = inputs.chunk(3, 1), state.chunk(3, 1)
    n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    h = (memory - n) * torch.sigmoid(z_x + z_h) + n
    return h, h.clone()


def make_action_map(torch: Any, spec: ActionSpec, bound: str) -> Callable[[Any], Any]:
    """raw outputs -> actions of a batch. Of equal outputs, the lowest position is chosen."""
    if spec.kind == "multibinary":
        return lambda raw: (raw > 0).to(torch.int8).reshape(-1, *spec.shape)
    if spec.kind != "box":
        starts = torch.tensor(spec.starts)

        def choose(raw: Any) -> Any:
            groups = [part.argmax(1) for part in raw.split(list(spec.sizes), 1)]
            return (torch.stack(groups, 1) + starts).reshape(-1, *spec.shape)

        return choose
    low, high = torch.tensor(spec.low), torch.tensor(spec.high)
    if spec.bins:
        lows, highs = (np.array(end).reshape(-1, 1) for end in (spec.low, spec.high))
        values = torch.tensor(lows + (np.array(spec.bins) + 1) / 2 * (highs - lows)).float()
        count, kinds = values.shape
        offsets, values = torch.arange(count) * kinds, values.flatten()

        def choose_bins(raw: Any) -> Any:
            places = raw.reshape(-1, count, kinds).argmax(2) + offsets
            return values[places].reshape(-1, *spec.shape)

        return choose_bins
    if bound == "clip":
        middle = torch.from_numpy(middle_of(spec))
        return lambda raw: (raw + middle).clamp(low, high).reshape(-1, *spec.shape)
    half = (high - low) * 0.5
    return lambda raw: torch.minimum((torch.tanh(raw) + 1) * half + low, high).reshape(
        -1, *spec.shape
    )
