"""A user's ``torch.nn.Module`` as a policy, with parameters in the order of
``torch.nn.utils.parameters_to_vector``.

torch is imported only with the user's class.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import BoundPolicy, Policy, bind_rows, draw_unlayered


class TorchPolicy(Policy):
    """outputs = module(observation[1, …]), one individual at a time, so that bits do not depend on
    their number. Raises UsageError for a module that cannot be trained like this.

    build: makes the module, whose first parameters come from torch's generator
    shape: of the module's observation, after the leading 1

    A module with an attribute ``memory_size`` is called with (observation[1, …], memory[1,
    memory_size]) and returns both.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], Any],
        observation_size: int,
        outputs: int,
        shape: tuple[int, ...],
    ) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._build, self._shape = build, (1, *(shape or (observation_size,)))
        self._module = self._build_module(0)
        #: Parameters with ``requires_grad = False`` keep what the constructor gives them.
        self._trained = {part for part, one in self._module.named_parameters() if one.requires_grad}
        self.name, self.observation_size, self.outputs = name, observation_size, outputs
        self.memory_size = getattr(self._module, "memory_size", 0)
        if buffers := [buffer for buffer, _ in self._module.named_buffers()]:
            raise UsageError(
                f"the policy {name} has buffers ({', '.join(buffers[:3])}), which are not "
                "parameters: use layers without buffers, such as LayerNorm instead of BatchNorm"
            )
        for part, parameter in self._module.named_parameters():
            if parameter.dtype != self._torch.float32 or parameter.device.type != "cpu":
                raise UsageError(
                    f"the policy {name} has a parameter that is not float32 in the main memory: "
                    f"{part} is {parameter.dtype} on {parameter.device}"
                )
        self.size = sum(one.numel() for one in self._parameters(self._module))

    @property
    def description(self) -> tuple[object, ...]:
        return self.name, self.observation_size, self.outputs, self.size, self.memory_size

    def initial(self, seed: int, init: str) -> Floats:
        """auto is what the module's constructor draws from torch's generator, which is seeded and
        then restored; normal: standard normal numbers / √(inputs of a unit) in matrices and
        kernels, zeros elsewhere.
        """
        if init == "auto":
            parameters = self._parameters(self._build_module(seed))
            flat = self._torch.nn.utils.parameters_to_vector(parameters)
            return np.array(flat.detach().numpy(), np.float32)
        drawn = draw_unlayered(self.size, seed, init, "your own module initialises itself")
        start = 0
        for one in self._parameters(self._module):
            count = one.numel()
            drawn[start : start + count] *= (len(one) / count) ** 0.5 if one.dim() > 1 else 0.0
            start += count
        return drawn.astype(np.float32)

    def bind(self, parameters: Floats) -> BoundPolicy:
        """The weights are copied."""
        rows = self.checked(parameters)
        memory = np.zeros((len(rows), self.memory_size), np.float32)
        modules = [copy.deepcopy(self._module) for _ in rows]
        for module, row in zip(modules, rows, strict=True):
            trained = self._parameters(module)
            self._torch.nn.utils.vector_to_parameters(self._torch.tensor(row), trained)

        def act_row(row: int, observation: Floats) -> Floats:
            return self._outputs(modules[row], observation, memory[row : row + 1])

        return bind_rows(act_row, memory)

    def _outputs(self, module: Any, observation: Floats, memory: Floats) -> Floats:
        tensor = self._torch.tensor
        with self._torch.inference_mode():
            seen = tensor(observation).reshape(self._shape)
            outputs = module(seen, tensor(memory)) if self.memory_size else module(seen)
        if self.memory_size:
            outputs, after = outputs
            memory[...] = after.numpy()
        if not isinstance(outputs, self._torch.Tensor):
            raise TypeError(
                f"the module returns a {type(outputs).__name__}, but must return a tensor [1, "
                f"{self.outputs}]; a module with memory needs a memory_size"
            )
        flat: Floats = np.array(outputs.numpy(), np.float32).reshape(-1)
        if len(flat) != self.outputs:
            raise ValueError(
                f"the module returns {len(flat)} numbers, but must return {self.outputs}"
            )
        return flat

    def _build_module(self, seed: int) -> Any:
        """The module in evaluation mode; torch's generator is restored."""
        with self._torch.random.fork_rng(devices=[]):
            self._torch.manual_seed(seed)
            return self._build().eval()

    def _parameters(self, module: Any) -> list[Any]:
        """Those that train, in torch's order."""
        return [one for part, one in module.named_parameters() if part in self._trained]
