"""Two masters for one run: at once, one after the other, one that was thought dead, and standbys
that wait for their turn.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from es_queue.protocol.keys import Clocks
from master.services.private_server import PrivateServer
from tests.faults.scenario import Arena, Row, Stopwatch, scenario
from tests.faults.scenarios.masters import (
    CALLS,
    CLOCKS,
    COUNTED,
    Crashes,
    finish,
    recovered,
    replayed,
)
from tests.faults.scenarios.workers import end
from tests.integration.processes import CARTPOLE, NERVOUS, Seen, Started, flags, wait_for

ENDLESS = {**COUNTED, "generations": 100_000}
#: The same to the bit, in an environment that tests can make, too.
QUIET = {**COUNTED, "env": CARTPOLE["env"]}
RACERS = 3


@scenario("masters started at once for one run", quick=2, full=20, slow=False)
def race(arena: Arena, count: int) -> Row:
    """One wins; the others end with code 4 and have written nothing."""
    row, place = Row("", equal=True, injected=count), Crashes(arena)
    client = arena.client(place.url)
    wait_for(
        lambda: client.scard("rq:workers"), "the worker listens"
    )  # a suspended one would not start
    for number in range(count):
        client.set(
            "rq:suspended", 1
        )  # no worker comes, so that the run cannot end before all have started
        seen, words = Seen(client, f"race-{number}"), [*flags(COUNTED), "--run", f"race-{number}"]
        if number % 2:  # all of them resume what one has left
            place.crash(seen.keys.run, "after publish", 1)
            words = ["--resume", seen.keys.run]
        watch = Stopwatch()
        hosts = [place.host(f"{number}-{racer}") for racer in range(RACERS)]
        racers = [
            arena.processes.master(*words, "--json", url=place.url, clocks=CLOCKS, cwd=host)
            for host in hosts
        ]
        wait_for(
            lambda racers=racers: (
                sum(one.process.poll() is not None for one in racers) == RACERS - 1
            ),
            "one is left",
            60,
        )  # type: ignore[misc]
        row.seconds.append(watch.seconds())
        losers = [one for one in racers if one.process.poll() is not None]
        (winner,) = (one for one in racers if one not in losers)
        token = client.get(seen.keys.epoch)
        client.delete("rq:suspended")
        finish(row, winner)
        own = publications(winner)[
            number % 2 :
        ]  # the first one of a resumed run is its dead master's
        untouched = (
            all(publication.endswith(token.decode()) for publication in own)
            and client.get(seen.keys.epoch) == token
        )
        silent = not any(one.events("generation") for one in losers)
        row.noticed += [one.wait() for one in losers] == [4] * (RACERS - 1) and untouched and silent
    row.remark = f"{RACERS} at once each time; seconds until only one is left"
    return row


def publications(master: Started) -> list[str]:
    """The publications that a master has closed."""
    return [one["publication"] for one in master.events("generation")]


@scenario("master paused beyond its lease beside a standby", quick=1, full=10, slow=False)
def paused(arena: Arena, count: int) -> Row:
    """The standby takes the run over; the old master wakes, is refused, and ends with code 4."""
    row, place = Row("", injected=count), Crashes(arena)
    master, seen = arena.started("paused", place.url, ENDLESS, clocks=CLOCKS)
    wait_for(seen.has_reached(1), "generation 1")
    for number in range(count):
        standby = stand_by(place, seen, arena.folder / f"host-{number}")
        master.signal(signal.SIGSTOP)
        watch = Stopwatch()
        wait_for(
            lambda standby=standby: standby.events("generation"),
            "the standby has closed a generation",
        )  # type: ignore[misc]
        row.seconds.append(watch.seconds())
        token = seen.client.get(seen.keys.epoch)
        master.signal(signal.SIGCONT)
        row.noticed += master.wait() == 4 and "another master holds" in master.said()
        assert seen.client.get(seen.keys.epoch) == token, "the old master has taken nothing back"
        assert all(one.endswith(token.decode()) for one in publications(standby)[1:]), (
            "nothing of the old master's came between"
        )
        master = standby
    end(row, master, QUIET)
    return row


def stand_by(place: Crashes, seen: Seen, folder: Path, clocks: Clocks = CLOCKS) -> Started:
    """A standby on what might be another host: it has a folder of its own, and so no checkpoint on
    disk.
    """
    folder.mkdir()
    words = ("--standby", seen.keys.run, "--run-dir", folder / "run", "--json")
    standby = place.arena.processes.master(*words, url=place.url, clocks=clocks)
    wait_for(lambda: "standing by:" in standby.said(), "it stands by")
    return standby


@scenario("master killed, resumed on another host without its disk", quick=1, full=5)
def elsewhere(arena: Arena, count: int) -> Row:
    """The open generation is taken over under its own name, with the results that it has
    already.
    """
    row, place = Row("", equal=True, injected=count), Crashes(arena)
    quiet, again = place.quiet(), 0
    for number in range(count):
        seen = Seen(arena.client(place.url), f"elsewhere-{number}")
        place.crash(seen.keys.run, "mid-collect", CALLS["mid-collect"](number))
        publication = seen.progress()["publication"]
        watch = Stopwatch()
        master = place.resumed(seen.keys.run, "--run-dir", arena.folder / f"elsewhere-{number}")
        wait_for(lambda master=master: master.events("generation"), "a generation is closed")  # type: ignore[misc]
        row.seconds.append(watch.seconds())
        assert publications(master)[0] == publication
        finish(row, master)
        again += replayed(place.played(), quiet)
        row.noticed += recovered(seen, "taken-over")
    assert again <= 2 * count, (
        f"{again} episodes were played again, but one pair was in flight each time"
    )
    row.remark = f"{again} episodes played again"
    return row


@scenario("master killed beside several standbys", quick=2, full=5)
def several(arena: Arena, count: int) -> Row:
    """One of them takes over each time; the others go on waiting, and end with the run."""
    row, place = Row("", injected=count), Crashes(arena)
    master, seen = arena.started("several", place.url, ENDLESS, clocks=CLOCKS)
    wait_for(seen.has_reached(1), "generation 1")
    waiting = [
        stand_by(place, seen, arena.folder / f"host-{number}") for number in range(count + 1)
    ]
    for _ in range(count):
        master.signal(signal.SIGKILL)
        watch = Stopwatch()
        (master,) = wait_for(
            lambda: [one for one in waiting if len(one.events("generation")) > 1],
            "a standby has taken over and published",
            120,
        )
        row.seconds.append(watch.seconds())
        waiting.remove(master)
    end(row, master, QUIET)
    assert [one.wait() for one in waiting] == [0] and not waiting[0].events(), waiting[0].said()
    row.noticed = recovered(seen, "taken-over")
    return row


@scenario("Redis away for longer than the lease, beside a standby", quick=1, full=5)
def away(arena: Arena, count: int) -> Row:
    """The lease lapses for everybody, so nobody jumps: its master goes on."""
    row = Row("", injected=count)
    server = PrivateServer(arena.folder / "private")
    server.start()
    arena.stack.callback(server.stop)
    place = Crashes(arena, server.url)
    master, seen = arena.started("away", place.url, ENDLESS, clocks=NERVOUS)
    wait_for(seen.has_reached(1), "generation 1")
    standby = stand_by(place, seen, arena.folder / "host", NERVOUS)
    for _ in range(count):
        closed = seen.generation()
        os.kill(int(seen.client.info("server")["process_id"]), signal.SIGKILL)
        watch = Stopwatch()
        wait_for(lambda watch=watch: watch.seconds() > 1.5 * NERVOUS.lease, "the lease is over")  # type: ignore[misc]
        wait_for(server.watch, "its end is noticed")
        wait_for(lambda: server.watch() == [] and server.is_alive(), "it is started again")
        watch = Stopwatch()
        wait_for(seen.has_reached(closed + 2), "the run goes on")
        row.seconds.append(watch.seconds())
    end(row, master, QUIET)
    assert standby.wait() == 0 and not standby.events(), standby.said()
    row.noticed = recovered(seen, "redis-away")
    row.remark = "seconds from the moment at which Redis answers again"
    return row


@scenario("FLUSHALL beside a standby", quick=1, full=5)
def flushed(arena: Arena, count: int) -> Row:
    """A lease that was lost with all the rest is its master's still, which may be at work on
    something for a while.
    """
    row, place = Row("", injected=count), Crashes(arena)
    master, seen = arena.started("flushed", place.url, ENDLESS, clocks=NERVOUS)
    wait_for(seen.has_reached(1), "generation 1")
    standby = stand_by(place, seen, arena.folder / "host", NERVOUS)
    for _ in range(count):
        closed = seen.generation()
        master.signal(signal.SIGSTOP)
        seen.client.flushall()
        watch = Stopwatch()
        wait_for(
            lambda watch=watch: watch.seconds() > NERVOUS.lease / 2,
            "the standby has looked a few times",
        )  # type: ignore[misc]
        master.signal(signal.SIGCONT)
        watch = Stopwatch()
        wait_for(seen.has_reached(closed + 2), "the run goes on")
        row.seconds.append(watch.seconds())
    end(row, master, QUIET)
    assert standby.wait() == 0 and not standby.events(), standby.said()
    row.noticed = recovered(seen, "redis-lost")
    return row
