"""Reads policies from files, and exports them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from es_queue.config.parsing import config_from_values
from es_queue.environments.factory import make_reference_batch
from es_queue.errors import RunFolderError, UsageError
from es_queue.export import export_bytes
from es_queue.files import read_file, read_npz
from es_queue.policies.checkpoint_policy import POLICY_ARRAYS, REFERENCE, SavedPolicy
from es_queue.private_files import replacing
from es_queue.seed_list import MAX_BYTES, format_seed_list, read_seed_list
from es_queue.text import escape
from es_queue.user_code import modules_named_by, require_trust
from workers.play.elite import Elite


def read_contents(path: Path, elite: Elite | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the meta of a checkpoint or seed list; those of an ``elite`` of its archive,
    which no evaluation played. Raises RunFolderError.
    """
    if path.suffix in (".onnx", ".pt2"):
        raise RunFolderError(
            f"{path} is an export for other programs: play the run, its checkpoint, or an export "
            "to FILE.npz"
        )
    try:
        arrays, meta = (
            with_reference(*read_seed_list(path))
            if path.suffix == ".json"
            else read_npz(path, POLICY_ARRAYS)
        )
        config = meta.get("config")
        settings = config if isinstance(config, dict) else {}
        unused = {"strategy": "", "behaviour": ""}  # playing imports neither
        require_trust("the file", modules_named_by({**settings, **unused}))
    except (RunFolderError, UsageError) as error:
        raise RunFolderError(f"{path}: {error}") from None
    if elite is None:
        return arrays, meta
    return {**arrays, "parameters": elite.parameters}, {**meta, "evaluation": None}


def with_reference(
    arrays: dict[str, Any], meta: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A list of seeds lacks the policy's reference batch, which follows from the run's settings.
    Raises UsageError.
    """
    reference = make_reference_batch(config_from_values(meta["config"], "the seed list"))
    return arrays if reference is None else {**arrays, REFERENCE: reference}, meta


def load_policy_from(path: Path, arrays: dict[str, Any], meta: dict[str, Any]) -> SavedPolicy:
    """The policy of a file from ``read_contents``. Raises RunFolderError."""
    try:
        return SavedPolicy.from_arrays(arrays, meta, trust=True)
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None


def export_policy(path: Path, target: Path, elite: Elite | None = None) -> None:
    """Write the policy of the checkpoint, or of its elite, in the form that the target's name ends
    with. Raises RunFolderError or UsageError in one sentence.
    """
    arrays, meta = read_contents(path, elite)
    if target.suffix == ".json":
        data = export_seed_list(path, arrays, meta)
    else:
        data = export_bytes(target.suffix, load_policy_from(path, arrays, meta), arrays, meta)
    try:
        with replacing(target) as file:  # no link in its place is followed
            file.write(data)
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written: {error.strerror}") from None
    policy = "the policy" if elite is None else f"the elite of cell {elite.cell}"
    size = f"{len(data)} bytes{format_play_hint(target.suffix, meta)}"
    print(f"{escape(str(target))}: {policy} of {escape(str(path))} in {size}")


def format_play_hint(ending: str, meta: dict[str, Any]) -> str:
    """Whether es-play plays an exported file, and whether it must be trusted for its own code."""
    if ending not in (".json", ".npz"):
        return ""
    if modules := modules_named_by(meta["config"]):
        return f"; es-play --trust plays it, in a folder that holds {', '.join(modules)}"
    return "; es-play plays it"


def export_seed_list(path: Path, arrays: dict[str, Any], meta: dict[str, Any]) -> bytes:
    """The checkpoint's policy as a seed list; a seed list stays unchanged. Raises RunFolderError in
    one sentence.
    """
    if path.suffix == ".json":
        return read_file(path, MAX_BYTES)
    try:
        return f"{format_seed_list(path, arrays, meta)}\n".encode()
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None
