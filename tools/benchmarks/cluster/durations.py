"""How long the simulated episodes are: drawn from a recorded run of BipedalWalker, from that with a
slower physics, or heavy-tailed.

A duration is a function of (seed, generation, slot), so every process and the discrete-event
simulation agree on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RECORDED, SLOW, HEAVY, CONSTANT = "recorded", "slow", "heavy", "constant"
KINDS = (RECORDED, SLOW, HEAVY, CONSTANT)
#: The recorded numbers of steps at so many seconds a step, cut at so many times their mean, as
#: --step-limit mean:2 does.
SLOW_STEP, CUT_AT = 0.005, 2
#: Lognormal, mean 0.5 s, sigma 1: one episode in a hundred lasts over 3.1 s, one in ten thousand
#: over 12.5 s.
HEAVY_MEAN, HEAVY_SIGMA = 0.5, 1.0
CONSTANT_SECONDS = 0.1
FILE = Path(__file__).with_name("bipedal_walker.npz")

Seconds = NDArray[np.float64]


def recorded_pairs(path: Path = FILE) -> Seconds:
    """float64 [pairs, 2]: seconds of both episodes of each recorded pair, steps times the run's
    median seconds a step.
    """
    with np.load(path, allow_pickle=False) as found:
        pairs: Seconds = found["steps"].astype(np.float64) * float(found["seconds_per_step"])
    return pairs


def slow_pairs(path: Path = FILE) -> Seconds:
    """The same episodes where a step takes longer: those of an environment whose physics costs
    more.
    """
    with np.load(path, allow_pickle=False) as found:
        steps = found["steps"].astype(np.float64)
    return np.asarray(np.minimum(steps, CUT_AT * steps.mean()) * SLOW_STEP)


PAIRS = {RECORDED: recorded_pairs, SLOW: slow_pairs}


@dataclass(frozen=True)
class Durations:
    """One set of durations. kind: one of KINDS; seed: of the draws."""

    kind: str = RECORDED
    seed: int = 0

    def slots(self, generation: int, count: int) -> Seconds:
        """float64 [count]: seconds of each training slot, whose pair of episodes is played one
        after the other.
        """
        draw = np.random.Generator(
            np.random.Philox(key=np.array([self.seed, generation], np.uint64))
        )
        if self.kind in PAIRS:
            pairs = PAIRS[self.kind]()
            return np.asarray(pairs[draw.integers(len(pairs), size=count)].sum(axis=1))
        if self.kind == HEAVY:
            location = np.log(HEAVY_MEAN) - HEAVY_SIGMA**2 / 2
            return np.asarray(draw.lognormal(location, HEAVY_SIGMA, (count, 2)).sum(axis=1))
        return np.full(count, 2 * CONSTANT_SECONDS)

    def mean(self) -> float:
        """Expected seconds of an episode."""
        if self.kind in PAIRS:
            return float(PAIRS[self.kind]().mean())
        return {HEAVY: HEAVY_MEAN, CONSTANT: CONSTANT_SECONDS}[self.kind]
