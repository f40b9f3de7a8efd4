"""Policies of the user's own by name: imported, made, and tried out before anybody trains them."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np

from es_queue.custom_code import describe_error, imported
from es_queue.errors import EsQueueError, UsageError
from es_queue.policies.base import MOST_PARAMETERS, Floats, Policy
from es_queue.policies.torch_policy import TorchPolicy

MOST_MEMORY = 2**20
TRIED, STEPS = 3, 3
TORCH_HINT = ": pip install 'es-queue[torch]'"


def own_policy(path: str, observation_size: int, outputs: int, shape: tuple[int, ...]) -> Policy:
    """The policy that ``module:Class`` names: a class that extends Policy (NumpyPolicy is the simple way), or a torch.nn.Module.

    It is made with (observation_size, outputs), and with observation_shape where it takes that.
    Raises UsageError in one sentence for what cannot be imported, made or trained.
    """
    kind = own_class(path)
    try:
        policy = made(path, kind, observation_size, outputs, shape)
        refuse_unfit(path, policy, observation_size, outputs)
        try_out(path, policy)
    except EsQueueError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise UsageError(f"the policy {path} fails when it is tried out: {describe_error(error)}") from error
    return policy


def own_class(path: str) -> type[Any]:
    """Raises UsageError for what cannot be imported or is no policy."""
    try:
        found = imported(f"policy {path}", path, UsageError)
    except UsageError as error:
        lacks_torch = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "torch"
        raise UsageError(f"{error}{TORCH_HINT if lacks_torch else ''}") from error.__cause__
    if not isinstance(found, type) or inspect.isabstract(found) or not (issubclass(found, Policy) or is_module(found)):
        raise UsageError(f"the policy {path} is neither a class that extends es_queue.policies.NumpyPolicy and defines act, nor a torch.nn.Module")
    return found


def is_module(kind: type[Any]) -> bool:
    """Whether it is a torch.nn.Module; only who has imported torch can have one."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.nn.Module)


def made(path: str, kind: type[Any], observation_size: int, outputs: int, shape: tuple[int, ...]) -> Policy:
    shaped = "observation_shape" in inspect.signature(kind).parameters
    named: dict[str, Any] = {"observation_shape": shape} if shaped else {}

    def build() -> Any:
        return kind(observation_size, outputs, **named)

    if is_module(kind):
        return TorchPolicy(path, build, observation_size, outputs, shape if shaped else ())
    policy: Policy = build()
    return policy


def refuse_unfit(path: str, policy: Policy, observation_size: int, outputs: int) -> None:
    """Raises UsageError for sizes that cannot be."""
    for name, least, most in (
        ("observation_size", observation_size, observation_size), ("outputs", outputs, outputs),
        ("size", 1, MOST_PARAMETERS), ("memory_size", 0, MOST_MEMORY),
    ):  # fmt: skip
        value = getattr(policy, name, None)
        if type(value) is not int or not least <= value <= most:
            wanted = str(least) if least == most else f"a whole number from {least} to {most}"
            raise UsageError(f"the policy {path} has the {name} {value!r}, where {wanted} is due")


def try_out(path: str, policy: Policy) -> None:
    """Raises UsageError where first parameters are none, or where many individuals act otherwise than each alone."""
    first = [np.asarray(policy.initial(seed, "auto")) for seed in (1, 1)]
    if first[0].dtype != np.float32 or first[0].shape != (policy.size,) or not np.isfinite(first[0]).all():
        raise UsageError(f"the policy {path} has first parameters {first[0].dtype}{list(first[0].shape)}, where {policy.size} finite float32 are due")
    if first[0].tobytes() != first[1].tobytes():
        raise UsageError(f"the policy {path} has other first parameters each time: initial must draw from its seed alone")
    bump = np.cos(np.arange(policy.size, dtype=np.float32))
    rows: Floats = np.stack([first[0] + np.float32(0.1 * row) * bump for row in range(TRIED)]).astype(np.float32)
    with np.errstate(all="ignore"):
        together = outputs_of(policy, rows)
        alone = [outputs_of(policy, rows[row : row + 1]) for row in range(TRIED)]
    if together.dtype != np.float32 or together.shape != (2, STEPS, TRIED, policy.outputs):
        raise UsageError(f"the policy {path} puts out {together.dtype}{list(together.shape[2:])} for {TRIED} individuals, where float32[{TRIED}, {policy.outputs}] is due")
    if together.tobytes() != np.concatenate(alone, axis=2).tobytes():
        raise UsageError(f"the policy {path} gives other bits for many individuals at once than for each alone: results would depend on the number of workers")
    if together[0].tobytes() != together[1].tobytes():
        raise UsageError(f"the policy {path} acts otherwise in a second episode that is like the first: what it remembers must stand in memory alone")


def outputs_of(policy: Policy, rows: Floats) -> Floats:
    """[2, STEPS, B, outputs]: of two episodes of the same few observations."""
    bound = policy.bind(rows)
    seen = np.sin(np.arange(STEPS * policy.observation_size, dtype=np.float32)).reshape(STEPS, -1)
    episodes = []
    for _ in range(2):
        bound.memory.fill(0)
        single = bound.begin() if len(rows) == 1 else None
        episodes.append([np.copy(bound(np.stack([one] * len(rows))) if single is None else single(one)[None]) for one in seen])
    return np.array(episodes)
