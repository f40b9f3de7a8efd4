"""What each closed generation adds to the counters of its run."""

from __future__ import annotations

import time
from dataclasses import replace

from master.collect.collector import Collector
from master.loop.learner import ClosedGeneration, Record, is_all_at_patience, total_steps
from master.loop.messages import remaining_seconds
from master.loop.publisher import OpenGeneration
from master.loop.state import Counters, RunState

COUNTER_NAMES = (
    "episodes",
    "env_steps",
    "eval_steps",
    "surplus_steps",
    "lost_steps",
    "late",
    "duplicate",
    "reissued",
    "refused",
    "recovered",
    "seconds",
)


class RunTotals:
    """The run's life under this master, without its pauses."""

    def __init__(self, collector: Collector) -> None:
        self._collector, self._last_clock = collector, time.monotonic()

    def count(
        self, generation: OpenGeneration, closed: ClosedGeneration, paused: float
    ) -> Counters:
        """The counters with a closed generation, in which people paused the run so long."""
        config, ledger, state = generation.learner.config, generation.ledger, generation.state
        now = time.monotonic()
        took, self._last_clock = max(0.0, now - self._last_clock - paused), now
        centre = sum(closed.centre.steps) if closed.centre else 0
        counters = state.add_counts(
            episodes=closed.arrays.individuals * config.episodes,
            env_steps=closed.arrays.total_steps
            + total_steps(closed.reevaluations)
            + total_steps(closed.measured),
            eval_steps=closed.eval_steps + centre,
            surplus_steps=total_steps(closed.surplus),
            lost_steps=ledger.lost_steps,
            seconds=took,
            duplicate=ledger.refused["duplicate"] + ledger.refused["conflict"],
            refused=ledger.refused.total() - ledger.refused["audit"],
            reissued=ledger.reissued,
            recovered=ledger.recovered,
            late=self._collector.take_late_count(),
        )
        at_patience = is_all_at_patience(closed, config)
        patience = state.counters.patience_generations + 1 if at_patience else 0
        return replace(counters, patience_generations=patience)

    def record(
        self, generation: OpenGeneration, state: RunState, closed: ClosedGeneration, seconds: float
    ) -> Record:
        """The run's totals in ``state``; seconds: what publishing and waiting took."""
        counters, steps = state.counters, closed.arrays.total_steps + closed.eval_steps
        return {
            **{name: getattr(counters, name) for name in COUNTER_NAMES},
            "steps_per_second": steps / seconds if seconds > 0 else None,
            "workers": len(generation.ledger.contributors),
            "eta": remaining_seconds(
                generation.learner.config, counters.seconds, counters.env_steps, state.generation
            ),
        }
