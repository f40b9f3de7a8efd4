"""``python -m tools.bundle_policy RUN_FOLDER "COMMAND"`` adds a finished run's best policy to the
bundled ones.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from es_queue.config.run_config import RunConfig
from es_queue.errors import EsQueueError, RunFolderError, UsageError
from es_queue.files import npz_bytes, read_npz
from es_queue.numerics.fingerprint import array_digest, fix_numeric_environment
from es_queue.policies.saved_policy import POLICY_ARRAYS
from es_queue.pretrained import ENDINGS, FOLDER, MAX_BYTES
from es_queue.seed_list import format_seed_list
from es_queue.strategies import strategy_class
from es_queue.strategies.base import Strategy
from es_queue.user_code import named_modules

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,80}", re.ASCII)


def add(run_folder: Path, command: str, folder: Path = FOLDER) -> Path:
    """Write the best policy of a run, as a list of seeds if it has one, else its numbers.

    Raises RunFolderError for a run that has not ended or whose policy is too large, UsageError for
    one that needs its own code.
    """
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
            "allowed: use a smaller one"
        )
    for ending in ENDINGS:
        (folder / f"{config.env}{ending}").unlink(missing_ok=True)
    path = folder / f"{config.env}{'.json' if seeds else '.npz'}"
    path.write_bytes(data)
    return path


def main(argv: list[str] | None = None) -> int:
    fix_numeric_environment()
    parser = argparse.ArgumentParser(
        prog="python -m tools.bundle_policy",
        description="Add a finished run's best policy to the bundled policies.",
    )
    parser.add_argument("run", metavar="RUN_FOLDER", type=Path, help="folder of a finished run")
    parser.add_argument("command", metavar="COMMAND", help="command that trained it, with its seed")
    parser.add_argument(
        "--folder",
        metavar="PATH",
        type=Path,
        default=FOLDER,
        help="folder to write to [default: the package's own]",
    )
    given = parser.parse_args(argv)
    try:
        path = add(given.run, given.command, given.folder)
    except EsQueueError as error:
        print(f"bundle_policy: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
