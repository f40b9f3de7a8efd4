"""Evolution Strategies on one page: CartPole, by Salimans et al. 2017, arXiv:1703.03864.

The same algorithm as ``es-master --strategy openai_es``, without Redis and without other processes.
It ends with the same parameters, to the bit:

    es-master --env CartPole-v1 --strategy openai_es --seed 1 --population 32 --obs-sample 1 \
        --generations 10 --eval-every 0 --target-reward none --final-episodes 0

A generation has four steps. es-queue spreads the first three over many machines:

1. Publish the parameters and the observation statistics.
2. Play each perturbation of the parameters, in pairs of opposite sign (mirrored sampling).
3. Collect the returns: one number per episode, whatever the size of the policy.
4. Rank the returns, and move the parameters towards the perturbations that earned more.

Three parts of es-queue make the bits independent of who plays what, and in which order:

- the noise table: a perturbation is a position in a large table of normal numbers that every host
  holds, so an index is sent instead of a vector;
- the plan: position, environment seed and sampling of each pair depend only on (seed, generation);
- sums in slot order, so that no result depends on which worker was faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import gymnasium
import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import weighted_rows
from es_queue.numerics.fingerprint import array_digest
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.statistics import FrozenStatistics, Moments
from es_queue.slot_plan import plan_slots

SEED, GENERATIONS, POPULATION = 1, 10, 32
SIGMA = 0.05  # standard deviation of the perturbations
LEARNING_RATE = 0.03
OBSERVATION_CLIP = 5.0  # in standard deviations
OBSERVATIONS, ACTIONS = 4, 2
SIZE = OBSERVATIONS * ACTIONS  # a linear policy: one matrix, without biases as in the recipe

Floats = NDArray[np.float32]


# --- one episode: all that a worker does


@dataclass
class Episode:
    """The return of an episode, and the observations that it saw."""

    total: float = 0.0
    observations: list[Floats] = field(default_factory=list)


def play(
    env: gymnasium.Env[Floats, int], parameters: Floats, statistics: FrozenStatistics, seed: int
) -> Episode:
    """Play one episode. It depends on nothing but its arguments, so any machine may play it."""
    weights = parameters.reshape(OBSERVATIONS, ACTIONS)
    observation, _ = env.reset(seed=seed)
    episode, over = Episode(observations=[observation]), False
    while not over:
        action = int(np.argmax(statistics.normalize(observation).dot(weights)))
        observation, reward, terminated, truncated, _ = env.step(action)
        episode.total += float(reward)
        episode.observations.append(observation)
        over = terminated or truncated
    return episode


# --- the update: all that the master does


def centered_ranks(returns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks of the returns, spread evenly from -1/2 to 1/2; equal returns share their mean rank.

    The update then does not depend on the scale of the rewards, nor on outliers (section 2.1).
    """
    values, place, counts = np.unique(returns, return_inverse=True, return_counts=True)
    if len(values) == 1:
        return np.zeros_like(returns)
    every = np.arange(returns.size) / (returns.size - 1) - 0.5
    first = np.cumsum(counts) - counts
    return (np.add.reduceat(every, first) / counts)[place].reshape(returns.shape)


@dataclass
class Adam:
    """Adam (Kingma and Ba 2015, section 2), for a gradient to climb, in float32."""

    first: Floats = field(default_factory=lambda: np.zeros(SIZE, np.float32))
    second: Floats = field(default_factory=lambda: np.zeros(SIZE, np.float32))
    count: int = 0

    def step(self, gradient: NDArray[np.float64]) -> Floats:
        """The step to add to the parameters."""
        self.count += 1
        slope = gradient.astype(np.float32)
        self.first = np.float32(0.9) * self.first + np.float32(1 - 0.9) * slope
        self.second = np.float32(0.999) * self.second + np.float32(1 - 0.999) * (slope * slope)
        rate = LEARNING_RATE * math.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        root: Floats = np.sqrt(self.second)
        return np.float32(rate) * self.first / (root + np.float32(1e-8))


def train(generations: int = GENERATIONS) -> Floats:
    """Run the algorithm, and return the parameters float32 [SIZE]."""
    env = gymnasium.make("CartPole-v1")
    noise = NoiseTable.in_memory(2**22)
    pairs = POPULATION // 2

    parameters, optimizer = np.zeros(SIZE, np.float32), Adam()
    moments = Moments.empty(OBSERVATIONS)
    for generation in range(generations):
        # Publish: the statistics are frozen, so that all episodes of a generation see the same.
        statistics = moments.freeze(OBSERVATION_CLIP)
        positions = noise.size - SIZE + 1
        plan = plan_slots(SEED, generation, pairs, positions=positions, individuals=2)

        # Play and collect. The two of a pair share an environment seed: the difference of their
        # returns then comes from the perturbation, not from the luck of the start.
        returns = np.zeros((pairs, 2))
        for slot in range(pairs):
            step = np.float32(SIGMA) * noise.row(int(plan.noise_indices[slot]), SIZE)
            for half, individual in enumerate((parameters + step, parameters - step)):
                episode = play(env, individual, statistics, int(plan.seeds[slot, half, 0]))
                returns[slot, half] = episode.total
                moments = moments.merge(Moments.of(np.asarray(episode.observations)))

        # Rank and update: g = 1/(2n) sum (u+ - u-) e (algorithm 2, line 11, without 1/sigma, as
        # in the authors' evolution-strategies-starter: Adam does not depend on the factor).
        utilities = centered_ranks(returns)
        weights = (utilities[:, 0] - utilities[:, 1]) / utilities.size
        gradient = weighted_rows(noise, plan.noise_indices, weights, SIZE)
        parameters = parameters + optimizer.step(gradient)
        print(f"generation {generation:2}: mean return {returns.mean():6.1f}")
    return parameters


if __name__ == "__main__":
    print("digest", array_digest(train()))
