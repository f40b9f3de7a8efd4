"""Bundled policies: ``es-play --pretrained ENV``, or ``load_policy(path_of(ENV))``.

Each file is an export of a run, with the command that made it and the digest of its parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from es_queue.errors import UsageError

FOLDER = Path(__file__).parent
#: By ending: the policy itself, and a list of seeds.
ENDINGS = (".npz", ".json")
MAX_BYTES = 25_000


def environment_names(folder: Path = FOLDER) -> list[str]:
    return sorted(path.stem for path in folder.iterdir() if path.suffix in ENDINGS)


def path_of(environment: str, folder: Path = FOLDER) -> Path:
    """The file of an environment's trained policy. Raises UsageError if there is none."""
    if environment in environment_names(folder):
        return next(
            path
            for path in (folder / f"{environment}{ending}" for ending in ENDINGS)
            if path.is_file()
        )
    raise UsageError(
        f"there is no bundled policy for {environment!r}; there are policies for "
        f"{', '.join(environment_names(folder)) or 'none'}"
    )


def training_command(meta: dict[str, Any]) -> str:
    """The command that made a policy; empty if its file has none."""
    return str(meta.get("command", ""))[:1000]
