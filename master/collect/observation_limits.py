"""Limits of one slot's observation moments.

Observations within declared, finite bounds need nothing else. Any other number is compared with the
largest one that the master saw in its own random steps, and with the run's accumulated statistics.
All limits are fixed when a generation begins, so the order of results does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from es_queue.environments.spaces import EnvironmentSpec
from es_queue.numerics.arrays import Doubles
from es_queue.numerics.normalization import RunningMoments

#: An episode's mean and deviation may be so many times the scale of observations.
REACH = 10.0
#: What a run accumulates raises that scale to so many times the master's own at most.
MOST_GROWTH = 100.0
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ObservationLimits:
    """low, high: float64[d] of an episode's means; spread: float64[d] of its deviations."""

    low: Doubles
    high: Doubles
    spread: Doubles

    @classmethod
    def unbounded(cls, size: int) -> ObservationLimits:
        """Whatever float32 observations can have: the statistics are published as float32."""
        most = np.full(size, LARGEST)
        return cls(-most, most, most)

    @classmethod
    def of(cls, spec: EnvironmentSpec, moments: RunningMoments) -> ObservationLimits:
        """``moments``: those of the run when the generation begins."""
        size = spec.observation_size
        if spec.observation_scale is None:
            return cls.unbounded(size)
        reach = np.full(size, REACH * observation_scale(spec.observation_scale, moments))
        low, high = -reach, reach
        spread = reach
        if spec.observation_low:
            declared_low = np.array(spec.observation_low)
            declared_high = np.array(spec.observation_high)
            with np.errstate(invalid="ignore"):
                width = declared_high - declared_low
            # Half as much on either side: many environments take their bounds lightly.
            bounded = np.isfinite(width)
            low = np.where(bounded, declared_low - width / 2, low)
            high = np.where(bounded, declared_high + width / 2, high)
            spread = np.where(bounded, width, spread)
        return cls(
            np.maximum(low, -LARGEST), np.minimum(high, LARGEST), np.minimum(spread, LARGEST)
        )

    @cached_property
    def least_reach(self) -> float:
        """A mean of no larger magnitude is allowed for each number of an observation."""
        return max(0.0, float(np.minimum(-self.low, self.high).min(initial=LARGEST)))

    @cached_property
    def least_variance(self) -> float:
        """A mean squared deviation that is allowed for each number of an observation."""
        return float(self.spread.min(initial=LARGEST)) ** 2

    def allow(self, counts: Doubles, means: Doubles, m2s: Doubles) -> bool:
        """float64[k, 1], [k, d] and [k, d] of k episodes."""
        inside = (means >= self.low) & (means <= self.high)
        return bool(inside.all() and (m2s <= counts * self.spread**2).all())


def observation_scale(seen: float, moments: RunningMoments) -> float:
    """The largest magnitude that a number of an observation ordinarily has."""
    initial_scale = max(1.0, seen)
    if not moments.count:
        return initial_scale
    with np.errstate(all="ignore"):
        usual = np.abs(moments.mean) + np.sqrt(np.maximum(moments.m2, 0.0) / moments.count)
    return float(
        np.clip(
            np.nan_to_num(usual).max(initial=initial_scale),
            initial_scale,
            MOST_GROWTH * initial_scale,
        )
    )


def format_implausible(worker: str, generation: int) -> str:
    """The sentence for the first moments that were left out."""
    return (
        f"generation {generation}: {worker} sent observation statistics far beyond the "
        f"observation space and all earlier ones; these and similar ones are ignored: check "
        f"that worker, or declare finite bounds in the environment's observation_space"
    )
