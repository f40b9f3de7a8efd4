"""Films episodes without a screen: an animated GIF (Pillow) or an MP4 (imageio-ffmpeg)."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.environments.interface import RenderedEnvironment
from es_queue.errors import EnvironmentFailure, RunFolderError, UsageError
from es_queue.private_files import create_new
from workers.policy_files import format_return

FrameArray = NDArray[np.uint8]
INSTALL = "pip install 'es-queue[video]'"
SUFFIXES = (".gif", ".mp4")
GIF_WIDTH = 600
GIF_COLOURS = 64
#: Pictures whose colours are those of the whole GIF.
PALETTE_FRAMES = 16
#: A GIF counts hundredths of a second, and viewers play one faster than this slowly.
GIF_FPS = 25
#: Longer films are cut: every picture is held until the GIF is written.
MAX_FRAMES = 6_000
MAX_GIF_FRAMES = 1_000


class VideoRecorder:
    """Records frames of ``env``: every n-th, so that the film runs at the environment's own speed.

    path: of the film; fps: the environment's frames per second; has_caption: whether frames show
    step and return; most: frames; is_truncated: whether frames were left out because the film
    grew too long
    """

    def __init__(
        self,
        env: RenderedEnvironment,
        path: Path,
        fps: float,
        has_caption: bool = False,
    ) -> None:
        self._env, self.path, self._has_caption = env, path, has_caption
        self._gif = path.suffix.lower() == ".gif"
        self._every = max(1, round(fps / GIF_FPS)) if self._gif else 1
        self.fps = fps / self._every
        self.most = MAX_GIF_FRAMES if self._gif else MAX_FRAMES
        self._step, self._frames = 0, list[FrameArray]()
        self.is_truncated = False

    def capture(self, step: int, total: float) -> None:
        self._step += 1
        if self._step % self._every:
            return
        if len(self._frames) >= self.most:
            self.is_truncated = True
            return
        frame = self._env.render()
        if frame is None:
            raise EnvironmentFailure("the environment renders no images: leave --record out")
        frame = shrink(frame, GIF_WIDTH) if self._gif else crop_to_even(frame)
        if self._has_caption:
            frame = draw_caption(frame, f"step {step}   return {format_return(total)}")
        self._frames.append(frame)

    def save(self) -> int:
        """Whole or not at all; returns its bytes. Raises RunFolderError."""
        fresh = self.path.with_name(
            f".{self.path.stem}.{secrets.token_hex(8)}{self.path.suffix.lower()}"
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(create_new(fresh))  # nobody's link is in its place
            (write_gif if self._gif else write_mp4)(fresh, self._frames, self.fps)
            fresh.replace(self.path)
            return self.path.stat().st_size
        except OSError as error:
            raise RunFolderError(
                f"--record {self.path} cannot be written: {error.strerror or error}"
            ) from None
        finally:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)


def validate_recording(path: Path) -> None:
    """Raises UsageError for a film that cannot be made here, before an episode is played."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--record is {path}: its name must end in {' or '.join(SUFFIXES)}")
    try:
        # optional: Pillow
        import PIL.Image  # noqa: F401 - is it there?

        if path.suffix.lower() == ".mp4":
            # optional: imageio-ffmpeg
            import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"--record {path} needs a package that is not installed ({error.name}): {INSTALL}"
        ) from None


def choose_offscreen_drawing() -> None:
    """Unless the user has chosen: SDL draws off screen, and MuJoCo takes EGL or OSMesa if there is
    no screen. Call it before MuJoCo is imported.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        libraries = {"egl": "EGL", "osmesa": "OSMesa"}
        if usable := [name for name, library in libraries.items() if find_library(library)]:
            os.environ.setdefault("MUJOCO_GL", usable[0])


def shrink(frame: FrameArray, width: int) -> FrameArray:
    # optional: Pillow
    from PIL import Image

    height, current_width = frame.shape[:2]
    if current_width <= width:
        return frame
    return np.asarray(
        Image.fromarray(frame).resize(
            (width, round(height * width / current_width)), Image.Resampling.BILINEAR
        )
    )


def crop_to_even(frame: FrameArray) -> FrameArray:
    """H.264 needs an even height and width."""
    height, width = frame.shape[:2]
    return np.ascontiguousarray(frame[: height - height % 2, : width - width % 2])


def draw_caption(frame: FrameArray, text: str) -> FrameArray:
    # optional: Pillow
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(frame).convert("RGB")
    size = max(11, image.height // 22)
    ImageDraw.Draw(image).text(
        (size // 2, size // 3),
        text,
        fill="white",
        font=ImageFont.load_default(size),
        stroke_width=2,
        stroke_fill="black",
    )
    return np.asarray(image)


def write_gif(path: Path, frames: list[FrameArray], fps: float, colours: int = GIF_COLOURS) -> None:
    """One palette for all frames: what does not change takes no space."""
    # optional: Pillow
    from PIL import Image

    sample = frames[:: -(-len(frames) // PALETTE_FRAMES)]
    palette = Image.fromarray(np.concatenate(sample)).quantize(colours)
    first, *others = (
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    )
    first.save(
        path,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=round(1000 / fps),
        loop=0,
        optimize=False,
    )


def write_mp4(path: Path, frames: list[FrameArray], fps: float) -> None:
    # optional: imageio-ffmpeg
    import imageio_ffmpeg

    height, width = frames[0].shape[:2]
    writer: Any = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=fps, macro_block_size=2, quality=7, ffmpeg_log_level="error"
    )
    writer.send(None)
    for frame in frames:
        writer.send(frame)
    writer.close()
