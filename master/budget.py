"""When a run ends: budgets are looked at between generations only, on the run's own counts."""

from __future__ import annotations

from es_queue.config import RunConfig
from master.state import CLOSING, FINAL, TRAINING, RunState

BUDGETS = ("generations", "max_steps", "max_seconds")


def reason_to_stop(config: RunConfig, state: RunState) -> str:
    """The budget that is used up at the start of ``state.generation``, empty when none is."""
    counters = state.counters
    spent = {"generations": state.generation, "max_steps": counters.env_steps, "max_seconds": counters.seconds}
    return next((name for name in BUDGETS if getattr(config, name) and spent[name] >= getattr(config, name)), "")


def reopened(config: RunConfig, state: RunState) -> RunState:
    """A resumed state: one that ended trains on when its budgets or its target allow it now."""
    from dataclasses import replace

    if state.stage not in (CLOSING, FINAL) or reason_to_stop(config, state) or state.reason == "target":
        return state
    return replace(state, stage=TRAINING, reason="")
