"""Record the README's pictures from real runs: ``python -m tools.record_readme walker FILE``.

``walker`` is the bundled policy, as es-play films it, with half of the pictures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from workers.play.video import GIF_FPS, write_gif

WALKER_COLOURS = 24


def record_walker(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "film.gif"
        play = [sys.executable, "-m", "workers.play.cli", "--pretrained", "BipedalWalker-v2"]
        subprocess.run([*play, "--record", film], check=True)
        with Image.open(film) as images:
            frames = [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(images)]
    write_gif(out, frames[1::2], GIF_FPS / 2, WALKER_COLOURS)


def main() -> None:
    parser = argparse.ArgumentParser("python -m tools.record_readme", description=__doc__)
    parser.add_argument("picture", choices=["walker"])
    parser.add_argument("out", type=Path, metavar="FILE", help="the picture to write")
    given = parser.parse_args()
    record_walker(given.out)


if __name__ == "__main__":
    main()
