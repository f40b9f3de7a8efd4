"""Snapshots of a model's weights: ``<generation>.safetensors`` in a folder or at an fsspec URL.

Each has the tensors of ``Model.tensors``, and as metadata the row of its generation
(``es_queue.strategies.model_es``), the weights' digest and the settings that name the model.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure, MissingPackage, RunFolderError
from es_queue.files import read_npz
from es_queue.models.weights import Model, load_library
from es_queue.numerics.arrays import Floats
from es_queue.run_folder import checkpoint_path, snapshots_place
from es_queue.strategies.model_es import Update
from es_queue.text import escape
from es_queue.user_code import modules_named_by, require_trust

FORMAT = "es-queue-model 1"
NAME = re.compile(r"(0|[1-9][0-9]{0,7})\.safetensors")
#: A run continues from one of its newest two snapshots; the third is for a worker that reads it.
NEWEST = 3


class Snapshots:
    """Those of one run. place: a folder, or a URL with ``://`` that fsspec reads"""

    def __init__(self, place: str) -> None:
        self.place = place
        self._remote: Any = None
        self._path = place
        if "://" in place:
            self._remote, self._path = load_library("fsspec.core").url_to_fs(place)

    def write(self, model: Model, row: Floats, digest: str) -> None:
        """Write the weights of the row's generation, and remove older snapshots except the newest
        and the best. Raises OSError.
        """
        update = Update.of(row)
        about = {
            "format": FORMAT,
            "model": model.name,
            "row": row.astype("<f4").tobytes().hex(),
            "digest": digest,
        }
        name = f"{update.generation}.safetensors"
        folder = None if self._remote else self._local_folder()
        handle, path = tempfile.mkstemp(".new", name, folder)
        os.close(handle)
        try:
            load_library("safetensors.torch").save_file(model.tensors(), path, about)
            if folder is not None:
                Path(path).replace(folder / name)
            else:
                self._remote.makedirs(self._path, exist_ok=True)
                self._remote.put_file(path, f"{self._path}/{name}")
        finally:
            Path(path).unlink(missing_ok=True)
        with suppress(OSError):  # the next writer tries again
            self._remove_surplus({update.generation, update.best})

    def _local_folder(self) -> Path:
        """Made in an existing folder only: that of a run on another host does not exist here."""
        folder = Path(self._path)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            raise self._unreachable() from None
        return folder

    def _unreachable(self) -> OSError:
        return OSError(
            f"this host cannot reach {self.place[:200]}, where the run keeps the snapshots of its "
            "model: begin the run with --snapshots and a folder or URL that all hosts reach"
        )

    def generations(self) -> list[int]:
        """Ascending."""
        try:
            found = (
                self._remote.ls(self._path, detail=False)
                if self._remote
                else Path(self._path).iterdir()
            )
            names = [Path(each).name for each in found]
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := NAME.fullmatch(name)))

    def _remove_surplus(self, kept: set[int]) -> None:
        for number in self.generations()[:-NEWEST]:
            path = f"{self._path}/{number}.safetensors"
            if number not in kept and self._remote:
                self._remote.rm_file(path)
            elif number not in kept:
                Path(path).unlink(missing_ok=True)
        if not self._remote:  # of writers that were killed
            for unfinished in Path(self._path).glob("*.safetensors*.new"):
                if int(unfinished.name.partition(".")[0]) < max(kept):
                    unfinished.unlink(missing_ok=True)

    @contextmanager
    def opened(self, generation: int) -> Iterator[Any]:
        """A safetensors reader of one snapshot. Raises OSError."""
        path = f"{self._path}/{generation}.safetensors"
        with tempfile.TemporaryDirectory() as folder:
            if self._remote:
                local = f"{folder}/snapshot"
                self._remote.get_file(path, local)
                path = local
            elif not Path(path).is_file():
                raise self._unreachable()
            with load_library("safetensors").safe_open(path, "pt") as reader:
                yield reader

    def read(self, generation: int, model: Model) -> Floats:
        """Give the model the weights of a generation; returns the row of the log that made them.
        Raises EnvironmentFailure in one sentence.
        """
        try:
            with self.opened(generation) as reader:
                about: Mapping[str, str] = reader.metadata() or {}
                row = np.frombuffer(bytes.fromhex(about["row"]), "<f4").astype(np.float32)
                if about["format"] != FORMAT or int(row[0]) != generation:
                    raise ValueError("it is of another version or generation")
                model.take(reader.get_tensor)
                if model.digest() != about["digest"]:
                    raise ValueError("its weights do not have its digest")
                return row
        except MissingPackage:
            raise
        except Exception as error:  # of safetensors, too
            raise EnvironmentFailure(
                f"the snapshot of generation {generation} cannot be read: {error}"
            ) from error


# --- for people


def saved_model(
    path: str | Path, device: str = "cpu", *, which: str = "best", trust: bool = False
) -> Model:
    """The model of a run's checkpoint. Raises RunFolderError or EnvironmentFailure."""
    file = checkpoint_path(path, which)
    arrays, meta = read_npz(file, ("parameters",))
    config = RunConfig.of(meta.get("config"), "the checkpoint")
    if not config.model:
        raise RunFolderError(f"{file} is not of a model but of a policy: use load_policy")
    require_trust("the checkpoint", modules_named_by({"model": config.model}), trust)
    run = next(
        (one for one in file.absolute().parents if (one / "config.json").is_file()), file.parent
    )
    snapshots = Snapshots(snapshots_place(config.snapshots, str(meta.get("run")), run))
    update = Update.of(arrays["parameters"])
    is_stored = update.generation in snapshots.generations()
    model = Model(config, device)
    snapshots.read(update.generation if is_stored else update.snapshot, model)
    return model


def load_model(
    path: str | Path, device: str = "cpu", *, which: str = "best", trust: bool = False
) -> Any:
    """The trained torch module of a run with ``--model``, in evaluation mode.

    Args:
        path: A run's name or folder, or a checkpoint in it.
        device: Where its weights should be, such as "cpu" or "cuda".
        which: "best" for the best evaluated weights, "last" for the newest that were evaluated.
        trust: Import the module that the checkpoint names; its code runs on this machine.

    Raises:
        RunFolderError: If the run has no such checkpoint.
        EnvironmentFailure: If the model or its snapshot cannot be loaded.
    """
    return saved_model(path, device, which=which, trust=trust).module


def export_model(path: Path, target: Path) -> None:
    """Write all parameters and buffers of a checkpoint's model as safetensors, in their own types.
    Raises RunFolderError or EnvironmentFailure.
    """
    module = saved_model(path).module
    try:
        load_library("safetensors.torch").save_model(module, str(target))
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written: {error}") from None
    count = sum(one.numel() for one in module.parameters())
    print(f"{escape(str(target))}: the model of {escape(str(path))}, {count:,} parameters")
