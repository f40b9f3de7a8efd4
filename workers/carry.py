"""Policies out of files and into other files: what es-play reads, and what it exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_queue.errors import RunFolderError, UsageError
from es_queue.private_folder import replacing
from workers.told import shown

if TYPE_CHECKING:
    from es_queue.policies.saved import SavedPolicy


def contents(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the meta of a checkpoint or seed list. Raises RunFolderError."""
    from es_queue.policies.archive import read_checkpoint
    from es_queue.seed_list import read_seed_list

    try:
        return with_reference(*read_seed_list(path)) if path.suffix == ".json" else read_checkpoint(path)
    except (RunFolderError, UsageError) as error:
        raise RunFolderError(f"{path}: {error}") from None


def with_reference(arrays: dict[str, Any], meta: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A list of seeds does not hold what the policy normalises by: it follows from the run's settings. Raises UsageError."""
    from es_queue.environments.reference import reference_of
    from es_queue.policies.archive import REFERENCE
    from es_queue.settings import config_from_json

    reference = reference_of(config_from_json(json.dumps(meta["config"])))
    return arrays if reference is None else {**arrays, REFERENCE: reference}, meta


def policy_of(path: Path, arrays: dict[str, Any], meta: dict[str, Any]) -> SavedPolicy:
    """The module of a user's own policy is imported, as far as ``guarded_imports`` allows. Raises RunFolderError."""
    from es_queue.policies.saved import SavedPolicy

    try:
        return SavedPolicy.from_arrays(arrays, meta, imports=True)
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None


def export(path: Path, target: Path) -> None:
    """Write the checkpoint's policy in the form that the target's name ends with. Raises RunFolderError or UsageError in one sentence."""
    data = seed_list(path) if target.suffix == ".json" else other_form(path, target.suffix)
    try:
        with replacing(target) as file:  # no link in its place is followed
            file.write(data)
    except OSError as error:
        raise RunFolderError(f"{target} cannot be written: {error.strerror}") from None
    played = "; es-play plays it" if target.suffix in (".json", ".npz") else ""
    print(f"{shown(str(target))}: the policy of {shown(str(path))} in {len(data)} bytes{played}")


def seed_list(path: Path) -> bytes:
    """The checkpoint's policy as a seed list; one that is a seed list already stays as it is. Raises RunFolderError in one sentence."""
    from es_queue.policies.archive import read_checkpoint
    from es_queue.seed_list import seed_list_of

    if path.suffix == ".json":
        contents(path)  # refuses what is none
        return path.read_bytes()
    try:
        return f"{seed_list_of(path, *read_checkpoint(path))}\n".encode()
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error}") from None


def other_form(path: Path, ending: str) -> bytes:
    """The policy of a checkpoint or seed list for other programs. Raises RunFolderError or UsageError in one sentence."""
    from es_queue.export import exported

    arrays, meta = contents(path)
    return exported(ending, policy_of(path, arrays, meta), arrays, meta)
