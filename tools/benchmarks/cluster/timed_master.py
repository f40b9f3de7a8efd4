"""es-master itself with a stop-watch around its phases; ``python -m
tools.benchmarks.cluster.timed_master FILE ARGUMENTS``.

FILE receives one JSON array a call: phase, generation, began, ended (seconds of the monotonic
clock), CPU seconds without those of phases within, and two sizes:

take in, collect: answers and their bytes; stage: bytes; publish, extend: blocks; reconcile:
unanswered slots and their ranges;
tick: workers; workers: those that are there
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Sizes = Callable[[tuple[Any, ...], Any], tuple[float, float]]


def none(arguments: tuple[Any, ...], found: Any) -> tuple[float, float]:
    return 0.0, 0.0


def of_entries(entries: Any) -> tuple[float, float]:
    return len(entries), sum(len(one.payload) for one in entries)


def of_owed(arguments: tuple[Any, ...], found: Any) -> tuple[float, float]:
    ranges = arguments[2].ranges
    return sum(stop - start for _, start, stop in ranges), len(ranges)


class Watch:
    """Times of all calls, and who is within whom."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self._within: list[float] = []
        self.generation = -1

    def time_method(
        self, owner: type, name: str, phase: str, sizes: Sizes = none, opens: bool = False
    ) -> None:
        """Replace a method by itself with the watch running."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def timed(*arguments: Any, **more: Any) -> Any:
            self.generation += opens
            began, cpu = time.monotonic(), time.thread_time()
            self._within.append(0.0)
            found = method(*arguments, **more)
            spent, inner = time.thread_time() - cpu, self._within.pop()
            if self._within:
                self._within[-1] += spent
            self.calls.append(
                [
                    phase,
                    self.generation,
                    began,
                    time.monotonic(),
                    spent - inner,
                    *map(float, sizes(arguments, found)),
                ]
            )
            return found

        setattr(owner, name, timed)


def install(watch: Watch) -> None:
    """The phases of a generation, and the channel's commands within them."""
    from es_queue.protocol.redis_channel import RedisMasterChannel as Channel
    from master.collect.collector import Collector
    from master.collect.ledger import StreamReader
    from master.loop.generation_loop import Loop

    watch.time_method(Loop, "_publish", "open", opens=True)
    watch.time_method(Loop, "_learn", "close")
    watch.time_method(
        StreamReader, "_accept_entries", "take in", lambda arguments, _: of_entries(arguments[3])
    )
    watch.time_method(
        Collector,
        "tick",
        "tick",
        lambda arguments, _: (len(arguments[0]._parts.workers.present), 0),
    )
    watch.time_method(Channel, "stage", "stage", lambda arguments, _: (len(arguments[2]), 0))
    watch.time_method(
        Channel, "publish", "publish", lambda arguments, _: (len(arguments[2].blocks), 0)
    )
    watch.time_method(Channel, "extend", "extend", lambda arguments, _: (len(arguments[3]), 0))
    watch.time_method(
        Channel,
        "collect_each",
        "collect",
        lambda _, found: of_entries([one for entries in found.values() for one in entries]),
    )
    watch.time_method(Channel, "reconcile", "reconcile", of_owed)
    watch.time_method(Channel, "renew", "renew")
    watch.time_method(Channel, "workers", "workers", lambda _, found: (len(found), 0))


def main() -> int:
    from master.cli.main import main as es_master

    watch = Watch()
    install(watch)
    try:
        return es_master(sys.argv[2:])
    finally:
        Path(sys.argv[1]).write_text("\n".join(map(json.dumps, watch.calls)))


if __name__ == "__main__":
    sys.exit(main())
