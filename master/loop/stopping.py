"""When a run ends: budgets on its own counts, between generations. The loop checks --max-seconds
within one too.
"""

from __future__ import annotations

from dataclasses import replace

from es_queue.config.episode_rules import parse_target
from es_queue.config.run_config import AUTO, NONE, RunConfig
from es_queue.environments.spaces import EnvironmentSpec
from master.loop.state import CLOSING, FINAL, TRAINING, RunState

BUDGETS = ("generations", "max_steps", "max_seconds")
TARGET = "target"


def reason_to_stop(config: RunConfig, state: RunState) -> str:
    """The budget that is used up at the start of ``state.generation``, or empty."""
    counters = state.counters
    spent = {
        "generations": state.generation,
        "max_steps": counters.env_steps,
        "max_seconds": counters.seconds,
    }
    return next(
        (
            name
            for name in BUDGETS
            if getattr(config, name) and spent[name] >= getattr(config, name)
        ),
        "",
    )


def target_of(config: RunConfig, spec: EnvironmentSpec) -> float | None:
    """The return that ends the run, None for none."""
    target = parse_target(config.target_reward)
    if target == AUTO:
        return spec.reward_threshold
    return None if target == NONE else float(target)


def reopen_state(config: RunConfig, state: RunState, target: float | None) -> RunState:
    """A resumed state; training continues if its budgets or its target now allow it.

    A run that its target ended continues if it now has no target, or a higher one than was
    confirmed.
    """
    if state.stage not in (CLOSING, FINAL) or reason_to_stop(config, state):
        return state
    training = replace(state, stage=TRAINING, reason="")
    if state.reason != TARGET:
        return training
    is_target_met = (
        target is not None and state.confirm_mean is not None and state.confirm_mean >= target
    )
    if is_target_met or state.best is None:
        return state
    return replace(training, best=replace(state.best, confirmed=False))
