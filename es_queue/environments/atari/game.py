"""An Atari game as the literature's policies see it (Mnih et al. 2015, Nature 518; Machado et al.
2018, arXiv:1709.06009).

The emulator is the Arcade Learning Environment (package ale-py). All randomness of an episode comes
from its seed through es-queue's own stream, so an episode is the same in any process.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from es_queue.environments.atari.console import AtariConsole
from es_queue.environments.atari.preprocessing import ScreenPreprocessor, make_preprocessor
from es_queue.environments.atari.settings import settings_of
from es_queue.numerics.arrays import Floats

ENTRY_POINT = "es_queue.environments.atari.game:AtariGame"
#: Frames of a second.
FRAMES = 60


class AtariGame(gymnasium.Env[Floats, Any]):
    """One game, preprocessed. ``rom`` is the emulator's name of it; ``arguments`` are those of
    AtariSettings.

    Raises UsageError for settings that cannot be, ImportError without ale-py.
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
        """The emulator, an ALEInterface."""
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
        """The stack in the form that policies know: pictures in grey keep its axis, colours and
        memory do not.
        """
        if self.settings.obs_type == "ram":
            return self._stacked.reshape(-1)
        if self.settings.obs_type == "rgb":
            first: Floats = self._stacked[0]
            return first
        return self._stacked
