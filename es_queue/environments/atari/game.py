"""An Atari game as the policies of the literature see it (Mnih et al. 2015, Nature 518; Machado et
al. 2018, arXiv:1709.06009).

The emulator is the Arcade Learning Environment (package ale-py). All chance of an episode comes
from its seed through a stream of our own, so that an episode is the same in every object, in any
process.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from es_queue.environments.atari.ids import MAX_FRAMES
from es_queue.environments.atari.preprocessing import ScreenPreprocessor, make_preprocessor
from es_queue.environments.walker.mt19937 import Mt19937
from es_queue.errors import UsageError

Floats = NDArray[np.float32]
ENTRY_POINT = "es_queue.environments.atari.game:AtariGame"
#: Named preprocessing: arguments of AtariGame, each of which --env-arg replaces.
PRESETS: dict[str, dict[str, Any]] = {
    "dqn": {
        "obs_type": "grayscale",
        "size": 84,
        "stack": 4,
        "max_of_two": True,
        "fire_reset": True,
    },
    "small": {
        "obs_type": "grayscale",
        "crop": "34:194",
        "size": 42,
        "stack": 1,
        "max_of_two": True,
        "fire_reset": True,
    },
    "raw": {"obs_type": "rgb"},
    "ram": {"obs_type": "ram"},
}
MAX_STACKED = 16
#: Frames of a second.
_FRAMES = 60


@dataclass(frozen=True)
class AtariSettings:
    """What an episode's frames go through before a policy sees them, and how it begins.

    obs_type:   grayscale [stack, height, width], rgb [height, width, 3] or ram [stack * 128], each
    in 0…1
    crop:       rows of a grey screen that are kept, ``top:bottom``, or none
    size:       side of the square to which it is brought, in pixels; 0 leaves it as it is
    stack:      the newest observations that the policy sees, oldest first; before the first step
    all are the first
    frameskip:  frames that an action holds: a number, or ``2-4`` for as many as chance says
    max_of_two: each pixel is the brighter one of the last two frames, for games in which things
    blink
    noop_max:   up to so many frames, at least one, pass before the policy acts; 0 for none
    fire_reset: the game is begun by FIRE and the action after it, where FIRE is its second action
    repeat_action_probability: with which a frame repeats the action of the frame before
    max_num_frames_per_episode: frames after which the episode is over, those before the first
    action included
    full_action_space: all 18 actions, also those that do nothing in this game
    mode, difficulty: the game's switches, None for its own
    """

    obs_type: str = "grayscale"
    crop: str = "none"
    size: int = 0
    stack: int = 1
    frameskip: int | str = 4
    max_of_two: bool = False
    noop_max: int = 30
    fire_reset: bool = False
    repeat_action_probability: float = 0.0
    max_num_frames_per_episode: int = MAX_FRAMES
    full_action_space: bool = False
    mode: int | None = None
    difficulty: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("size", 0, 1000),
            ("stack", 1, MAX_STACKED),
            ("noop_max", 0, 1000),
            ("max_num_frames_per_episode", 1, 10**7),
            ("mode", 0, 255),
            ("difficulty", 0, 255),
        ):
            _validate_range(name, getattr(self, name), low, high)
        for name in ("max_of_two", "fire_reset", "full_action_space"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"env_arg {name} is {getattr(self, name)!r}: use true or false")
        sticky = self.repeat_action_probability
        if isinstance(sticky, bool) or not isinstance(sticky, int | float) or not 0 <= sticky < 1:
            raise UsageError(
                f"env_arg repeat_action_probability is {sticky!r}: use a number from 0 to below 1"
            )
        if self.stack > 1 and self.obs_type == "rgb":
            raise UsageError(
                f"env_arg stack is {self.stack}, but colour frames are not stacked: use 1, or "
                f"obs_type=grayscale"
            )
        self.skip_range()

    def skip_range(self) -> tuple[int, int]:
        """The fewest and the most frames that an action holds. Raises UsageError."""
        match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", str(self.frameskip))
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high:
            raise UsageError(
                f"env_arg frameskip is {self.frameskip!r}: use a whole number of 1 or more, "
                "or a range such as 2-4"
            )
        return low, high

    def step_limit(self) -> int:
        """Steps after which the most frames have passed, whatever chance says."""
        return -(-self.max_num_frames_per_episode // self.skip_range()[0])


def _validate_range(name: str, value: Any, low: int, high: int) -> None:
    if name in ("mode", "difficulty") and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"env_arg {name} is {value!r}: use a whole number from {low} to {high}")


def settings_of(arguments: dict[str, Any]) -> AtariSettings:
    """The settings of these arguments. Raises UsageError for one that there is not."""
    known = [setting.name for setting in fields(AtariSettings)]
    for name in arguments:
        if name not in known:
            raise UsageError(
                f"env_arg has {name}, which an Atari game does not accept: use one of "
                f"{', '.join(known)}; preprocessing none accepts those of gymnasium.make"
            )
    return AtariSettings(**arguments)


class AtariGame(gymnasium.Env[Floats, Any]):
    """One game, preprocessed. ``rom`` is the emulator's name of it; ``arguments`` are those of
    AtariSettings.

    Raises UsageError for settings that cannot be, ImportError without ale-py.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": _FRAMES}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, rom: str, render_mode: str | None = None, **arguments: Any) -> None:
        self.settings = settings_of(arguments)
        self.render_mode = render_mode
        self.ale = _load_console(rom, self.settings)
        self._initial_state = self.ale.cloneState(include_rng=True)
        self._actions = (
            self.ale.getLegalActionSet()
            if self.settings.full_action_space
            else self.ale.getMinimalActionSet()
        )
        self._presses_fire = (
            self.settings.fire_reset and len(self._actions) > 2 and self._actions[1].name == "FIRE"
        )
        self._low, self._high = self.settings.skip_range()
        self._stream = Mt19937(0)
        self._preprocessor: ScreenPreprocessor = make_preprocessor(
            self.ale, self.settings.obs_type, self.settings.crop, self.settings.size
        )
        self._stacked: Floats = np.zeros(
            (self.settings.stack, *self._preprocessor.shape), np.float32
        )
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.observation_space = gymnasium.spaces.Box(
            0.0, 1.0, self._observation().shape, np.float32
        )
        self.metadata = {**self.metadata, "render_fps": _FRAMES / self._low}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._stream.seed(int(self.np_random.integers(2**31)) if seed is None else seed)
        self._reset_console()
        self._skip_start()
        self._stacked = np.empty_like(self._stacked)
        self._preprocessor.capture(self._stacked[-1])
        self._stacked[:-1] = self._stacked[-1]
        return self._observation(), {"lives": self.ale.lives()}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        reward, both = self._repeat_action(int(action))
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

    def _reset_console(self) -> None:
        """The console as it was switched on: some games would else remember the game before."""
        self.ale.restoreState(self._initial_state)
        self.ale.reset_game()
        self._last = self._actions[0]

    def _skip_start(self) -> None:
        """No-ops, then FIRE and the action after it; a game that ends of that begins anew, and the
        policy waits no longer.
        """
        for _ in range(
            self._stream.integer(1, self.settings.noop_max) if self.settings.noop_max else 0
        ):
            self.ale.act(self._actions[0])
        for action in (1, 2) if self._presses_fire else ():
            self._repeat_action(action)
        if self.ale.game_over():
            self._reset_console()

    def _repeat_action(self, action: int) -> tuple[float, bool]:
        """Hold the action for its frames: the rewards' sum, and whether the frame before the last
        was remembered.
        """
        frames = (
            self._low if self._low == self._high else self._stream.integer(self._low, self._high)
        )
        reward, chosen, both = 0.0, self._actions[action], False
        for left in range(frames - 1, -1, -1):
            reward += self.ale.act(self._sticky(chosen))
            if self.ale.game_over():
                return reward, False
            if left == 1 and self.settings.max_of_two:
                self._preprocessor.capture_previous()
                both = True
        return reward, both

    def _sticky(self, chosen: Any) -> Any:
        if (
            not self.settings.repeat_action_probability
            or self._stream.uniform(0.0, 1.0) >= self.settings.repeat_action_probability
        ):
            self._last = chosen
        return self._last

    def _observation(self) -> Floats:
        """The stack in the form that policies know: pictures in grey keep its axis, colours and
        memory do not.
        """
        if self.settings.obs_type == "ram":
            return self._stacked.reshape(-1)
        if self.settings.obs_type == "rgb":
            first: Floats = self._stacked[0]
            return first
        return self._stacked


def _load_console(rom: str, settings: AtariSettings) -> Any:
    """An ALEInterface with the game in it. Chance is ours, so the emulator's own has none
    to add.
    """
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
