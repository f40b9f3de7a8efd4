"""A trained policy from a checkpoint; needs only numpy."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.environments.interface import (
    ActionSpec,
    ObservationPart,
    make_encoder,
    parts_from_json,
)
from es_queue.errors import RunFolderError, UsageError
from es_queue.files import read_npz
from es_queue.numerics.arrays import Floats, typed_array
from es_queue.numerics.statistics import FrozenStatistics
from es_queue.policies import make_policy
from es_queue.policies.actions import ActionMap
from es_queue.policies.base import Policy
from es_queue.run_folder import checkpoint_path
from es_queue.user_code import modules_named_by, require_trust

REFERENCE = "reference"
#: The arrays of a policy; a checkpoint of a generation also has those that a resume needs.
POLICY_ARRAYS = ("parameters", "obs_mean", "obs_std", REFERENCE)
#: What values of a meta raise that are not of their type, or do not fit together.
MISFITS = (TypeError, ValueError, IndexError, OverflowError, AttributeError, UsageError)


class SavedPolicy:
    """Observation -> action as in evaluation: normalised, without action noise.

    config:     of the run
    policy:     the policy of the flat vector ``parameters`` float32[size]
    action:     the action space
    statistics: of the observations, float32[d] each
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], trust: bool = False
    ) -> None:
        """The policy of ``parameters`` [size], ``obs_mean`` [d], ``obs_std`` [d] and ``meta``.
        Raises RunFolderError with one sentence if anything does not fit.

        meta: "config" (RunConfig.to_dict), "observation_size", "action" (ActionSpec.to_dict),
        "observation_shape", and "observation" (ObservationPart by fields), empty for an array. With
        virtual batch normalisation, the arrays include "reference" [N, d].
        trust: whether the module of a user's own policy may be imported
        """
        try:
            self.config = config = RunConfig.of(meta["config"], "the checkpoint")
            if config.model:
                raise RunFolderError(
                    "it is of a model: load_model loads its weights, and es-play writes them with "
                    "--export FILE.safetensors"
                )
            self.action = ActionSpec.from_dict(meta["action"])
            modules = modules_named_by({"policy": config.policy})
            unknown = [module for module in modules if module not in sys.modules]
            require_trust("the checkpoint", unknown, trust)
            reference = None
            if config.has_virtual_norm:
                shape = (None, int(meta["observation_size"]))
                reference = typed_array(arrays, REFERENCE, np.float32, shape)
                if not len(reference):
                    raise ValueError("its reference batch is empty")
            self.policy = policy = policy_from_meta(config, meta, reference)
            # before anything is as large as the meta says
            self.parameters = typed_array(arrays, "parameters", np.float32, (policy.size,))
            self._encode = make_encoder(observation_parts(meta, policy.observation_size))
            self._actions = ActionMap(self.action, config.action_bound)
        except KeyError as error:
            raise RunFolderError(f"its meta has no {error}") from None
        except MISFITS as error:
            raise RunFolderError(f"its meta does not describe a policy: {error}") from None
        mean, std = (
            typed_array(arrays, name, np.float32, (policy.observation_size,))
            for name in ("obs_mean", "obs_std")
        )
        if not (std > 0).all():
            raise RunFolderError("its array 'obs_std' holds a deviation that is not above zero")
        self.statistics = FrozenStatistics(mean, std, config.obs_clip)
        self._bound = policy.bind(self.parameters[None])

    @property
    def vector(self) -> Floats:
        """float32[size]: what an objective got, in its own units. Raises UsageError for a policy of
        an environment.
        """
        if self.action.kind != "vector":
            raise UsageError(
                f"{self.config.problem} is an environment, so its policy has no vector: use "
                "parameters"
            )
        vector: Floats = self._actions.act_one(self.parameters.copy())
        return vector

    def begin(self) -> None:
        """Begin an episode: clear the policy's memory."""
        self._bound.begin()

    def act(self, observation: Any) -> Any:
        """The action for one observation of the environment, in the form that its ``step`` takes.

        observation: an array of any shape (flattened to float32 in C order), the integer of a
        discrete space, or the mapping, tuple or array of integers of a Dict, Tuple or MultiDiscrete
        space

        Raises UsageError for an observation of another size, NonFiniteOutput if an output is not
        finite.
        """
        try:
            flat = self._encode(observation)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the policy does not take this observation: {error}") from None
        with np.errstate(all="ignore"):
            if self.config.obs_norm:
                flat = self.statistics.normalize(flat)
            return self._actions.act_one(self._bound.act_one(flat))


def load_policy(path: str | Path, trust: bool = False) -> SavedPolicy:
    """The policy of an ``.npz`` checkpoint, or the best one of a run, read without pickle.

    Args:
        path: A file, or the name or folder of a run.
        trust: Import the module of a custom policy that the file names. Modules that are already
            imported need no trust.

    Raises RunFolderError with one sentence for a file that is missing, damaged or does not fit.
    """
    return read_policy(checkpoint_path(path), trust)


def read_policy(path: Path, trust: bool = False) -> SavedPolicy:
    """The policy of a file, which is not a link. Raises RunFolderError."""
    if path.suffix == ".json":
        raise RunFolderError(
            f"{path} is a seed list: es-play {path} --export FILE.npz converts it to a policy "
            "that can be loaded"
        )
    try:
        return SavedPolicy(*read_npz(path, POLICY_ARRAYS), trust)
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None


def policy_from_meta(
    config: RunConfig, meta: Mapping[str, Any], reference: Floats | None = None
) -> Policy:
    """The policy for the spaces of a checkpoint's meta. Raises KeyError, TypeError, ValueError or
    UsageError if they do not fit.
    """
    size = int(meta["observation_size"])
    shape = tuple(int(length) for length in meta["observation_shape"])
    if shape and (min(shape) < 1 or math.prod(shape) != size):
        raise ValueError(f"an observation of shape {list(shape)} does not have {size} numbers")
    return make_policy(config, size, ActionSpec.from_dict(meta["action"]), shape, reference)


def observation_parts(meta: Mapping[str, Any], size: int) -> tuple[ObservationPart, ...]:
    """Raises ValueError unless they have ``size`` numbers."""
    if not meta["observation"]:
        return (ObservationPart((), size),)
    parts = parts_from_json(meta["observation"])
    if (found := sum(part.size for part in parts)) != size:
        raise ValueError(f"observations of {found} numbers do not make {size} numbers")
    return parts
