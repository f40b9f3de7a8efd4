"""What a run begins with: its newest checkpoint, or (warm start) the policy and the statistics of
another run's.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig, resumable
from es_queue.config.settings import NONE
from es_queue.errors import NoRunError, RunFolderError, UsageError
from es_queue.files import read_npz
from es_queue.numerics.arrays import typed_array
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.numerics.statistics import Moments
from es_queue.policies.linear_mlp import widen
from es_queue.policies.saved_policy import SavedPolicy, read_policy
from es_queue.run_folder import NamedRun, checkpoint_path
from master.loop import checkpoint
from master.loop.state import ENDING, RunState
from master.run.setup import Setup

LOGGER = logging.getLogger("es_queue.run")
#: How many observations the statistics of best.npz, which have no count, stand for. With fewer,
#: the new run's observations move them in a few generations, and the policy no longer acts as it
#: was trained: a walker of 260 fell to 102, and stayed above 260 with this many.
ESTIMATED_COUNT = 1_000_000
#: The most observations that statistics stand for beside observations that nobody has seen yet:
#: few, so that what is new is soon known.
WIDENED_COUNT = 10_000
MOMENTS = ("moments_count", "moments_mean", "moments_m2")


def newest_checkpoint(
    run: NamedRun, disk: bytes | None, stored: bytes | None
) -> tuple[RunConfig, RunState]:
    """The newer of two checkpoints of a run; Redis has every generation, the disk one every few
    seconds.

    Raises RunFolderError if one is of another run, or if they are of two runs with that name.
    """
    checkpoints = []
    trouble = RunFolderError("there is no checkpoint to resume")
    for where, data in (("Redis", stored), (str(run.folder), disk)):
        if data is None:
            continue
        try:
            config, state, owner = checkpoint.decode(data)
        except RunFolderError as error:
            trouble = error
            LOGGER.warning(f"the checkpoint in {where} was skipped: {error}")
            continue
        if owner != run.run:
            raise RunFolderError(
                f"{where} holds run {owner[:40]!r}, not {run.run}: continue it with --resume "
                f"{owner[:40]}, or give the --run-dir of {run.run}"
            )
        checkpoints.append((config, state))
    if not checkpoints:
        raise trouble
    (first, _), (second, _) = checkpoints[0], checkpoints[-1]
    differing = [
        name
        for name in first.to_dict()
        if name not in resumable() and str(getattr(first, name)) != str(getattr(second, name, ""))
    ]
    if differing:
        raise RunFolderError(
            f"{run.folder} and Redis hold two different runs called {run.run} "
            f"({', '.join(differing[:5])} differ): "
            "give another --run-dir to continue the one in Redis, or the --redis-url of this "
            "folder's run"
        )
    return max(checkpoints, key=lambda pair: (pair[1].generation, pair[1].stage == ENDING))


# --- warm start


def make_warm_state(setup: Setup, path: Path) -> RunState:
    """The state of generation 0 that acts as the checkpoint's policy; ``path`` is its file or a
    run's folder.

    The optimiser starts fresh. Raises RunFolderError for an unreadable file, UsageError for a
    policy that does not fit.
    """
    try:
        file = checkpoint_path(path)
    except NoRunError:
        raise
    except RunFolderError:  # it has not evaluated a policy yet
        file = checkpoint_path(path, "last")
    saved, moments, origin = read_warm_start(file)
    for name in ("batch_norm", "obs_norm", "obs_clip", "action_bound"):
        before, now = (getattr(one, name, NONE) for one in (saved.config, setup.config))
        if before != now:
            why = f"it was trained with {name} {before}, but this run has {now}: use the same"
            raise _unfit_error(path, why)
    if (kind := saved.action.kind) != setup.spec.action.kind:
        raise _unfit_error(path, f"its actions are {kind}, not {setup.spec.action.kind}")
    try:
        parameters = widen(
            saved.policy,
            saved.parameters,
            setup.policy,
            setup.first_parameters(),
        )
    except UsageError as error:
        raise _unfit_error(path, str(error)) from None
    known = saved.policy.numbers if setup.policy.numbers is None else None
    moments = extend_moments(moments, setup.spec.observation_size, known)
    return setup.initial_state(parameters, moments, origin)


def read_warm_start(path: Path) -> tuple[SavedPolicy, Moments, str]:
    """A checkpoint's policy, its observation statistics, and its origin in words. Raises
    RunFolderError.
    """
    saved = read_policy(path)
    try:
        arrays, meta = read_npz(path, MOMENTS)
        if arrays:
            shape = saved.statistics.mean.shape
            count = int(typed_array(arrays, MOMENTS[0], np.int64, ()))
            mean, m2 = (typed_array(arrays, name, np.float64, shape) for name in MOMENTS[1:])
            if count < 0 or (m2 < 0).any():
                raise RunFolderError("its statistics of observations are impossible")
        else:  # best.npz holds only the policy
            count, std = ESTIMATED_COUNT, saved.statistics.std.astype(np.float64)
            mean, m2 = saved.statistics.mean.astype(np.float64), std * std * ESTIMATED_COUNT
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None
    run, generation = str(meta.get("run", "?"))[:40], meta.get("generation")
    digest = bytes_digest(saved.parameters.astype("<f4").tobytes())
    origin = f"generation {generation} of run {run}, digest {digest}"
    return saved, Moments(count, mean, m2), origin


def extend_moments(moments: Moments, size: int, known: NDArray[np.intp] | None = None) -> Moments:
    """The moments with mean 0 and deviation 1 for new observations; all of them then weigh less.

    known: numbers of the observation that the moments are of; None for as many as there are
    """
    known = np.arange(len(moments.mean)) if known is None else known
    if len(known) == size:
        return moments
    count = min(moments.count, WIDENED_COUNT)
    mean, m2 = np.zeros(size), np.full(size, float(count))
    mean[known] = moments.mean[known]
    m2[known] = moments.m2[known] * (count / moments.count if moments.count else 1.0)
    return Moments(count, mean, m2)


def _unfit_error(path: Path, why: str) -> UsageError:
    return UsageError(f"warm-start {path} does not fit this run: {why}")
