"""Networks that are slow, thin, sliced, reset, silent or deaf: slower, never wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from master.loop.recovery_statistics import REDIS_AWAY, WORKER_DIED
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


def slow(arena: Arena, count: int, **settings: float) -> Row:
    """Generations on a bad line; the master's own records show that they took longer than on a good
    one.
    """
    row, wire = Row("", injected=count), Wire(arena, count, clocks=CLOCKS)
    trial, slowed = wire.trial, list[int]()
    for _ in range(count):
        trial.advance(2)
        for name, value in settings.items():
            setattr(wire.proxy, name, value)
        trial.advance()  # it may have begun on a good connection
        slowed.append(trial.closed())
        watch = Stopwatch()
        trial.advance()
        row.seconds.append(watch.seconds())
        for name in settings:
            setattr(wire.proxy, name, 0)
    trial.end(row)
    took = {
        one["generation"]: (one["seconds_wait"] or 0) + (one["seconds_publish"] or 0)
        for one in trial.master.events("generation")
    }
    usual = median(seconds for generation, seconds in took.items() if generation not in slowed)
    row.noticed = sum(took[generation] > usual for generation in slowed)
    row.remark = f"seconds of one generation, {usual:.2f} on a good connection"
    return row


@scenario("network: 200 ms from each request to its reply", full=3)
def latency(arena: Arena, count: int) -> Row:
    return slow(arena, count, latency=0.1)


@scenario("network: 100 kB/s", quick=0, full=3)
def bandwidth(arena: Arena, count: int) -> Row:
    return slow(arena, count, bandwidth=100_000)


@scenario("network: everything arrives in slices of 3 bytes, 0.3 ms each", quick=0, full=3)
def sliced(arena: Arena, count: int) -> Row:
    return slow(arena, count, slice=3, latency=0.0003)


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


@scenario("network: each connection closed after 30 kB", full=5)
def limited(arena: Arena, count: int) -> Row:
    row, wire = Row("", injected=count), Wire(arena, 2 * count)

    def befall() -> None:
        limited = wire.proxy.limited
        wire.proxy.limit = 30_000
        wait_for(lambda: wire.proxy.limited >= limited + 5, "five connections are closed", 60)
        wire.proxy.limit = 0

    again(wire.trial, row, befall)
    wire.trial.end(row)
    row.remark = (
        f"{wire.proxy.limited} connections closed, of master and worker; {row.noticed} noticed "
        "by the master"
    )
    row.noticed = min(count, row.noticed)
    return row


# --- silent

#: Words of a worker's answer.
GIVE = (b"EVALSHA", b":bell", b"!:epoch")


@scenario("network: half-open (silent, no RST) for 3 s", full=3)
def half_open(arena: Arena, count: int) -> Row:
    """Shorter than the socket timeout: nothing fails, the master's record of the generation has the
    seconds.
    """
    row, wire = Row("", injected=count), Wire(arena, count)

    def befall() -> None:
        wire.proxy.frozen = True
        wire.trial.wait(3.0)
        wire.proxy.frozen = False

    again(wire.trial, row, befall)
    wire.trial.end(row)
    row.noticed = sum(
        (one["seconds_wait"] or 0) + (one["seconds_publish"] or 0) > 2.5
        for one in wire.trial.master.events("generation")
        if one["generation"] > 0  # the first one waits for its worker
    )
    return row


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


# --- deaf

#: Words that only this request has.
MASTERS = {
    "publish": (b"EVALSHA", b":iteration"),
    "issue": (b"EVALSHA", b":todo", b"!:workers"),
    "look": (b"EVALSHA", b":todo", b":workers", b"recoveries"),
}
WORKERS = {"answer": GIVE, "claim": (b"BLMOVE", b":claims:")}


def deaf(
    arena: Arena,
    count: int,
    verbs: Mapping[str, tuple[bytes, ...]],
    noticed: Callable[[Trial], int],
) -> Row:
    """The server carries it out, its reply never arrives: the first such request from now, the
    second, and so on.
    """
    row, wire = (
        Row("", injected=len(verbs) * count),
        Wire(arena, count, generations=12 + 30 * count),
    )
    trial, proxy = wire.trial, wire.proxy
    for skip in range(count):
        for name, words in verbs.items():
            trial.advance()
            before, caught, watch = noticed(trial), proxy.caught, Stopwatch()
            proxy.lose_reply_to(*words, skip=skip)
            wait_for(lambda caught=caught: proxy.caught > caught, f"{name} is sent")  # type: ignore[misc]
            trial.advance()
            row.seconds.append(watch.seconds())
            wait_for(
                lambda before=before: noticed(trial) > before,
                f"the lost reply to {name} is noticed",
            )  # type: ignore[misc]
    trial.end(row)
    return row


@scenario(
    "network: the reply to publish, issue, look is lost, the n-th of each", full=5, slow=False
)
def deaf_master(arena: Arena, count: int) -> Row:
    return deaf(arena, count, MASTERS, lambda trial: recovered(trial, REDIS_AWAY))


@scenario(
    "network: the reply to an answer, a claim is lost, the n-th of each",
    quick=2,
    full=10,
)
def deaf_worker(arena: Arena, count: int) -> Row:
    """The worker itself tells of it, in what it says of itself in Redis."""
    told = list[int]()

    def outages(trial: Trial) -> int:
        told.append(sum(int(about.get("outages", 0)) for about in trial.seen.workers().values()))
        return told[-1]

    row = deaf(arena, count, WORKERS, outages)
    row.noticed = told[-1]
    return row
