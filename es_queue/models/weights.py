"""A user's model on a worker: its weights, their perturbations, and updates to the same bits
everywhere.

Noise follows from (the slot's key, the number of the leaf, the element). Products and sums are
separate operations on float32, each rounded, so no processor makes other bits of an update. A leaf
is a parameter that is trained. Importing this module needs no torch.

Rank R: Sarkar et al. 2025, Evolution Strategies at the Hyperscale (https://arxiv.org/abs/2511.16652).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure, MissingPackage
from es_queue.numerics.arrays import norm
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.normals import keyed_normals
from es_queue.strategies.model_es import ModelES, Update, parse_perturbation
from es_queue.user_code import describe_error, load_attribute

#: With the number of a leaf, the second half of the key of its noise; apart from all other streams.
STREAMS = int.from_bytes(b"es-model", "little")
#: The device of a host's models; cuda if torch finds one, else cpu.
DEVICE_VARIABLE = "ES_QUEUE_DEVICE"
INSTALL = "pip install 'es-queue[models]'"


def missing_packages(snapshots: str) -> str:
    """What a model's worker needs and this host lacks, as a sentence; empty for nothing.

    snapshots: the setting
    """
    needed = ["torch", "safetensors", *(["fsspec"] if "://" in snapshots else [])]
    if missing := " and ".join(name for name in needed if find_spec(name) is None):
        return f"a model needs {missing}: {INSTALL}"
    try:
        if "://" in snapshots:
            load_library("fsspec").get_filesystem_class(snapshots.partition("://")[0])
    except (ImportError, ValueError) as error:  # fsspec names the package, such as s3fs
        return f"snapshots cannot be written to that URL: {error}"
    return ""


def load_library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingPackage(f"a model needs {name.partition('.')[0]}: {INSTALL}") from None


class Leaf:
    """A trained parameter. Tensors are float32 and on its device, whatever its own type is.

    rank: of its noise, 0 for full
    weights: as the updates have made them; they are the parameter itself if that is float32 and
    never perturbed in place
    velocity: of the optimiser, or None; first: the weights of generation 0, or None
    """

    def __init__(self, number: int, name: str, parameter: Any, rank: int) -> None:
        self.number, self.name, self.parameter, self.rank = number, name, parameter, rank
        data, torch = parameter.data, load_library("torch")
        self.is_shared = rank > 0 and data.dtype == torch.float32
        self.weights = data if self.is_shared else data.to(torch.float32, copy=True)
        self.velocity: Any = None
        self.first: Any = None
        self._torch = torch

    def noise(self, key: int) -> Any:
        """Standard normals of a slot: the leaf's shape, or [rank, rows + columns]."""
        count = self.rank * sum(self.weights.shape) if self.rank else self.weights.numel()
        made = self._torch.from_numpy(keyed_normals(key, STREAMS + self.number, count))
        shape = (self.rank, -1) if self.rank else self.weights.shape
        return made.to(self.weights.device).reshape(shape)

    def factors(self, key: int) -> tuple[Any, Any]:
        """A [rank, rows] and B [rank, columns] of a slot."""
        return self.noise(key).split(list(self.weights.shape), 1)  # type: ignore[no-any-return]

    def perturb(self, key: int, sigma: float) -> None:
        """Full rank: the parameter becomes the weights + sigma noise."""
        self.parameter.data.copy_(self.noise(key).mul_(float32(sigma)).add_(self.weights))

    def restore(self) -> None:
        if not self.is_shared:
            self.parameter.data.copy_(self.weights)

    def weighted_noise(self, keys: Sequence[int], coefficients: Sequence[float]) -> Any:
        """Σ c ε in the order of slots."""
        total = self._torch.zeros_like(self.weights)
        for key, coefficient in zip(keys, coefficients, strict=True):
            if not coefficient:
                continue
            if not self.rank:
                total.add_(self.noise(key).mul_(coefficient))
                continue
            left, right = self.factors(key)
            left = left * float32(coefficient / self.rank**0.5)
            for row, column in zip(left, right, strict=True):
                total.add_(row[:, None] * column)
        return total

    def move(self, step: Any, decay: float) -> None:
        """Add a step, then the decay towards the first weights, or towards zero."""
        self.weights.add_(step)
        if decay and self.first is None:
            self.weights.mul_(float32(1 - decay))
        elif decay:
            self.weights.sub_((self.weights - self.first).mul_(float32(decay)))
        self.restore()


