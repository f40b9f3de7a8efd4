"""An Atari game as the literature's policies see it (Mnih et al. 2015, Nature 518; Machado et al.
2018, arXiv:1709.06009).

The emulator is the Arcade Learning Environment (package ale-py). All randomness of an episode comes
from its seed through es-queue's own stream, so an episode is the same in any process.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from es_queue.environments.atari.settings import AtariSettings, settings_of
from es_queue.environments.walker.mt19937 import Mt19937
from es_queue.errors import UsageError
from es_queue.numerics.arrays import Floats

Bytes = NDArray[np.uint8]
#: uint8 of a fixed shape, into the array that is handed over.
Grab = Callable[[Bytes], object]
KINDS = ("grayscale", "rgb", "ram")


class AreaResize:
    """uint8[h, w] → uint8[height, width], each new pixel the mean of the area that it covers,
    rounded half to even.

    The result is the same on every machine: in units of the smallest area that both grids share,
    all sums are whole numbers below 2**24. float32 represents these exactly, whatever order a BLAS
    adds in. OpenCV's INTER_AREA differs by 1 for about one pixel in 3,500, whose mean is near a
    half.
    """

    def __init__(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        (self._groups, self._down, rows), (_, across, columns) = (
            _weights(*pair) for pair in zip(before, after, strict=True)
        )
        self._across = np.ascontiguousarray(_spread(across, before[1], after[1]).T)
        self._shape = after[0], before[1]
        self._tall = before[0] // self._groups, before[1]
        self._area = np.float32(rows * columns)

    def __call__(self, image: Bytes) -> Bytes:
        strips = image.astype(np.float32).reshape(self._groups, *self._tall)
        sums = np.matmul(self._down, strips).reshape(self._shape) @ self._across
        smaller: Bytes = np.rint(sums / self._area).astype(np.uint8)
        return smaller


def _weights(before: int, after: int) -> tuple[int, Floats, int]:
    """For one side: the number of repeated groups, the share of each pixel in a new one within a
    group, and the sum of the shares.
    """
    groups = math.gcd(before, after)
    old, new = before // groups, after // groups
    edges = np.arange(new + 1) * old  # in units of 1/new of an old pixel
    starts = np.arange(old) * new
    shared = np.minimum(edges[1:, None], starts + new) - np.maximum(edges[:-1, None], starts)
    return groups, np.maximum(shared, 0).astype(np.float32), old


def _spread(weights: Floats, before: int, after: int) -> Floats:
    """The whole matrix [after, before] of the groups."""
    groups = before // weights.shape[1]
    whole: Floats = np.kron(np.eye(groups, dtype=np.float32), weights)
    assert whole.shape == (after, before)
    return whole


class ScreenPreprocessor:
    """Reads frames through ``grab``: one, or the brighter of two, as float32 of ``shape`` in 0…1.

    frame: the shape of the emulator's frame
    rows:  the rows that are kept, (top, bottom)
    size:  side of the square to which a grey frame is resized; 0 keeps its size
    """

    def __init__(
        self, grab: Grab, frame: tuple[int, ...], rows: tuple[int, int], size: int
    ) -> None:
        self._grab, self._rows = grab, slice(*rows)
        self._screen, self._previous = np.zeros(frame, np.uint8), np.zeros(frame, np.uint8)
        kept = (rows[1] - rows[0], *frame[1:])
        self._resize = AreaResize((kept[0], kept[1]), (size, size)) if size else None
        self.shape = (size, size) if size else kept

    def capture_previous(self) -> None:
        """Remember the frame before the one that ``capture`` reads."""
        self._grab(self._previous)

    def capture(self, out: Floats, both: bool = False) -> None:
        """Write the current frame into ``out`` [shape]; with ``both``, the brighter pixels of it
        and the frame before.
        """
        self._grab(self._screen)
        image = np.maximum(self._screen, self._previous, out=self._screen) if both else self._screen
        image = image[self._rows]
        np.divide(
            image if self._resize is None else self._resize(image),
            np.float32(255),
            out=out,
            dtype=np.float32,
        )


def make_preprocessor(console: Any, kind: str, crop: str, size: int) -> ScreenPreprocessor:
    """The preprocessor for ``console``, an ALEInterface with a game. Raises UsageError for invalid
    settings.
    """
    if kind not in KINDS:
        raise UsageError(f"env_arg obs_type is {kind!r}: use {', '.join(KINDS)}")
    if kind != "grayscale" and (crop != "none" or size):
        raise UsageError(
            f"env_arg obs_type is {kind}, but only grayscale is cropped and resized: leave "
            "crop at none and size at 0"
        )
    if kind == "ram":
        memory = int(console.getRAMSize())
        return ScreenPreprocessor(console.getRAM, (memory,), (0, memory), 0)
    height, width = console.getScreenDims()
    if kind == "rgb":
        return ScreenPreprocessor(console.getScreenRGB, (height, width, 3), (0, height), 0)
    rows = _parse_crop(crop, height)
    if not 0 <= size <= min(rows[1] - rows[0], width):
        raise UsageError(
            f"env_arg size is {size}: use a whole number up to "
            f"{min(rows[1] - rows[0], width)}, or 0 for the full screen"
        )
    return ScreenPreprocessor(console.getScreenGrayscale, (height, width), rows, size)


def _parse_crop(text: str, height: int) -> tuple[int, int]:
    """Read ``top:bottom``, the rows that are kept, or ``none``."""
    if text == "none":
        return 0, height
    match = re.fullmatch(r"(\d{1,3}):(\d{1,3})", str(text))
    if match is None or not 0 <= int(match[1]) < int(match[2]) <= height:
        raise UsageError(
            f"env_arg crop is {text!r}: use TOP:BOTTOM, the rows to keep of 0:{height}, or none"
        )
    return int(match[1]), int(match[2])


class AtariConsole:
    """The Arcade Learning Environment with the game ``rom``.

    ale: the emulator, an ALEInterface; actions: those that the policy chooses from

    Raises UsageError for settings that the game does not have, ImportError without ale-py.
    """

    def __init__(self, rom: str, settings: AtariSettings) -> None:
        self._settings = settings
        self._low, self._high = settings.skip_range()
        self.ale = _load_console(rom, settings)
        self._initial_state = self.ale.cloneState(include_rng=True)
        self.actions = (
            self.ale.getLegalActionSet()
            if settings.full_action_space
            else self.ale.getMinimalActionSet()
        )
        self._last = self.actions[0]
        self._stream = Mt19937(0)

    def start(self, seed: int) -> None:
        """Begin an episode: no-ops, then FIRE and the action after it. If these end the game, it
        is reset and the policy acts at once.
        """
        settings, actions = self._settings, self.actions
        self._stream.seed(seed)
        self._reset()
        for _ in range(self._stream.integer(1, settings.noop_max) if settings.noop_max else 0):
            self.ale.act(actions[0])
        if settings.fire_reset and len(actions) > 2 and actions[1].name == "FIRE":
            self.repeat_action(1)
            self.repeat_action(2)
        if self.ale.game_over():
            self._reset()

    def _reset(self) -> None:
        """Restore the state after power-on: some games would otherwise remember the game before."""
        self.ale.restoreState(self._initial_state)
        self.ale.reset_game()
        self._last = self.actions[0]

    def repeat_action(
        self, action: int, capture_previous: Callable[[], object] | None = None
    ) -> tuple[float, bool]:
        """Hold the action for its frames. Returns the sum of rewards, and whether
        ``capture_previous`` was called at the second-last frame.
        """
        frames = (
            self._low if self._low == self._high else self._stream.integer(self._low, self._high)
        )
        reward, chosen, both = 0.0, self.actions[action], False
        for left in range(frames - 1, -1, -1):
            reward += self.ale.act(self._sticky(chosen))
            if self.ale.game_over():
                return reward, False
            if left == 1 and capture_previous:
                capture_previous()
                both = True
        return reward, both

    def _sticky(self, chosen: Any) -> Any:
        if (
            not self._settings.repeat_action_probability
            or self._stream.uniform(0.0, 1.0) >= self._settings.repeat_action_probability
        ):
            self._last = chosen
        return self._last


def _load_console(rom: str, settings: AtariSettings) -> Any:
    """An ALEInterface with the game. es-queue adds the randomness, so the emulator's own is off."""
    ale_py, roms = importlib.import_module("ale_py"), importlib.import_module("ale_py.roms")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    console = ale_py.ALEInterface()
    console.setFloat("repeat_action_probability", 0.0)
    console.setInt("random_seed", 0)
    console.setInt("max_num_frames_per_episode", settings.max_num_frames_per_episode)
    console.loadROM(roms.get_rom_path(rom))
    for name, value, offered, choose in (
        ("mode", settings.mode, console.getAvailableModes, console.setMode),
        (
            "difficulty",
            settings.difficulty,
            console.getAvailableDifficulties,
            console.setDifficulty,
        ),
    ):
        if value is None:
            continue
        if value not in offered():
            raise UsageError(
                f"env_arg {name} is {value}, but {rom} has {', '.join(map(str, offered()))}"
            )
        choose(value)
    return console


