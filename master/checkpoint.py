"""Checkpoints: an .npz without pickle, its scalars as JSON inside, written to a temporary file and renamed.

The same bytes go to disk and into Redis. ``numpy.load`` alone reads them: ``parameters``, ``obs_mean``, ``obs_std``
and ``meta`` are the policy; the other arrays are what resume needs.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config import RunConfig
from es_queue.environments.reference import reference_of
from es_queue.errors import RunFolderError, UsageError
from es_queue.observations import to_json
from es_queue.policies.archive import REFERENCE, UNREADABLE, decoded_meta, refuse_compressed
from es_queue.private_folder import regular, replacing
from es_queue.settings import config_from_json
from es_queue.spaces import EnvironmentSpec
from master.state import Best, RunState

MAX_CHECKPOINT = 2**31
KEPT = 2
BEST = "best.npz"
DAMAGED = (*UNREADABLE, KeyError)


def encode(config: RunConfig, spec: EnvironmentSpec, run: str, state: RunState, centre: NDArray[np.float32]) -> bytes:
    """The checkpoint of a state whose unperturbed policy is ``centre``."""
    statistics = state.statistics(config.obs_clip)
    arrays = {**policy_arrays(centre, statistics.mean, statistics.std), **reference_arrays(config), **state.to_arrays()}
    return packed(arrays, {**policy_meta(config, spec, run), "generation": state.generation, "evaluation": None, "state": state.to_dict()})


def encode_best(config: RunConfig, spec: EnvironmentSpec, run: str, best: Best, evaluation: dict[str, Any] | None) -> bytes:
    """The chosen policy alone; ``evaluation`` is its final evaluation once that has been played."""
    meta = {**policy_meta(config, spec, run), "generation": best.generation, "evaluation": evaluation}
    genome = {f"genome_{name}": array for name, array in best.genome.items()}
    return packed({**policy_arrays(best.parameters, best.mean, best.std), **reference_arrays(config), **genome}, meta)


def policy_arrays(parameters: NDArray[np.float32], mean: NDArray[np.float32], std: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    return {"parameters": parameters, "obs_mean": mean, "obs_std": std}


def reference_arrays(config: RunConfig) -> dict[str, NDArray[Any]]:
    """By what the policy normalises, where it does."""
    reference = reference_of(config)
    return {} if reference is None else {REFERENCE: reference}


def policy_meta(config: RunConfig, spec: EnvironmentSpec, run: str) -> dict[str, Any]:
    """What ``load_policy`` needs beside the arrays."""
    discrete = None if spec.discrete_start is None else spec.observation_size
    return {
        "format": 1, "run": run, "config": config.to_dict(), "observation_size": spec.observation_size,
        "action": spec.action.to_dict(), "discrete_observation": discrete, "observation_start": spec.discrete_start,
        "observation_shape": list(spec.observation_shape), "observation": None if spec.observation is None else to_json(spec.observation),
    }  # fmt: skip


def packed(arrays: dict[str, NDArray[Any]], meta: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)
    return buffer.getvalue()


def decode(data: bytes) -> tuple[RunConfig, RunState, str]:
    """(config, state, run) of a checkpoint's bytes. Raises RunFolderError in one sentence."""
    if len(data) > MAX_CHECKPOINT:
        raise RunFolderError(f"a checkpoint of {len(data)} bytes is larger than {MAX_CHECKPOINT}")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            refuse_compressed(archive)
            arrays = {name: archive[name] for name in archive.files}
        meta = decoded_meta(arrays.pop("meta"))
        return config_from_json(json.dumps(meta["config"])), RunState.read(arrays, meta["state"]), str(meta["run"])
    except (*DAMAGED, TypeError, AttributeError, UsageError) as error:
        raise RunFolderError(f"this is no checkpoint that can be resumed: {error}") from None


class Checkpoints:
    """The checkpoints folder of a run: the newest few by generation, and the best policy.

    passed_over: a sentence for each file that ``newest`` could not use
    """

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / "checkpoints"
        self.last: Path | None = None
        self.passed_over: list[str] = []

    @property
    def best(self) -> Path:
        return self.folder / BEST

    def save(self, generation: int, data: bytes) -> Path:
        """Write a generation's checkpoint; older ones than the newest few go."""
        path = self.folder / f"generation-{generation:08d}.npz"
        write_atomically(path, data)
        self.last = path
        for old in sorted(self.folder.glob("generation-*.npz"))[:-KEPT]:
            old.unlink(missing_ok=True)
        return path

    def save_best(self, data: bytes) -> Path:
        write_atomically(self.best, data)
        return self.best

    def holds(self, best: Best) -> bool:
        """Whether the best policy's file is of these parameters; False where there is none that can be read."""
        try:
            with open(self.best, "rb", opener=regular) as file, np.load(file, allow_pickle=False) as archive:
                refuse_compressed(archive)
                generation = decoded_meta(archive["meta"])["generation"]
                return bool(generation == best.generation and np.array_equal(archive["parameters"], best.parameters))
        except (RunFolderError, UsageError, *DAMAGED):
            return False

    def newest(self, run: str | None = None) -> bytes | None:
        """The newest readable checkpoint's bytes, None where there is none.

        run: whose it must be; one of another run is the choice only where there is no other, for the caller to refuse
        """
        self.passed_over = []
        foreign: bytes | None = None
        for path in sorted(self.folder.glob("generation-*.npz"), reverse=True):
            try:
                data = _read(path)
                owner = decode(data)[2]
            except (OSError, RunFolderError) as error:
                self.passed_over.append(f"checkpoint {path} was passed over: {error}")
                continue
            if run is not None and owner != run:
                self.passed_over.append(f"checkpoint {path} was passed over: it is of run {owner[:40]!r}")
                foreign = foreign or data
                continue
            self.last = path
            return data
        return foreign


def _read(path: Path) -> bytes:
    """A checkpoint's bytes. Raises OSError, RunFolderError for more than MAX_CHECKPOINT, of which nothing is read."""
    with open(path, "rb", opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_CHECKPOINT:
            raise RunFolderError(f"a checkpoint of {size} bytes is larger than {MAX_CHECKPOINT}")
        return file.read(size)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Temporary file, fsync, rename, fsync of the folder; not durable, without the fsyncs. Raises RunFolderError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=durable) as file:
            file.write(data)
    except OSError as error:
        raise RunFolderError(f"{path.parent} cannot be written: {error.strerror}; free space there or give another --run-dir") from None
