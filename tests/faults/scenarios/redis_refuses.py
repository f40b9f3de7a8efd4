"""Redis is there and does not serve: frozen, full, without a place for us. The run waits and says
why. (Each other refusal that passes is tested in ``tests/contract/test_refused_replies.py``.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from master.loop.generation_record import REDIS_AWAY
from tests.faults.scenario import Arena, Row, Stopwatch, scenario
from tests.faults.servers import FORGETFUL, KEPT, Server
from tests.faults.trial import STEADY, Trial, again, recovered
from tests.integration.processes import wait_for

AWAY = r"^Redis does not answer; trying again$"
REFUSES = r"^Redis refuses commands \(.*"
#: How long Redis does not serve at least; the master speaks of it after 2 s.
SECONDS = 4.0


def unserved(
    trial: Trial,
    row: Row,
    begin: Callable[[], Any],
    end: Callable[[], Any],
    note: str,
    seconds: float = SECONDS,
) -> Row:
    """The server does not serve for a while, again and again, at first until the master says so."""

    def befall() -> None:
        begin()
        trial.wait(seconds)
        trial.wait_for_note(note)
        end()

    again(trial, row, befall)
    return trial.end(row)


@scenario("Redis frozen for 8 s, more than the socket timeout", full=3, needs="redis-server")
def frozen_long(arena: Arena, count: int) -> Row:
    row, server = Row("", injected=count), Server(arena, *FORGETFUL).start()
    return unserved(Trial(arena, server.url, count), row, server.freeze, server.thaw, AWAY, 8.0)


@scenario("Redis out of memory for 4 s (maxmemory below what is used)", slow=False)
def out_of_memory(arena: Arena, count: int) -> Row:
    trial = Trial(arena, arena.server(), count)
    client = trial.seen.client
    return unserved(
        trial,
        Row("", injected=count),
        lambda: client.config_set("maxmemory", 1),
        lambda: client.config_set("maxmemory", 0),
        REFUSES + "maxmemory",
    )


@scenario("Redis accepts no further client for 4 s (maxclients)")
def too_many_clients(arena: Arena, count: int) -> Row:
    trial = Trial(arena, arena.server(), count)
    client = trial.seen.client

    def begin() -> None:
        client.config_set("maxclients", 1)
        client.client_kill_filter(_type="normal", skipme=True)

    return unserved(
        trial,
        Row("", injected=count),
        begin,
        lambda: client.config_set("maxclients", 10_000),
        REFUSES + "max number of clients",
    )


# --- what RQ does to plain workers meanwhile

GONE = (
    r"^(\d+) of (\d+) workers did not return after the Redis outage .*Restart=always.*rq "
    r"worker-pool"
)


@scenario(
    "plain workers that RQ itself ends while Redis is away", quick=1, full=4, needs="redis-server"
)
def ended_by_rq(arena: Arena, count: int) -> Row:
    """Their parents ask Redis each second, one steady worker's does not; its seat rides the outage
    out. The run is paused meanwhile, so that it is not over before the master has called the roll.
    """
    row, server = Row("", injected=count), Server(arena, *KEPT).start()
    nervous = ("--job-monitoring-interval", 1)
    trial = Trial(arena, server.url, count, workers=(*[nervous] * count, STEADY))
    wait_for(
        lambda: trial.seen.progress()["workers"] == str(count + 1), "the master knows them all"
    )
    trial.ask("pause")
    wait_for(lambda: trial.seen.progress()["state"] == "paused", "the run is paused")
    watch = Stopwatch()
    server.kill()
    for worker in trial.workers[:-1]:
        worker.wait(30)
    server.start()
    row.noticed = int(trial.wait_for_note(GONE)[1])
    row.seconds.append(watch.seconds())
    assert trial.workers[-1].process.poll() is None
    trial.ask("continue")
    noticed = row.noticed
    trial.end(row)
    row.noticed, row.remark = (
        noticed,
        "the master names them and their hosts, and suggests a remedy",
    )
    assert recovered(trial, REDIS_AWAY) == 1
    return row