#: Frames of a second.
FRAMES = 60


class AtariGame(gymnasium.Env[Floats, Any]):
    """One preprocessed game. ``rom`` is the emulator's name of it; ``arguments`` are those of
    AtariSettings.

    Raises UsageError for invalid settings, ImportError without ale-py.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, rom: str, render_mode: str | None = None, **arguments: Any) -> None:
        self.settings = settings_of(arguments)
        self.render_mode = render_mode
        self.console = AtariConsole(rom, self.settings)
        self._preprocessor: ScreenPreprocessor = make_preprocessor(
            self.ale, self.settings.obs_type, self.settings.crop, self.settings.size
        )
        self._stacked: Floats = np.zeros(
            (self.settings.stack, *self._preprocessor.shape), np.float32
        )
        self.action_space = gymnasium.spaces.Discrete(len(self.console.actions))
        self.observation_space = gymnasium.spaces.Box(
            0.0, 1.0, self._observation().shape, np.float32
        )
        self.metadata = {
            **self.metadata,
            "render_fps": FRAMES / self.settings.skip_range()[0],
        }

    @property
    def ale(self) -> Any:
        return self.console.ale

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.console.start(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._stacked = np.empty_like(self._stacked)
        self._preprocessor.capture(self._stacked[-1])
        self._stacked[:-1] = self._stacked[-1]
        return self._observation(), {"lives": self.ale.lives()}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        previous = self._preprocessor.capture_previous if self.settings.max_of_two else None
        reward, both = self.console.repeat_action(int(action), previous)
        newer = np.empty_like(self._stacked)
        newer[:-1] = self._stacked[1:]
        self._preprocessor.capture(newer[-1], both)
        self._stacked = newer
        over, cut = self.ale.game_over(with_truncation=False), self.ale.game_truncated()
        return (
            self._observation(),
            reward,
            over,
            cut,
            {"lives": self.ale.lives(), "episode_frame_number": self.ale.getEpisodeFrameNumber()},
        )

    def render(self) -> Any:
        return self.ale.getScreenRGB()

    def _observation(self) -> Floats:
        """The stack in the form that policies expect: grey frames keep its axis, colours and memory
        do not.
        """
        if self.settings.obs_type == "ram":
            return self._stacked.reshape(-1)
        if self.settings.obs_type == "rgb":
            first: Floats = self._stacked[0]
            return first
        return self._stacked
