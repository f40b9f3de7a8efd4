"""Results that are odd, hostile or late, or come faster than the master reads."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from es_queue.protocol.messages import TRAIN, Block, publication_generation
from es_queue.slots import Shape
from tests.faults import worlds
from tests.faults.scenario import RUN, Arena, Row, Stopwatch, finish, scenario
from tests.faults.scenarios.environments import held, laid_out
from tests.faults.scenarios.masters import recovered
from tests.integration.processes import CARTPOLE, CLOCKS, NERVOUS, Seen, Started, wait_for

PATIENT = replace(CLOCKS, beat_ttl=10.0)
MEGABYTE = 2**20
#: Of a pair, in a run that compares no behaviours.
RESULT = Shape(2, 0, 0).result
SCORES = ("fitness", "returns")


class Inlet:
    """The results of the open publication, some of which counted, while the only worker is frozen
    with a training slot.

    genuine: a result that counted; owed: the row that the worker holds
    """

    def __init__(self, arena: Arena, run: str, **more: Any) -> None:
        self.url = arena.server()
        # Seldom a run is over before its worker was caught between a claim and a result: then
        # another is begun.
        while not self._caught(arena, run, more):
            run += "-again"

    def _caught(self, arena: Arena, run: str, more: dict[str, Any]) -> bool:
        self.master, self.seen = arena.started(
            run, self.url, {**RUN, "block": 1, **more}, clocks=PATIENT
        )
        worker = arena.processes.worker(self.url, clocks=PATIENT)
        seat = self.seen.joined(worker)
        self.client: Any = self.seen.client
        while self.master.process.poll() is None:
            horse = self.seen.frozen_holding(
                seat, unless=lambda: self.master.process.poll() is not None
            )
            if horse is None:
                break
            self.horse = horse
            held_blocks = self.seen.claims(seat)
            if held_blocks and self._can_be_forged(Block.decode(held_blocks[0])):
                return True
            self.thaw()
            wait_for(
                lambda: (
                    self.master.process.poll() is not None
                    or (self.client.get(self.seen.keys.iteration) and not self.seen.claims(seat))
                ),
                "it answers",
            )
        worker.signal(signal.SIGTERM)
        worker.wait()
        return False

    def _can_be_forged(self, block: Block) -> bool:
        self.publication = block.publication
        self.key = self.seen.keys.results(block.publication, 0)
        found = np.frombuffer(self.client.get(self.key) or b"", RESULT)
        found = found[(found["steps"] > 0).all(1)]  # of pairs
        if not len(found) or block.kind != TRAIN or not publication_generation(self.publication):
            return False
        self.genuine, self.owed = found[:1], block.start
        return True

    def thaw(self) -> None:
        os.kill(self.horse, signal.SIGCONT)

    def forged(self, **changes: Any) -> bytes:
        """The genuine result with other values."""
        result = self.genuine.copy()
        for name, value in changes.items():
            result[name] = value
        return result.tobytes()

    def push(self, records: Iterable[bytes]) -> None:
        """Append them as a worker does, and wake the master."""
        self.client.append(self.key, b"".join(records))
        self.client.rpush(self.seen.keys.bell, 1)

    def refused(self) -> Counter[str]:
        found = self.client.hgetall(self.seen.keys.refused)
        return Counter({name.decode(): int(value) for name, value in found.items() if int(value)})


def odd(inlet: Inlet) -> dict[str, list[bytes]]:
    """Results by the reason for which each must be refused."""
    forged, owed = inlet.forged, inlet.owed
    scores = [np.nan, np.inf, -np.inf, 1e308]
    return {
        "duplicate": [inlet.genuine.tobytes()],
        "conflict": [*(forged(fitness=score) for score in (7.5, 1e99, 5e-324)), forged(steps=7)],
        "late-failure": [forged(failure=1), forged(failure=255)],
        "unknown-slot": [forged(row=row) for row in (-1, -(2**31), 10**6, 2**31 - 1)],
        "wrong-return": [
            forged(row=row, **{name: score})
            for row in (owed, inlet.genuine["row"])
            for name in SCORES
            for score in scores
        ],
        "wrong-length": [forged(row=owed, steps=steps) for steps in (-1, 0, 2**50, 2**63 - 1)],
        "wrong-moments": [forged(row=owed)],  # it has none at all
    }


@scenario(
    "odd results: duplicate, conflicting, failed late, never issued, NaN, impossible",
    quick=2300,
    full=23000,
    slow=False,
)
def odd_results(arena: Arena, count: int) -> Row:
    inlet = Inlet(arena, "odd")
    kinds = odd(inlet)
    each = count // sum(map(len, kinds.values()))
    expected = {reason: each * len(records) for reason, records in kinds.items()}
    row = Row("", injected=sum(expected.values()))
    before, held_before = inlet.refused(), held(inlet.master.pid)
    watch = Stopwatch()
    inlet.push(record for records in kinds.values() for record in records * each)
    wait_for(lambda: sum((inlet.refused() - before).values()) >= row.injected, "all are refused")
    row.seconds.append(watch.seconds())
    counted = inlet.refused() - before
    row.noticed = sum(min(counted[reason], number) for reason, number in expected.items())
    assert counted == expected
    row.remark = (
        f"{each} of each of {sum(map(len, kinds.values()))}, counted by {len(expected)} reasons; "
        f"master {held(inlet.master.pid) - held_before:+.1f} MB"
    )
    inlet.thaw()
    return finish(row, inlet.master)


def most_held(process: Started) -> float:
    """The most megabytes that a process ever held; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


@scenario("straggler: one of two workers is 50 times slower", quick=1, full=10)
def straggler(arena: Arena, count: int) -> Row:
    """Each block that it holds is played by the other too; its own answers come late."""
    laid_out(arena)
    values = {**CARTPOLE, "env": "worlds:Trapped-v0", "block": 1, "generations": 60 * count}
    clocks = replace(NERVOUS, overdue=0.4)
    row, url = Row(""), arena.server()
    master, seen = arena.started("straggler", url, values, clocks=clocks)
    slow = seen.joined(arena.processes.worker(url, clocks=clocks, **{worlds.SLOW: "0.02"}))
    wait_for(lambda: seen.claims(slow), "the slow one claims")
    arena.processes.worker(url, clocks=clocks)
    held_blocks: dict[str, float] = {}
    overtaken: set[str] = set()
    while master.process.poll() is None:
        watched(seen, slow, held_blocks, overtaken, row)
        time.sleep(0.005)
    row.injected = len(overtaken)
    finish(row, master, {**CARTPOLE, "generations": values["generations"]})
    last = master.events("generation")[-1]
    row.noticed = min(
        row.injected, last["reissued"]
    )  # the last one may be overtaken after progress was written
    assert recovered(seen, "overdue") >= row.injected - 1
    assert row.injected >= count and last["recovered"] == 0, (overtaken, held_blocks, last)
    row.remark = (
        f"{last['reissued']} slots issued again, {last['late']} late results; seconds of delay "
        "per generation"
    )
    return row


def watched(
    seen: Seen, slow: str, held_blocks: dict[str, float], overtaken: set[str], row: Row
) -> None:
    """Note the slow worker's blocks, and when the run went on without them."""
    now, generation = time.monotonic(), seen.generation()
    for block in seen.claims(slow):
        held_blocks.setdefault(block, now)
        if publication_generation(block.split()[0]) < generation and block not in overtaken:
            overtaken.add(block)
            row.seconds.append(now - held_blocks[block])
