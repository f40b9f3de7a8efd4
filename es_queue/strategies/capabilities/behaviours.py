"""What strategies share that compare how individuals behave."""

from __future__ import annotations

from es_queue.strategies.setting import Setting

BEHAVIOUR_SETTINGS = (
    Setting(
        "behaviour",
        "auto",
        "what of an episode is compared: its last-observation, its final-position, the ram of an "
        "Atari game, or module:function of your own, of the environment at its end; auto is what "
        "fits the environment",
        choices=("auto", "last-observation", "final-position", "ram"),
        custom=True,
    ),
    Setting(
        "behaviour_episodes",
        5,
        "episodes whose mean behaviour enters the archive for a new centre",
        low=1,
        high=1000,
    ),
)
