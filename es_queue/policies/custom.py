"""Users' own policies: imported by name, constructed, and tested before training."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np

from es_queue.errors import EsQueueError, UsageError
from es_queue.numerics.arrays import Floats
from es_queue.policies.base import MAX_PARAMETERS, Policy
from es_queue.policies.torch_module import TorchPolicy
from es_queue.user_code import describe_error, load_attribute

MAX_MEMORY = 2**20
TRIED_INDIVIDUALS, TRIED_STEPS = 3, 3
TORCH_HINT = ": pip install 'es-queue[torch]'"


def load_custom_policy(
    path: str, observation_size: int, outputs: int, shape: tuple[int, ...]
) -> Policy:
    """The policy that ``module:Class`` names: a class that extends Policy (simplest: NumpyPolicy),
    or a torch.nn.Module.

    It is created with (observation_size, outputs), and with observation_shape if it takes that
    argument. Raises UsageError if it cannot be imported, created or trained.
    """
    kind = load_policy_class(path)
    try:
        policy = build_policy(path, kind, observation_size, outputs, shape)
        validate_sizes(path, policy, observation_size, outputs)
        validate_actions(path, policy)
    except EsQueueError:
        raise
    except Exception as error:  # whatever a user's class raises
        raise UsageError(f"the policy {path} fails in a test: {describe_error(error)}") from error
    return policy


def load_policy_class(path: str) -> type[Any]:
    """Raises UsageError if it cannot be imported or is not a policy."""
    try:
        candidate = load_attribute(f"policy {path}", path, UsageError)
    except UsageError as error:
        lacks_torch = (
            isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "torch"
        )
        raise UsageError(f"{error}{TORCH_HINT if lacks_torch else ''}") from error.__cause__
    if (
        not isinstance(candidate, type)
        or inspect.isabstract(candidate)
        or not (issubclass(candidate, Policy) or is_torch_module(candidate))
    ):
        raise UsageError(
            f"the policy {path} is neither a class that extends "
            "es_queue.policies.NumpyPolicy and defines act, nor a torch.nn.Module"
        )
    return candidate


def is_torch_module(kind: type[Any]) -> bool:
    """Whether it is a torch.nn.Module, without importing torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.nn.Module)


def build_policy(
    path: str, kind: type[Any], observation_size: int, outputs: int, shape: tuple[int, ...]
) -> Policy:
    shaped = "observation_shape" in inspect.signature(kind).parameters
    named: dict[str, Any] = {"observation_shape": shape} if shaped else {}

    def build() -> Any:
        return kind(observation_size, outputs, **named)

    if is_torch_module(kind):
        return TorchPolicy(path, build, observation_size, outputs, shape if shaped else ())
    policy: Policy = build()
    return policy


def validate_sizes(path: str, policy: Policy, observation_size: int, outputs: int) -> None:
    """Raises UsageError for invalid sizes."""
    for name, least, most in (
        ("observation_size", observation_size, observation_size),
        ("outputs", outputs, outputs),
        ("size", 1, MAX_PARAMETERS),
        ("memory_size", 0, MAX_MEMORY),
    ):
        value = getattr(policy, name, None)
        if type(value) is not int or not least <= value <= most:
            expected = str(least) if least == most else f"a whole number from {least} to {most}"
            raise UsageError(
                f"the policy {path} has the {name} {value!r}, but must have {expected}"
            )


def validate_actions(path: str, policy: Policy) -> None:
    """Raises UsageError if it has no first parameters, or if individuals act differently in a
    batch.
    """
    first = [np.asarray(policy.initial(seed, "auto")) for seed in (1, 1)]
    if (
        first[0].dtype != np.float32
        or first[0].shape != (policy.size,)
        or not np.isfinite(first[0]).all()
    ):
        raise UsageError(
            f"the policy {path} has initial parameters {first[0].dtype}{list(first[0].shape)}, "
            f"but must have {policy.size} finite float32"
        )
    if first[0].tobytes() != first[1].tobytes():
        raise UsageError(
            f"the policy {path} has different initial parameters each time: initial must draw "
            f"only from its seed"
        )
    bump = np.cos(np.arange(policy.size, dtype=np.float32))
    rows: Floats = np.stack(
        [first[0] + np.float32(0.1 * row) * bump for row in range(TRIED_INDIVIDUALS)]
    ).astype(np.float32)
    with np.errstate(all="ignore"):
        together = probe_outputs(policy, rows)
        alone = [probe_outputs(policy, rows[row : row + 1]) for row in range(TRIED_INDIVIDUALS)]
    if together.dtype != np.float32 or together.shape != (
        2,
        TRIED_STEPS,
        TRIED_INDIVIDUALS,
        policy.outputs,
    ):
        raise UsageError(
            f"the policy {path} returns {together.dtype}{list(together.shape[2:])} for "
            f"{TRIED_INDIVIDUALS} individuals, but must return float32[{TRIED_INDIVIDUALS}, "
            f"{policy.outputs}]"
        )
    if together.tobytes() != np.concatenate(alone, axis=2).tobytes():
        raise UsageError(
            f"the policy {path} gives different bits for many individuals at once than for "
            f"single ones: results would depend on the number of workers"
        )
    if together[0].tobytes() != together[1].tobytes():
        raise UsageError(
            f"the policy {path} acts differently in a second, equal episode: it must keep its "
            f"state only in memory"
        )


def probe_outputs(policy: Policy, rows: Floats) -> Floats:
    """float32[2, TRIED_STEPS, B, outputs] of two episodes with the same few observations."""
    bound = policy.bind(rows)
    observations = np.sin(
        np.arange(TRIED_STEPS * policy.observation_size, dtype=np.float32)
    ).reshape(TRIED_STEPS, -1)
    episodes = []
    for _ in range(2):
        bound.memory.fill(0)
        single = bound.begin() if len(rows) == 1 else None
        episodes.append(
            [
                np.copy(
                    bound(np.stack([observation] * len(rows)))
                    if single is None
                    else single(observation)[None]
                )
                for observation in observations
            ]
        )
    return np.array(episodes)
