"""A whole run whose workers write down when they claim and answer; and what is read from that."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from es_queue.protocol.messages import Block
from tools.benchmarks.runs import Bench, Record, processes_of, resumed

WATCHED = {
    "RQ_WORKER_CLASS": "tools.benchmarks.watched_worker.WatchedWorker",
}


@dataclass(frozen=True)
class Event:
    """A worker (its pid) claimed, answered or dropped a block at a second of the host's monotonic
    clock.

    fresh: the answer came while its publication was open
    """

    pid: int
    event: str
    block: Block
    fresh: bool
    time: float

    @property
    def generation(self) -> int:
        return int(self.block.publication.partition(".")[0])


@dataclass(frozen=True)
class Recording:
    """Events by time, and the records of the generations ``first - 1`` to ``last``, all of them
    complete.
    """

    events: list[Event]
    records: list[Record]
    run_dir: Path
    first: int
    last: int


def record(bench: Bench, run_dir: Path, first: int, last: int) -> Recording:
    """Resume the fork in ``run_dir`` and watch it until generation ``last`` and the first block
    after it are over.
    """
    with processes_of(bench) as processes:
        whole = resumed(bench, processes, run_dir, **WATCHED)
        whole.record(last + 1)
        records = [one for one in whole.metrics() if first - 1 <= one["generation"] <= last]
        whole.stop()
        return Recording(events_in(whole.events), records, run_dir, first, last)


def events_in(folder: Path) -> list[Event]:
    lines = [
        json.loads(line)
        for path in folder.glob("worker-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    found = [
        Event(one["pid"], one["event"], Block.decode(one["block"]), one["fresh"], one["time"])
        for one in lines
    ]
    return sorted(found, key=lambda one: one.time)


def counted_blocks(events: Iterable[Event], first: int, last: int) -> list[tuple[int, Block]]:
    """Every slot of those generations once, in the blocks in which it was first answered, in the
    order of answers, and by whom.

    A block that was issued again is left out where another's answer was first.
    """
    done: set[tuple[str, str, int]] = set()
    blocks: list[tuple[int, Block]] = []
    for one in events:
        if one.event != "answer" or not one.fresh or not first <= one.generation <= last:
            continue
        block = one.block
        new = [
            slot
            for slot in range(block.start, block.stop)
            if (block.publication, block.kind, slot) not in done
        ]
        done |= {(block.publication, block.kind, slot) for slot in new}
        blocks += [
            (one.pid, Block(block.publication, block.kind, start, stop))
            for start, stop in ranges(new)
        ]
    return blocks


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as half-open ranges."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found
