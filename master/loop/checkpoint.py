"""Checkpoints: an .npz without pickle, scalars as JSON inside, written to a temporary file and
renamed.

The same bytes go to disk and into Redis, and ``numpy.load`` reads them. ``parameters``,
``obs_mean``, ``obs_std`` and ``meta`` are the policy; only a resume needs the other arrays.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import RunConfig
from es_queue.environments.factory import make_reference_batch
from es_queue.environments.interface import MAX_NUMBERS, ActionSpec, EnvironmentSpec
from es_queue.errors import EsQueueError, RunFolderError
from es_queue.files import FORMAT, MAX_NPZ, npz_bytes, read_file, read_npz
from es_queue.numerics.arrays import Floats
from es_queue.policies.saved_policy import REFERENCE
from es_queue.private_files import replacing
from es_queue.run_folder import BEST, CHECKPOINT_NAME
from es_queue.slots import MOST_STEPS
from master.loop.state import Best, RunState

MOST_KEPT = 2
MOST_SNAPSHOTS = 100


def encode(
    config: RunConfig, spec: EnvironmentSpec, run: str, state: RunState, centre: Floats
) -> bytes:
    """The checkpoint of a state whose unperturbed policy is ``centre``."""
    statistics = state.statistics(config.obs_clip)
    arrays, values = state.save()
    meta = {"generation": state.generation, "evaluation": None, "state": values}
    return npz_bytes(
        policy_arrays(config, centre, statistics.mean, statistics.std) | arrays,
        policy_meta(config, spec, run) | meta,
    )


def encode_best(
    config: RunConfig,
    spec: EnvironmentSpec,
    run: str,
    best: Best,
    evaluation: dict[str, Any] | None,
) -> bytes:
    """Only the chosen policy; ``evaluation``: its final evaluation, if played."""
    meta = {"generation": best.generation, "evaluation": evaluation}
    genome = {f"genome_{name}": array for name, array in best.genome.items()}
    return npz_bytes(
        {**policy_arrays(config, best.parameters, best.mean, best.std), **genome},
        {**policy_meta(config, spec, run), **meta},
    )


def policy_arrays(
    config: RunConfig, parameters: Floats, mean: Floats, std: Floats
) -> dict[str, NDArray[Any]]:
    reference = make_reference_batch(config)
    arrays = {"parameters": parameters, "obs_mean": mean, "obs_std": std}
    return arrays if reference is None else {**arrays, REFERENCE: reference}


def policy_meta(config: RunConfig, spec: EnvironmentSpec, run: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "run": run,
        "config": config.to_dict(),
        "observation_size": spec.observation_size,
        "action": spec.action.to_dict(),
        "observation_shape": list(spec.observation_shape),
        "observation": [asdict(part) for part in spec.observation],
        "step_limit": spec.step_limit,
        "behaviour_size": spec.behaviour_size,
        "info": list(spec.info),
    }


def decode(data: bytes) -> tuple[RunConfig, RunState, str]:
    """(config, state, run) of a checkpoint's bytes. Raises RunFolderError in one sentence."""
    try:
        arrays, meta = read_npz(data)
        return (
            RunConfig.of(meta["config"], "the checkpoint"),
            RunState.restore(arrays, meta["state"]),
            str(meta["run"]),
        )
    except (KeyError, TypeError, AttributeError, EsQueueError) as error:
        raise RunFolderError(f"this checkpoint cannot be resumed: {error}") from None


def decode_spec(data: bytes) -> EnvironmentSpec:
    """What learning needs to know of a checkpoint's environment. Raises RunFolderError."""
    meta = read_npz(data, ())[1]
    names = ("observation_size", "behaviour_size", "step_limit")
    observation, behaviour, limit = (meta.get(name) or 0 for name in names)
    sizes = ((observation, MAX_NUMBERS), (behaviour, MAX_NUMBERS), (limit, MOST_STEPS))
    if not all(type(size) is int and 0 <= size <= most for size, most in sizes):
        raise RunFolderError("its meta does not describe an environment")
    return EnvironmentSpec(
        id="",
        observation_size=observation,
        action=ActionSpec("box", ()),
        step_limit=limit or None,
        reward_threshold=None,
        highest_reward=None,
        backend="",
        behaviour_size=behaviour,
        info=tuple(meta.get("info") or ()),
    )


