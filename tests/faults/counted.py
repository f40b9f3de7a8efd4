"""An environment that writes down each episode: CartPole, whose every reset adds its seed to a
file.

Each takes a hundredth of a second at least, so that episodes are long against what a master does in
each look.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

#: The file; processes that have no such variable write nothing down.
VARIABLE = "ES_QUEUE_TEST_EPISODES"


class Counted(CartPoleEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if path := os.environ.get(VARIABLE):
            handle = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
            os.write(handle, b"%d\n" % (-1 if seed is None else seed))
            os.close(handle)
            time.sleep(0.01)
        return super().reset(seed=seed, options=options)


if "Counted-v0" not in gymnasium.registry:
    gymnasium.register("Counted-v0", Counted, max_episode_steps=500)


def episodes(path: Path) -> Counter[str]:
    """How often each seed was played."""
    return Counter(path.read_text().split()) if path.exists() else Counter()
