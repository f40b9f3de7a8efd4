"""An es-master that writes down what its extras take: ``python -m tools.benchmarks.timed_master``
with es-master's words.

Wall seconds of the functions below, outermost calls alone, are added up and written after every
generation.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Names the file: a JSON object a line, the sums since the start by group.
FILE = "ES_QUEUE_BENCHMARK_TIMES"
#: Functions by what they serve: a module, and a function or Class.method in it.
GROUPS = {
    "checkpoints": (
        "master.storage.checkpoint:encode",
        "master.storage.checkpoint:encode_best",
        "master.storage.checkpoint:Checkpoints.save",
        "master.storage.checkpoint:Checkpoints.save_best",
        "master.storage.replay_log:ReplayLog.append",
        "master.storage.replay_log:ReplayLog.lead_to",
    ),
    "metrics": (
        "master.display.reporter:Reporter.generation",
        "master.display.reporter:Reporter.live",
        "master.loop.generation_loop:training_record",
        "master.loop.generation_loop:episodes_record",
        "master.loop.records:RunTotals.record",
        "master.loop.publisher:Publisher._progress_fields",
    ),
    "statistics": (
        "master.loop.learner:Learner._merge_moments",
        "master.loop.state:RunState.statistics",
    ),
    "evaluation": (
        "master.loop.generation_loop:evaluation_record",
        "master.loop.learner:Learner.with_best",
        "master.loop.schedule:ClosingSchedule.require_more",
    ),
}


class Sums:
    """Seconds by group; a function that another one of these calls counts to the outer
    one's group.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inside = False

    def timed(self, group: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*given: Any, **named: Any) -> Any:
            if self._inside:
                return function(*given, **named)
            self._inside, began = True, time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self._inside = False
                self.seconds[group] += time.perf_counter() - began

        return wrapped

    def write(self, generation: int) -> None:
        with Path(os.environ[FILE]).open("a") as file:
            file.write(json.dumps({"generation": generation, **self.seconds}) + "\n")


def install(sums: Sums) -> None:
    """Put the clocks into the modules; a name that is gone raises AttributeError."""
    from importlib import import_module

    for group, names in GROUPS.items():
        for name in names:
            module, _, path = name.partition(":")
            owner: Any = import_module(module)
            *outer, last = path.split(".")
            for one in outer:
                owner = getattr(owner, one)
            setattr(owner, last, sums.timed(group, getattr(owner, last)))


def main() -> int:
    from es_queue.numerics.fingerprint import fix_numeric_environment

    fix_numeric_environment()
    sums = Sums()
    install(sums)
    from master.cli import main as cli
    from master.display.reporter import Reporter

    timed = Reporter.generation

    def generation(self: Reporter, record: dict[str, Any]) -> None:
        timed(self, record)
        sums.write(int(record["generation"] or 0))

    Reporter.generation = generation  # type: ignore[method-assign]
    sys.argv[0] = "es-master"
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