class LowRank:
    """The hook of a linear layer that adds the product of its leaf's noise to the layer's own."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf, self.scale, self.calls = leaf, 0.0, 0
        self.left = self.right = leaf.weights[:0]

    def draw(self, key: int, sigma: float) -> None:
        self.left, self.right = self.leaf.factors(key)
        self.scale = sigma / self.leaf.rank**0.5

    def __call__(self, layer: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        self.calls += 1
        if not self.scale:
            return None
        (seen,) = inputs
        inner = seen @ self.right.to(seen.dtype).T
        return output + self.scale * (inner @ self.left.to(seen.dtype))


class Model:
    """The user's model at the weights of one generation.

    leaves: in the order of ``named_parameters``
    """

    def __init__(self, config: RunConfig, device: str = "") -> None:
        """Load the module. Raises EnvironmentFailure in one sentence."""
        self.torch = torch = load_library("torch")
        self.config, self.name = config, config.model
        self.device = device or os.environ.get(DEVICE_VARIABLE, "")
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        kind = load_attribute(f"model {self.name}", self.name, EnvironmentFailure)
        try:
            self.user = kind()
            self.module = self.user.load(self.device)
            if not isinstance(self.module, torch.nn.Module):
                raise TypeError(f"load returned {type(self.module).__name__}, not a torch module")
            self.module.eval().requires_grad_(False)
            self.leaves = self._make_leaves()
        except Exception as error:  # whatever a user's class raises
            raise EnvironmentFailure(
                f"the model {self.name} cannot be loaded: {describe_error(error)}"
            ) from error
        self.has_velocity = config.momentum > 0 or self.is_clipup
        for leaf in self.leaves if config.anchor else ():
            leaf.first = leaf.weights.clone()
        self.reset_velocity()

    @property
    def is_clipup(self) -> bool:
        return ModelES.optimizer_name(self.config) == "clipup"

    def reset_velocity(self) -> None:
        for leaf in self.leaves if self.has_velocity else ():
            leaf.velocity = self.torch.zeros_like(leaf.weights)

    def _make_leaves(self) -> list[Leaf]:
        torch, rank = self.torch, parse_perturbation(self.config.perturbation)
        trained = getattr(self.user, "trained", None)
        named = dict(self.module.named_parameters())
        if trained is not None and not callable(trained):
            if unknown := [name for name in trained if name not in named]:
                raise ValueError(f"trained names {unknown[0]}, which the module does not have")
            trained = set(trained).__contains__
        names = [
            name
            for name, parameter in named.items()
            if parameter.is_floating_point() and (trained is None or trained(name))
        ]
        if not names:
            raise ValueError("no parameter is trained")
        # Only a layer that torch calls as a whole can have a hook, and only if nothing else reads
        # its weights.
        readers: dict[int, list[Any]] = {}
        for layer in self.module.modules():
            for parameter in layer.parameters(recurse=False):
                readers.setdefault(id(parameter), []).append(layer)
        leaves, self.hooks = [], list[LowRank]()
        for number, name in enumerate(names):
            layers = readers[id(named[name])] if rank else []
            is_linear = len(layers) == 1 and type(layers[0]) is torch.nn.Linear
            is_low = is_linear and layers[0].weight is named[name]
            leaves.append(Leaf(number, name, named[name], rank if is_low else 0))
            if is_low:
                self.hooks.append(LowRank(leaves[-1]))
                layers[0].register_forward_hook(self.hooks[-1])
        return leaves

    # --- scores

    def scores(self, seeds: Sequence[int]) -> list[float]:
        """What the user's ``score`` returns, as numbers. Raises ValueError for another number of
        them.
        """
        with self.torch.no_grad():
            found = self.user.score(self.module, list(seeds))
        values = [float(value) for value in found]
        if len(values) != len(seeds):
            raise ValueError(f"score returned {len(values)} numbers for {len(seeds)} seeds")
        return values

    def perturbed_scores(self, key: int, sigma: float, seeds: Sequence[int]) -> list[float]:
        """Of the weights + sigma times the noise of a slot; sigma is negative for the second of a
        pair. The weights are restored from their copy, never by subtraction.
        """
        low = {hook.leaf.number for hook in self.hooks}
        try:
            for hook in self.hooks:
                hook.draw(key, sigma)
            for leaf in self.leaves:
                if leaf.number not in low:
                    leaf.perturb(key, sigma)
            return self.scores(seeds)
        finally:
            for hook in self.hooks:
                hook.scale = 0.0
            for leaf in self.leaves:
                if leaf.number not in low:
                    leaf.restore()

    def unused_layers(self) -> list[str]:
        """Layers of rank R that ``score`` has not called yet: their noise would have no effect."""
        return [hook.leaf.name for hook in self.hooks if not hook.calls]

    # --- updates

    def apply(self, update: Update, keys: Iterable[int]) -> None:
        """One step of all leaves from the coefficients of slots with these noise keys."""
        numbers, values = [int(key) for key in keys], update.coefficients.tolist()
        momentum = float(self.config.momentum)
        if self.is_clipup:
            self._clip_up(numbers, values, update, momentum)
            return
        for leaf in self.leaves:
            step = leaf.weighted_noise(numbers, values)
            if self.has_velocity:  # v ← μ v + (1 − μ) g
                leaf.velocity.mul_(float32(momentum)).add_(step.mul_(float32(1 - momentum)))
                step = leaf.velocity.clone()
            leaf.move(step.mul_(float32(update.rate)), update.decay)

    def _clip_up(
        self, keys: list[int], values: list[float], update: Update, momentum: float
    ) -> None:
        """v ← m v + α g/‖g‖, then ‖v‖ ≤ 2 α; the lengths are summed on the CPU, leaf by leaf."""
        gradients = [leaf.weighted_noise(keys, values) for leaf in self.leaves]
        length = self._length(gradients)
        for leaf, gradient in zip(self.leaves, gradients, strict=True):
            leaf.velocity.mul_(float32(momentum))
            if length > 0:
                leaf.velocity.add_(gradient.mul_(float32(update.rate / length)))
        gradients.clear()
        speed = self._length([leaf.velocity for leaf in self.leaves])
        for leaf in self.leaves:
            if speed > 2 * update.rate:
                leaf.velocity.mul_(float32(2 * update.rate / speed))
            leaf.move(leaf.velocity, update.decay)

    @staticmethod
    def _length(tensors: Iterable[Any]) -> float:
        total = 0.0
        for tensor in tensors:
            total += norm(tensor.cpu().numpy().ravel()) ** 2
        return float(total**0.5)

    # --- what a snapshot holds

    def tensors(self) -> dict[str, Any]:
        """Weights and velocities by name, float32."""
        found = {f"weights.{leaf.name}": leaf.weights for leaf in self.leaves}
        for leaf in self.leaves if self.has_velocity else ():
            found[f"velocity.{leaf.name}"] = leaf.velocity
        return found

    def take(self, read: Callable[[str], Any]) -> None:
        """Copy all of ``tensors`` from ``read``. Raises ValueError for another shape."""
        for name, tensor in self.tensors().items():
            found = read(name)
            if found.shape != tensor.shape or found.dtype != tensor.dtype:
                raise ValueError(f"{name} is {found.dtype} {list(found.shape)}")
            tensor.copy_(found)
        for leaf in self.leaves:
            leaf.restore()

    def digest(self) -> str:
        """BLAKE2b-128 over the digests of all tensors."""
        parts = [bytes_digest(one.cpu().numpy().tobytes()) for one in self.tensors().values()]
        return bytes_digest("".join(parts).encode())


def weights_check(digest: str) -> int:
    """48 bits of the weights' digest, which a float64 and three numbers of a head hold exactly."""
    return int(digest[:12], 16)


def float32(value: float) -> float:
    return float(np.float32(value))
