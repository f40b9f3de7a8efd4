"""SIGTERM and SIGINT to each process, once and twice: what was begun goes back, and the second ends
at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.faults.scenario import Arena, Row, Stopwatch, scenario
from tests.faults.scenarios.workers import ENDLESS, STEADY, end, left_in_rq
from tests.integration.processes import NERVOUS, Started, wait_for

#: RQ takes a second signal within a second of the first for the same.
SECOND_SECONDS = 1.2


class Signalled:
    """A run without a worker that stays, so that nothing goes on but what a test wants."""

    def __init__(self, arena: Arena) -> None:
        self.arena, self.url = arena, arena.server()
        self.master, self.seen = arena.started("signals", self.url, ENDLESS, clocks=STEADY)
        self.deaths = 0

    # --- each: whether what was done was noticed, and the seconds until the process was gone

    def worker_once(self, number: signal.Signals) -> tuple[bool, float]:
        """The worker leaves in order."""
        victim, seat = self._holding()
        watch = Stopwatch()
        victim.signal(number)
        code = victim.wait()
        return (
            code == 0
            and "left: its RQ worker is stopping" in victim.said()
            and self.seen.claims(seat) == [],
            watch.seconds(),
        )

    def worker_twice(self, number: signal.Signals) -> tuple[bool, float]:
        """RQ kills a horse that does not leave, and ends; the horse's blocks are taken from it when
        its beat lapses.
        """
        victim, seat = self._holding()
        self.seen.freeze_holding(seat)
        victim.signal(number)
        watch = Stopwatch()
        wait_for(lambda: watch.seconds() > SECOND_SECONDS, "the second signal is one of its own")
        watch = Stopwatch()
        victim.signal(number)
        code, seconds = victim.wait(), watch.seconds()
        wait_for(lambda: not self.seen.claims(seat), "its claims are taken from it")
        self.deaths += 1
        return code == 0, seconds

    def horse_once(self, number: signal.Signals) -> tuple[bool, float]:
        """The horse leaves in order, and its RQ worker takes the next seat."""
        victim, seat = self._holding()
        watch = Stopwatch()
        os.kill(self.seen.horse(seat), number)
        wait_for(lambda: "left: SIGTERM" in victim.said(), "it has left")
        seconds = watch.seconds()
        wait_for(lambda: self.seen.seat_of(victim) not in ("", seat), "its worker has joined anew")
        victim.signal(signal.SIGTERM)
        return victim.wait() == 0, seconds

    def both_once(self, number: signal.Signals) -> tuple[bool, float]:
        """A service manager signals the whole group."""
        victim, seat = self._holding()
        watch = Stopwatch()
        os.kill(self.seen.horse(seat), number)
        victim.signal(number)
        code = victim.wait()
        return code == 0 and "left: " in victim.said() and self.seen.claims(
            seat
        ) == [], watch.seconds()

    def master_once(self, number: signal.Signals) -> tuple[bool, float]:
        """It stops between two looks at the results, says how to go on, and its workers leave."""
        victim, _ = self._holding()
        watch = Stopwatch()
        self.master.signal(number)
        noticed = (
            self.master.wait() == 130 and self.master.events("summary")[-1]["state"] == "stopped"
        )
        seconds = watch.seconds()
        wait_for(lambda: not self.seen.workers(), "its worker has left")
        assert left_in_rq(self.seen) == [] and self.seen.progress()["state"] == "stopped"
        victim.signal(signal.SIGTERM)
        victim.wait()
        self._resume()
        return noticed, seconds

    def master_twice(self, _: signal.Signals) -> tuple[bool, float]:
        """Two signals before it could look at either: it ends at once."""
        watch = Stopwatch()
        self.master.signal(signal.SIGSTOP)
        self.master.signal(signal.SIGINT)
        self.master.signal(signal.SIGTERM)
        self.master.signal(signal.SIGCONT)
        noticed = self.master.wait() == 130 and not self.master.events("summary")
        seconds = watch.seconds()
        assert self.seen.progress()["state"] == "running"
        self._resume()
        return noticed, seconds

    def _holding(self) -> tuple[Started, str]:
        """A worker that has closed a generation, at a moment at which it holds a block; and its
        seat.
        """
        before = self.seen.generation()
        victim = self.arena.processes.worker(self.url, clocks=NERVOUS)
        seat = self.seen.joined(victim)
        wait_for(
            self.seen.has_reached(before + 1),
            "it closes a generation: what befell the one before is counted for good",
        )
        wait_for(lambda: self.seen.claims(seat), "it claims")
        return victim, seat

    def _resume(self) -> None:
        closed = self.seen.generation()
        self.master = self.arena.processes.master(
            "--resume", "signals", "--json", url=self.url, clocks=STEADY
        )
        wait_for(
            lambda: self.master.events("started") and self.seen.progress()["state"] == "running",
            "it is resumed",
        )
        assert self.seen.generation() == closed


Kind = tuple[Callable[[Signalled, signal.Signals], tuple[bool, float]], signal.Signals]
KINDS: tuple[Kind, ...] = (
    (Signalled.worker_once, signal.SIGTERM),
    (Signalled.worker_once, signal.SIGINT),
    (Signalled.worker_twice, signal.SIGTERM),
    (Signalled.worker_twice, signal.SIGINT),
    (Signalled.horse_once, signal.SIGTERM),
    (Signalled.both_once, signal.SIGTERM),
    (Signalled.master_once, signal.SIGTERM),
    (Signalled.master_once, signal.SIGINT),
    (Signalled.master_twice, signal.SIGINT),
)


@scenario(
    "SIGTERM, SIGINT, once and twice, to worker, horse and master",
    quick=len(KINDS),
    full=4 * len(KINDS),
)
def signals(arena: Arena, count: int) -> Row:
    row, place = Row("", injected=count), Signalled(arena)
    for number in range(count):
        play, which = KINDS[number % len(KINDS)]
        noticed, seconds = play(place, which)
        assert noticed, (
            f"{play.__name__} {which.name}; the master said: {place.master.said()[-2000:]}"
        )
        row.noticed += noticed
        row.seconds.append(seconds)
    arena.processes.worker(place.url, clocks=NERVOUS)
    end(row, place.master)
    recovered = place.master.events("generation")[-1]["recovered"]
    assert recovered == place.deaths, (recovered, place.deaths)
    assert left_in_rq(place.seen) == []
    row.remark = "seconds until the process was gone"
    return row
