"""Which returns an episode can have."""

from __future__ import annotations

from es_queue.environments.spaces import EnvironmentSpec

#: Squares and sums of returns up to it are finite.
MOST_RETURN = 1e100
TOLERANCE = 1e-6


def impossible_return_reason(spec: EnvironmentSpec, total: float, steps: int) -> str:
    """Why no episodes of so many steps in all have that sum of rewards; empty where they may."""
    if not abs(total) <= MOST_RETURN:
        return f"the episode's return is {total:g}, beyond {MOST_RETURN:g}: scale its rewards down"
    for bound, sign in ((spec.highest_reward, 1), (spec.lowest_reward, -1)):
        if bound is None:
            continue
        most = bound * steps
        if sign * (total - most) > TOLERANCE * (1 + abs(most)):
            name = "highest" if sign > 0 else "lowest"
            return (
                f"the episode's return is {total:g} after {steps} steps, but {spec.id} declares "
                f"{bound:g} as the {name} reward: correct its reward_range"
            )
    return ""
