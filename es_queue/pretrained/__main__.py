"""``python -m es_queue.pretrained RUN_FOLDER "COMMAND"`` adds a finished run's best policy to the
bundled ones.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from es_queue.errors import EsQueueError
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.pretrained import FOLDER, add


def main(argv: list[str] | None = None) -> int:
    fix_numeric_environment()
    parser = argparse.ArgumentParser(
        prog="python -m es_queue.pretrained",
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
        print(f"es_queue.pretrained: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
