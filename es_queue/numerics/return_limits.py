"""Limits of an episode's return."""

from __future__ import annotations

from es_queue.config.episode_rules import EpisodeRules
from es_queue.environments.spaces import EnvironmentSpec
from es_queue.protocol.messages import SlotResult

#: Squares and sums of returns up to this are finite.
MOST_RETURN = 1e100
TOLERANCE = 1e-6


def impossible_return_reason(spec: EnvironmentSpec, total: float, steps: int) -> str:
    """Why episodes with that total of steps cannot have that sum of rewards; empty if they can."""
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


def first_unrelated_row(
    rules: EpisodeRules, spec: EnvironmentSpec | None, result: SlotResult, episodes: int
) -> tuple[int, str] | None:
    """The first individual whose fitness and return cannot be those of ``episodes``, and why."""
    if rules.is_return and result.fitness == result.returns:  # the usual case
        return None
    rows = zip(result.fitness, result.returns, result.steps, strict=True)
    for row, (fitness, total, steps) in enumerate(rows):
        reason = unrelated_fitness_reason(rules, spec, episodes * fitness, episodes * total, steps)
        if reason:
            return row, reason
    return None


def unrelated_fitness_reason(
    rules: EpisodeRules, spec: EnvironmentSpec | None, fitness: float, total: float, steps: int
) -> str:
    """Why episodes with that total of steps cannot have both that sum of fitness and that sum of
    rewards; empty if they can.

    spec: the environment, whose declared rewards limit what a reward floor adds; None: no limit
    """
    if rules.by_sign:
        low, high = -float(steps), float(steps)
    else:
        low = high = total - rules.reward_shift * steps
        if rules.reward_floor is not None:
            low, high = max(low, rules.reward_floor * steps), MOST_RETURN
            if spec is not None and spec.highest_reward is not None:
                high = steps * max(spec.highest_reward - rules.reward_shift, rules.reward_floor)
    # Rounding: the rewards were summed one by one, shifted and unshifted.
    slack = TOLERANCE * (1 + abs(total) + abs(rules.reward_shift) * steps + abs(low))
    if low - slack <= fitness <= high + max(slack, TOLERANCE * abs(high)):
        return ""
    return (
        f"the episodes' fitness is {fitness:g} and their return {total:g} after {steps} steps: "
        "these do not match under the run's reward settings; scale down rewards that are too "
        "large to sum"
    )
