"""Networks that are slow, reset or silent: slower, never wrong."""

from __future__ import annotations

from statistics import median
from typing import Any

from master.loop.generation_record import REDIS_AWAY, WORKER_DIED
from tests.faults.proxy import Proxy
from tests.faults.scenario import Arena, Row, Stopwatch, scenario
from tests.faults.trial import STEADY, Trial, again, recovered
from tests.integration.processes import CLOCKS, NERVOUS, wait_for


class Wire:
    """A server, and a trial that reaches it through a proxy."""

    def __init__(self, arena: Arena, faults: int, **more: Any) -> None:
        self.url = arena.server()
        self.proxy = Proxy(self.url)
        arena.stack.callback(self.proxy.close)
        self.trial = Trial(arena, self.proxy.url, faults, look=self.url, **more)


# --- slow


@scenario("network: 200 ms from each request to its reply", full=3)
def latency(arena: Arena, count: int) -> Row:
    """Generations on a bad line; the master's own records show that they took longer than on a good
    one.
    """
    row, wire = Row("", injected=count), Wire(arena, count, clocks=CLOCKS)
    trial, slowed = wire.trial, list[int]()
    for _ in range(count):
        trial.advance(2)
        wire.proxy.latency = 0.1
        trial.advance()  # it may have begun on a good connection
        slowed.append(trial.closed())
        watch = Stopwatch()
        trial.advance()
        row.seconds.append(watch.seconds())
        wire.proxy.latency = 0
    trial.end(row)
    took = {
        one["generation"]: (one["seconds_wait"] or 0) + (one["seconds_publish"] or 0)
        for one in trial.master.events("generation")
    }
    usual = median(seconds for generation, seconds in took.items() if generation not in slowed)
    row.noticed = sum(took[generation] > usual for generation in slowed)
    row.remark = f"seconds of one generation, {usual:.2f} on a good connection"
    return row


# --- broken


@scenario("network: every connection reset (RST), again and again", quick=3, full=30, slow=False)
def resets(arena: Arena, count: int) -> Row:
    """Each while the master waits for an answer: a connection that dies between two commands is
    made anew unnoticed.
    """
    wire = Wire(arena, 1 + count // 4 * 3)

    def befall() -> None:
        told = recovered(wire.trial, REDIS_AWAY)
        wire.proxy.before(b"BLPOP", act=wire.proxy.reset)
        wait_for(
            lambda: recovered(wire.trial, REDIS_AWAY) > told, "the reset is noticed"
        )  # two within a second are one

    row = Row("", injected=count)
    again(wire.trial, row, befall)
    return wire.trial.end(row)


# --- silent

#: Words of a worker's answer.
GIVE = (b"EVALSHA", b":claims:", b"!:epoch")


@scenario("network: half-open for good for a worker that holds a block", full=5)
def half_open_for_good(arena: Arena, count: int) -> Row:
    """Silent from its answer on: the master takes the block from it when its beat has lapsed."""
    row, url = Row("", injected=count), arena.server()
    trial = Trial(arena, url, count)
    for _ in range(count):
        proxy = Proxy(url)
        arena.stack.callback(proxy.close)
        lonely = trial.seen.joined(arena.processes.worker(proxy.url, *STEADY, clocks=NERVOUS))
        proxy.before(*GIVE, act=lambda proxy=proxy: setattr(proxy, "frozen", True))  # type: ignore[misc]
        wait_for(lambda proxy=proxy: proxy.frozen, "it answers")  # type: ignore[misc]
        watch = Stopwatch()
        wait_for(lambda lonely=lonely: not trial.seen.claims(lonely), "its block is taken from it")  # type: ignore[misc]
        row.seconds.append(watch.seconds())
    return trial.end(row, WORKER_DIED)