class Checkpoints:
    """The checkpoints folder of a run: the newest few by generation, and the best policy.

    snapshot_every: every N-th checkpoint is kept too, at most MOST_SNAPSHOTS, with older ones
    thinned; 0 for none
    warnings: a sentence for each file that ``read_newest`` could not use
    """

    def __init__(self, run_dir: Path, snapshot_every: int = 0) -> None:
        self.folder = run_dir / "checkpoints"
        self._snapshot_every = snapshot_every
        self.last_path: Path | None = None
        self.warnings: list[str] = []

    @property
    def best_path(self) -> Path:
        return self.folder / BEST

    def save(self, generation: int, data: bytes) -> Path:
        """Write a generation's checkpoint, and remove all but the newest few."""
        path = self.folder / f"generation-{generation:08d}.npz"
        write_atomically(path, data)
        self.last_path = path
        self._remove_old()
        return path

    def is_snapshot(self, generation: int) -> bool:
        """Whether the checkpoint of this generation is kept when newer ones follow."""
        return self._snapshot_every > 0 and generation % self._snapshot_every == 0

    def _remove_old(self) -> None:
        older = sorted(self.folder.glob("generation-*.npz"))[:-MOST_KEPT]
        matches = {path: CHECKPOINT_NAME.fullmatch(path.name) for path in older}
        numbers = {path: int(match[1]) for path, match in matches.items() if match}
        snapshots = {path: n for path, n in numbers.items() if self.is_snapshot(n)}
        surplus = set(surplus_generations(sorted(snapshots.values()), MOST_SNAPSHOTS))
        for path in older:
            if path not in snapshots or snapshots[path] in surplus:
                path.unlink(missing_ok=True)

    def save_best(self, data: bytes) -> Path:
        write_atomically(self.best_path, data)
        return self.best_path

    def is_best_stored(self, best: Best) -> bool:
        """Whether the best policy's file is of these parameters; False if there is none that can
        be read.
        """
        try:
            arrays, meta = read_npz(self.best_path, ("parameters",))
        except RunFolderError:
            return False
        is_same = np.array_equal(arrays.get("parameters", np.empty(0)), best.parameters)
        return is_same and meta.get("generation") == best.generation

    def read_newest(self, run: str | None = None) -> bytes | None:
        """The newest readable checkpoint's bytes, or None.

        run: its run; a checkpoint of another run is returned only if there is no other, for the
        caller to refuse
        """
        self.warnings = []
        other_run_data: bytes | None = None
        for path in sorted(self.folder.glob("generation-*.npz"), reverse=True):
            try:
                data = read_file(path, MAX_NPZ)
                owner = decode(data)[2]
            except (OSError, RunFolderError) as error:
                self.warnings.append(f"checkpoint {path} was skipped: {error}")
                continue
            if run is not None and owner != run:
                self.warnings.append(
                    f"checkpoint {path} was skipped: it belongs to run {owner[:40]!r}"
                )
                other_run_data = other_run_data or data
                continue
            self.last_path = path
            return data
        return other_run_data


def surplus_generations(generations: list[int], most: int) -> list[int]:
    """Which of the ascending ``generations`` to remove, so that ``most`` remain: in the older half,
    those that a large enough power of two does not divide.
    """
    if len(generations) <= most:
        return []
    older = generations[: len(generations) - most // 2]
    step = 2
    while sum(generation % step == 0 for generation in older) > most - most // 2:
        step *= 2
    return [generation for generation in older if generation % step]


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Temporary file, fsync, rename, fsync of the folder; not durable, without the fsyncs. Raises
    RunFolderError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=durable) as file:
            file.write(data)
    except OSError as error:
        raise RunFolderError(
            f"{path.parent} cannot be written: {error.strerror}; free space there or give "
            "another --run-dir"
        ) from None
