"""What an individual remembers from step to step: nobody else's, nothing of the episode before, and
kept while games end.
"""

from __future__ import annotations

import numpy as np

from es_queue.policies import BoundPolicy, Policy
from tests.doors.test_episodes import alone, rules, same, together
from workers.episode import EpisodeSpec


class Running(Policy):
    """outputs = a · (a running sum of the first observed number); the flat vector is [a, decay]."""

    observation_size, outputs, size, memory_size = 2, 1, 2, 1

    def initial(self, seed: int, init: str) -> np.ndarray:
        return np.ones(2, np.float32)

    def bind(self, parameters: np.ndarray) -> BoundPolicy:
        rows, memory = self.checked(parameters), np.zeros((len(parameters), 1), np.float32)

        def many(x: np.ndarray) -> np.ndarray:
            memory[:, 0] = rows[:, 1] * memory[:, 0] + x[:, 0]
            return rows[:, :1] * memory

        return BoundPolicy(len(rows), lambda x: many(x[None])[0], many, memory)


LENGTHS = [3, 200, 40, 7, 90, 200, 12, 61]


def remembering() -> list[EpisodeSpec]:
    draw = np.random.default_rng(3)
    return [
        EpisodeSpec(draw.uniform(0.2, 0.9, 2).astype(np.float32), length, True)
        for length in LENGTHS
    ]


def test_memory_goes_with_its_game_while_others_end() -> None:
    for one, game in zip(
        together(rules(300), remembering(), policy=Running()), remembering(), strict=True
    ):
        assert same(one, alone(rules(300), game, policy=Running()))
