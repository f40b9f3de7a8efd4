"""Redis goes away and comes back: with its data, without, with less than it had. The run notices
and ends with the same bits.
"""

from __future__ import annotations

import os
import signal

from master.loop.generation_record import REDIS_LOST
from tests.faults.proxy import Proxy
from tests.faults.scenario import Arena, Row, scenario
from tests.faults.servers import FORGETFUL, KEPT, Server, Witness
from tests.faults.trial import STEADY, Trial, again, recovered
from tests.integration.processes import NERVOUS, wait_for

#: Longer than a lease with the beats of NERVOUS clocks, and shorter than what a seat waits.
LONG = NERVOUS.lease + 2 * NERVOUS.beat_ttl

# --- away, and back with everything


def away(arena: Arena, count: int, seconds: float) -> Row:
    row, server = Row("", injected=count), Server(arena, *KEPT).start()
    trial = Trial(arena, server.url, count, workers=(STEADY, STEADY))

    def befall() -> None:
        server.kill()
        trial.wait(seconds) if seconds else None
        server.start()

    again(trial, row, befall)
    return trial.end(row)


@scenario("Redis killed and started again with its data, at once", needs="redis-server", slow=False)
def restarted_at_once(arena: Arena, count: int) -> Row:
    return away(arena, count, 0.0)


@scenario(
    "Redis away for longer than the lease and the beats, back with its data",
    needs="redis-server",
)
def away_long(arena: Arena, count: int) -> Row:
    return away(arena, count, LONG)


# --- back without its data


@scenario("Redis killed and started again empty", needs="redis-server", slow=False)
def restarted_empty(arena: Arena, count: int) -> Row:
    row, server = Row("", injected=count), Server(arena, *FORGETFUL).start()
    trial = Trial(arena, server.url, count)

    def befall() -> None:
        horse = trial.frozen_holding()
        server.kill()
        server.start()
        os.kill(horse, signal.SIGCONT)

    again(trial, row, befall)
    return trial.end(row, REDIS_LOST)


@scenario("FLUSHALL while a block is played", full=10)
def emptied(arena: Arena, count: int) -> Row:
    row, url = Row("", injected=count), arena.server()
    trial = Trial(arena, url, count)

    def befall() -> None:
        horse = trial.frozen_holding()
        trial.seen.client.flushall()
        os.kill(horse, signal.SIGCONT)

    again(trial, row, befall)
    return trial.end(row, REDIS_LOST)


@scenario("FLUSHALL in the middle of publish: after the parameters, before the script", full=10)
def emptied_in_publish(arena: Arena, count: int) -> Row:
    row, url = Row("", injected=count), arena.server()
    proxy = Proxy(url)
    arena.stack.callback(proxy.close)
    trial = Trial(arena, proxy.url, count, look=url)

    def befall() -> None:
        caught = proxy.caught
        proxy.before(b"EVALSHA", b'"strategy"', act=trial.seen.client.flushall)
        wait_for(lambda: proxy.caught > caught, "the request is caught")

    again(trial, row, befall)
    return trial.end(row, REDIS_LOST)


@scenario("parameters' key expired or removed", full=10)
def parameters_removed(arena: Arena, count: int) -> Row:
    row, url = Row("", injected=count), arena.server()
    trial = Trial(arena, url, count)
    injected = 0

    def befall() -> None:
        nonlocal injected
        horse = trial.frozen_holding()
        name = trial.keys.parameters(trial.seen.progress()["publication"])
        assert (
            trial.seen.client.pexpire(name, 1) if injected % 2 else trial.seen.client.unlink(name)
        )
        injected += 1
        wait_for(lambda: trial.seen.client.exists(name), "the parameters are there again")
        os.kill(horse, signal.SIGCONT)

    again(trial, row, befall)
    return trial.end(row, REDIS_LOST)


# --- back with less than it had


@scenario(
    "power loss: Redis killed, the tail of its append-only file cut off",
    quick=2,
    full=9,
    needs="redis-server",
)
def power_loss(arena: Arena, count: int) -> Row:
    row, server = Row("", injected=count), Server(arena, *KEPT).start()
    trial = Trial(arena, server.url, count // 2)
    witness = Witness(arena, server.url, trial.run)
    sizes = iter([int(10 * 3.2 ** (9 * one / max(1, count - 1))) for one in range(count)])

    def befall() -> None:
        trial.advance(2)
        server.kill()
        server.cut(next(sizes))
        server.start()

    again(trial, row, befall)
    trial.end(row)
    return went_back(row, witness, recovered(trial, REDIS_LOST))


def went_back(row: Row, witness: Witness, noticed: int) -> Row:
    """No name for two sets of parameters, and never back without the master's notice."""
    assert witness.names_are_unique(), witness.digests
    assert noticed >= witness.backwards, (
        f"it went back {witness.backwards} times, {noticed} were noticed"
    )
    row.remark = (
        f"{noticed} times older or partly lost, each noticed; {len(witness.digests)} "
        "publications seen, no name twice"
    )
    return row


@scenario("failover to a replica that lacks the tail", needs="redis-server")
def failover(arena: Arena, count: int) -> Row:
    row = Row("", injected=count)
    servers = [Server(arena, *FORGETFUL, name=f"redis-{one}").start() for one in range(2)]
    proxy = Proxy(servers[0].url)
    arena.stack.callback(proxy.close)
    trial = Trial(arena, proxy.url, count)
    witness = Witness(arena, proxy.url, trial.run)

    def befall() -> None:
        old, new = servers
        follow(new, old)
        new.client.replicaof("NO", "ONE")
        trial.advance(2)
        old.client.client_pause(
            2000
        )  # all of its clients hang, and so does what makes it a replica later
        proxy.upstream = new.url
        proxy.reset()
        servers.reverse()

    again(trial, row, befall)
    trial.end(row, REDIS_LOST)
    return went_back(row, witness, row.noticed)


def follow(replica: Server, master: Server) -> None:
    """Make it a replica that has all of its master's data."""
    replica.client.replicaof("127.0.0.1", master.port)
    wait_for(
        lambda: replica.client.info("replication").get("master_link_status") == "up",
        "the replica has its master's data",
    )
