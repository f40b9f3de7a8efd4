"""Bundled policies: ``es-play --pretrained ENV``, or ``load_policy(path_of(ENV))``.

Each file is an export of a run, with the command that made it and the digest of its parameters.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from es_queue.errors import RunFolderError, UsageError
from es_queue.user_code import named_modules

FOLDER = Path(__file__).parent
#: By ending: the policy itself, and a list of seeds.
ENDINGS = (".npz", ".json")
MAX_BYTES = 25_000
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,80}", re.ASCII)


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


def add(run_folder: Path, command: str, folder: Path = FOLDER) -> Path:
    """Write the best policy of a run, as a list of seeds if it has one, else its numbers.

    Raises RunFolderError for a run that has not ended or whose policy is too large, UsageError for
    one that needs its own code.
    """
    # start-up: numpy; commands import this module for its paths
    from es_queue.config.run_config import RunConfig
    from es_queue.export import npz_bytes
    from es_queue.files import read_npz
    from es_queue.numerics.fingerprint import array_digest
    from es_queue.policies.saved_policy import POLICY_ARRAYS
    from es_queue.seed_list import format_seed_list
    from es_queue.strategies import strategy_class
    from es_queue.strategies.base import Strategy

    path = run_folder / "checkpoints" / "best.npz"
    arrays, meta = read_npz(path, POLICY_ARRAYS)
    config = RunConfig.of(meta["config"], str(path))
    if not meta.get("evaluation"):
        raise RunFolderError(f"{path} has no final evaluation: the run has not finished")
    if named_modules(config) or not NAME.fullmatch(config.env):
        raise UsageError(f"{config.problem} needs code that is not part of es-queue")
    about = {**meta, "command": command, "digest": array_digest(arrays["parameters"])}
    seeds = strategy_class(config).genome is not Strategy.genome
    data = (
        format_seed_list(path, arrays, about).encode() + b"\n"
        if seeds
        else npz_bytes(arrays, about)
    )
    if len(data) > MAX_BYTES:
        raise RunFolderError(
            f"the policy of {path} takes {len(data)} bytes, and at most {MAX_BYTES} are "
            f"allowed: use a smaller one"
        )
    for ending in ENDINGS:
        (folder / f"{config.env}{ending}").unlink(missing_ok=True)
    path = folder / f"{config.env}{'.json' if seeds else '.npz'}"
    path.write_bytes(data)
    return path


def training_command(meta: dict[str, Any]) -> str:
    """The command that made a policy; empty if its file has none."""
    return str(meta.get("command", ""))[:1000]
