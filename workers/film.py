"""Episodes as a film, without a screen: an animated GIF (Pillow) or an MP4 (imageio-ffmpeg)."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.request import DrawnWorld
from es_queue.errors import EnvironmentFailure, RunFolderError, UsageError

Picture = NDArray[np.uint8]
INSTALL = "pip install 'es-queue[video]'"
SUFFIXES = (".gif", ".mp4")
GIF_WIDTH = 400
#: A GIF counts hundredths of a second, and viewers play one faster than this slowly.
GIF_FPS = 25
#: Longer films are cut: every picture is held until the GIF is written.
MOST_PICTURES = 6_000
MOST_GIF_PICTURES = 1_500


class Film:
    """What ``world`` shows, picture by picture. It takes each n-th so that it runs at the speed of the environment's own clock.

    path: where it is written; fps: pictures a second of that clock; cut: whether pictures were left out because the film grew too long
    """

    def __init__(self, world: DrawnWorld, path: Path, fps: float) -> None:
        self._world, self.path = world, path
        self._gif = path.suffix.lower() == ".gif"
        self._every = max(1, round(fps / GIF_FPS)) if self._gif else 1
        self.fps = fps / self._every
        self._at, self._pictures = 0, list[Picture]()
        self.cut = False

    def look(self) -> None:
        """A step has been made."""
        self._at += 1
        if self._at % self._every:
            return
        if len(self._pictures) >= (MOST_GIF_PICTURES if self._gif else MOST_PICTURES):
            self.cut = True
            return
        picture = self._world.render()
        if picture is None:
            raise EnvironmentFailure("the environment draws no picture: leave --record out")
        self._pictures.append(smaller(picture, GIF_WIDTH) if self._gif else even(picture))

    def save(self) -> int:
        """Write the file, whole or not at all; returns its bytes. Raises RunFolderError where it cannot be written."""
        fresh = self.path.with_name(f".{self.path.stem}.{secrets.token_hex(8)}{self.path.suffix.lower()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # nobody's link is in its place
            (write_gif if self._gif else write_mp4)(fresh, self._pictures, self.fps)
            fresh.replace(self.path)
            return self.path.stat().st_size
        except OSError as error:
            raise RunFolderError(f"--record {self.path} cannot be written: {error.strerror or error}") from None
        finally:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)


def refuse_unrecordable(path: Path) -> None:
    """Raises UsageError for a film that cannot be made here, before an episode is played."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--record is {path}: its name must end in {' or '.join(SUFFIXES)}")
    try:
        import PIL.Image  # noqa: F401 - is it there?

        if path.suffix.lower() == ".mp4":
            import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise UsageError(f"--record {path} needs a package that is not installed ({error.name}): {INSTALL}") from None


def smaller(picture: Picture, width: int) -> Picture:
    """No wider than ``width`` pixels."""
    from PIL import Image

    height, own = picture.shape[:2]
    if own <= width:
        return picture
    return np.asarray(Image.fromarray(picture).resize((width, round(height * width / own)), Image.Resampling.BILINEAR))


def even(picture: Picture) -> Picture:
    """Height and width even, as H.264 wants them."""
    height, width = picture.shape[:2]
    return np.ascontiguousarray(picture[: height - height % 2, : width - width % 2])


def write_gif(path: Path, pictures: list[Picture], fps: float) -> None:
    from PIL import Image

    first, *others = (Image.fromarray(one).quantize(64, dither=Image.Dither.NONE) for one in pictures)
    first.save(path, format="GIF", save_all=True, append_images=others, duration=round(1000 / fps), loop=0, optimize=False)


def write_mp4(path: Path, pictures: list[Picture], fps: float) -> None:
    import imageio_ffmpeg

    height, width = pictures[0].shape[:2]
    writer: Any = imageio_ffmpeg.write_frames(str(path), (width, height), fps=fps, macro_block_size=2, quality=7, ffmpeg_log_level="error")
    writer.send(None)
    for one in pictures:
        writer.send(one)
    writer.close()
