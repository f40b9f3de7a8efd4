"""Settings of an Atari game: preprocessing of frames, and the start of an episode."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from es_queue.environments.atari.ids import MAX_FRAMES
from es_queue.errors import UsageError

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


@dataclass(frozen=True)
class AtariSettings:
    """Preprocessing of an episode's frames, and its start.

    obs_type:   grayscale [stack, height, width], rgb [height, width, 3] or ram [stack * 128], each
    in 0…1
    crop:       rows of a grey frame that are kept, ``top:bottom``, or none
    size:       side of the square to which it is resized, in pixels; 0 keeps its size
    stack:      newest observations that the policy receives, oldest first; the first one is
    repeated before the first step
    frameskip:  frames that an action holds: a number, or ``2-4`` for a random number
    max_of_two: each pixel is the brighter one of the last two frames, for games with blinking
    objects
    noop_max:   at most this many frames, at least one, pass before the policy acts; 0 for none
    fire_reset: FIRE and the action after it begin the game, if FIRE is its second action
    repeat_action_probability: probability with which a frame repeats the previous action
    max_num_frames_per_episode: frames after which the episode ends, including those before the
    first action
    full_action_space: all 18 actions, also those without effect in this game
    mode, difficulty: the game's switches, None for the game's default
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
        """Steps after which the most frames have passed, whatever the random choices."""
        return -(-self.max_num_frames_per_episode // self.skip_range()[0])


def _validate_range(name: str, value: Any, low: int, high: int) -> None:
    if name in ("mode", "difficulty") and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"env_arg {name} is {value!r}: use a whole number from {low} to {high}")


def settings_of(arguments: dict[str, Any]) -> AtariSettings:
    """The settings of these arguments. Raises UsageError for an unknown one."""
    known = [setting.name for setting in fields(AtariSettings)]
    for name in arguments:
        if name not in known:
            raise UsageError(
                f"env_arg has {name}, which an Atari game does not accept: use one of "
                f"{', '.join(known)}; preprocessing none accepts those of gymnasium.make"
            )
    return AtariSettings(**arguments)
