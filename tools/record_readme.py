"""Record the README's pictures from real runs: ``python -m tools.record_readme PICTURE FILE``.

``walker`` is the bundled policy, as es-play films it, with half of the pictures. ``page`` trains
CartPole with three seeds in an empty folder, and takes the web page with Chromium. ``archive``
fills an archive of BipedalWalker-v3 in some minutes, and es-plot draws it.
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

BIN = Path(sys.executable).parent
WALKER_COLOURS = 24


def record_walker(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder) / "film.gif"
        play = [sys.executable, "-m", "workers.play.cli", "--pretrained", "BipedalWalker-v2"]
        subprocess.run([*play, "--record", film], check=True)
        with Image.open(film) as images:
            frames = [np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(images)]
    write_gif(out, frames[1::2], GIF_FPS / 2, WALKER_COLOURS)


def record_page(out: Path) -> None:
    address, size = "127.0.0.1:8643", "1280,780"
    with tempfile.TemporaryDirectory() as folder:
        words = ["--env", "CartPole-v1", "--seeds", "1-3", "--run", "cartpole"]
        subprocess.run([BIN / "es-master", *words], cwd=folder, check=True)
        browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
        browser += ["--virtual-time-budget=5000", f"--window-size={size}"]
        with subprocess.Popen(
            [BIN / "es-status", "--web", address], cwd=folder, stdout=subprocess.PIPE
        ) as server:
            assert server.stdout is not None
            url = server.stdout.readline().split()[0].decode()  # it listens
            page = f"{url}#run=cartpole-s2&with=cartpole-s1%20cartpole-s3"
            try:
                subprocess.run([*browser, f"--screenshot={out.resolve()}", page], check=True)
            finally:
                server.terminate()


def record_archive(out: Path) -> None:
    words = ["--env", "BipedalWalker-v3", "--strategy", "map_elites", "--run", "walker"]
    words += ["--behaviour", "feet-contact", "--cells", "20,20", "--population", "128"]
    words += ["--sigma", "0.05", "--initial-sigma", "0.5", "--generations", "60", "--seed", "1"]
    words += ["--step-limit", "200", "--eval-step-limit", "200", "--target-reward", "none"]
    words += ["--eval-every", "60", "--eval-episodes", "1", "--final-episodes", "1"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([BIN / "es-master", *words], cwd=folder, check=True)
        plot = [str(BIN / "es-plot"), "walker", "--archive", "--out", str(out.resolve())]
        subprocess.run(plot, cwd=folder, check=True)


PICTURES = {"archive": record_archive, "page": record_page, "walker": record_walker}


def main() -> None:
    parser = argparse.ArgumentParser("python -m tools.record_readme", description=__doc__)
    parser.add_argument("picture", choices=[*PICTURES])
    parser.add_argument("out", type=Path, metavar="FILE", help="the picture to write")
    given = parser.parse_args()
    PICTURES[given.picture](given.out)


if __name__ == "__main__":
    main()
