"""Answers that are odd or hostile, that come too late, or that come faster than the
master reads.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from es_queue.protocol.messages import Answer, publication_generation
from tests.faults import worlds
from tests.faults.scenario import RUN, Arena, Row, Stopwatch, finish, scenario
from tests.faults.scenarios.environments import held, laid_out
from tests.faults.scenarios.masters import recovered
from tests.integration.processes import CARTPOLE, CLOCKS, NERVOUS, Seen, Started, wait_for

PATIENT = replace(CLOCKS, beat_ttl=10.0)
MEGABYTE = 2**20


class Inlet:
    """The results stream of the open publication, with an answer in it that counted, while the only
    worker is frozen.
    """

    def __init__(self, arena: Arena, run: str, **more: Any) -> None:
        self.url = arena.server()
        # Seldom a run is over before its worker was caught between a claim and an answer: then
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
            self.publication = self.seen.progress()["publication"]
            self.key = self.seen.keys.results(self.publication)
            entries = [
                fields[b"answer"]
                for _, fields in self.client.xrange(self.key)
                if b"answer" in fields
            ]
            answers = [one for one in map(Answer.decode, entries) if one.kind == "train"]
            if answers and publication_generation(self.publication):
                self.genuine = answers[0]
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

    def thaw(self) -> None:
        os.kill(self.horse, signal.SIGCONT)

    def push(self, payloads: Iterator[bytes]) -> int:
        """XADD each of them; how many that were."""
        count, pipeline = 0, self.client.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(self.key, {"answer": payload}, nomkstream=True)
            count += 1
            if count % 1000 == 0:
                pipeline.execute()
        pipeline.execute()
        return count

    def refused(self) -> Counter[str]:
        found = self.client.hgetall(self.seen.keys.refused)
        return Counter({name.decode(): int(value) for name, value in found.items() if int(value)})


def odd(genuine: Answer, publication: str) -> dict[str, list[tuple[str, bytes]]]:
    """By the reason for which each must be refused: what it is, and its bytes."""
    result = genuine.results[0]
    generation, token = publication.split(".")
    number, nonce = token.split("-")

    def answer(**changes: Any) -> bytes:
        return replace(genuine, results=(replace(result, **changes),)).encode()

    def of(name: str) -> bytes:
        return replace(genuine, publication=name).encode()

    return {
        "duplicate": [("the same again", genuine.encode())],
        "conflict": [
            ("another reward", answer(fitness=(7.5, 7.5), returns=(7.5, 7.5))),
            ("1e99", answer(fitness=(1e99, 1e99), returns=(1e99, 1e99))),
            ("denormal", answer(fitness=(5e-324, -0.0), returns=(5e-324, -0.0))),
        ],
        "wrong-publication": [
            ("stale", of(f"{int(generation) - 1}.{token}")),
            ("of the future", of(f"{int(generation) + 1}.{token}")),
            ("another master's", of(f"{generation}.{int(number) + 1}-{nonce}")),
            ("another run's", of(f"{generation}.{number}-{'0' * 8}")),
        ],
        "unknown-slot": [("never issued", answer(slot=10**6)), ("slot 2**31", answer(slot=2**31))],
        "wrong-index": [
            ("noise index 0", answer(noise_index=0 if result.noise_index else 1)),
            ("another seed", answer(seed=result.seed ^ 1)),
        ],
        "wrong-shape": [("no moments", answer(moments=()))],
        "wrong-return": [("1e308", answer(returns=(1e308, -1e308)))],
        "undecodable": [
            ("NaN", answer(fitness=(float("nan"), 1.0))),
            ("Inf", answer(returns=(float("inf"), 1.0))),
            ("negative length", answer(steps=(-1, 5))),
            ("huge length", answer(steps=(2**50, 5))),
            ("negative slot", answer(slot=-1)),
            ("True for a number", replace(genuine, seconds=True).encode()),
            ("2**63 - 1 for an index", answer(noise_index=2**63 - 1)),
            ("half an answer", genuine.encode()[:-7]),
            ("nothing", b""),
            ("noise", os.urandom(64)),
        ],
    }


@scenario(
    "odd results: duplicate, conflicting, stale, future, foreign, never issued, NaN, torn",
    quick=2300,
    full=23000,
    slow=False,
)
def odd_answers(arena: Arena, count: int) -> Row:
    inlet = Inlet(arena, "odd")
    kinds = odd(inlet.genuine, inlet.publication)
    each = count // sum(map(len, kinds.values()))
    expected = {reason: each * len(payloads) for reason, payloads in kinds.items()}
    row = Row("", injected=sum(expected.values()))
    before, length, held_before = (
        inlet.refused(),
        inlet.client.xlen(inlet.key),
        held(inlet.master.pid),
    )
    watch = Stopwatch()
    inlet.push(
        payload for payloads in kinds.values() for _, payload in payloads for _ in range(each)
    )
    wait_for(lambda: sum((inlet.refused() - before).values()) >= row.injected, "all are refused")
    wait_for(lambda: inlet.client.xlen(inlet.key) == length, "what was refused is deleted")
    row.seconds.append(watch.seconds())
    counted = inlet.refused() - before
    row.noticed = sum(min(counted[reason], number) for reason, number in expected.items())
    assert sum(counted.values()) == row.noticed, counted
    row.remark = (
        f"{each} of each of {sum(map(len, kinds.values()))}, counted by {len(expected)} reasons; "
        f"master {held(inlet.master.pid) - held_before:+.1f} MB"
    )
    inlet.thaw()
    return finish(row, inlet.master)


@scenario("flood of results while the master sleeps", quick=10_000, full=100_000)
def flood(arena: Arena, count: int) -> Row:
    """The master is stopped (10 s in the full run) while a flood comes in."""
    inlet, row = Inlet(arena, "flood"), Row("", injected=count)
    asleep = 10.0 if count >= 100_000 else 1.0
    before = inlet.refused()
    memory = [used(inlet), held(inlet.master.pid)]
    inlet.master.signal(signal.SIGSTOP)
    slept = Stopwatch()
    one = replace(inlet.genuine.results[0], fitness=(3.5, 3.5))
    payloads = (inlet.genuine.encode(), replace(inlet.genuine, results=(one,)).encode())
    assert inlet.push(payloads[number % 2] for number in range(count)) == count
    peak = used(inlet)
    wait_for(lambda: slept.seconds() >= asleep, "the master has slept")
    inlet.master.signal(signal.SIGCONT)
    watch = Stopwatch()
    wait_for(
        lambda: (
            inlet.client.xlen(inlet.key) < 1000
            and sum((inlet.refused() - before).values()) >= count
        ),
        "the flood is drained",
        120,
    )
    row.seconds.append(watch.seconds())
    counted = inlet.refused() - before
    row.noticed = counted["duplicate"] + counted["conflict"]
    inlet.thaw()
    finish(row, inlet.master)
    row.remark = (
        f"Redis {memory[0]:.1f} MB, {peak:.1f} with the flood, {used(inlet):.1f} at the end; "
        f"master {memory[1]:.0f} MB, "
        f"at most {most_held(inlet.master) or memory[1]:.0f}; {count / row.seconds[0]:,.0f} a "
        "second drained"
    )
    assert used(inlet) < memory[0] + 4
    return row


def used(inlet: Inlet) -> float:
    """Megabytes of data in Redis."""
    return float(inlet.client.info("memory")["used_memory"]) / MEGABYTE


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
