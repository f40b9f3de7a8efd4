"""A run over a Redis that a scenario mistreats: what the master and its workers say and do
meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from es_queue.protocol.control import ControlClient, ControlRequest
from es_queue.protocol.keys import RQ_WORKERS, VARIABLE, Clocks, RunKeys
from es_queue.user_code import ALLOW
from master.loop.checkpoint import decode
from master.loop.generation_record import REDIS_AWAY
from tests.faults.scenario import RUN, Arena, Row, Stopwatch, finish
from tests.faults.servers import Idling
from tests.integration.processes import BIN, NERVOUS, Seen, Started, clocks_text, flags, wait_for

#: A plain worker whose RQ parent does not look at Redis by itself while its seat is taken.
STEADY = ("--job-monitoring-interval", 300)
Words = tuple[object, ...]


class Trial:
    """A run over one server, and what a scenario asks of it again and again.

    faults: how many are to come, which gives the length of the run; workers: one for each tuple of
    options of ``rq worker``; look: the URL by which a test looks, where that of the run goes
    through something
    """

    def __init__(
        self,
        arena: Arena,
        url: str,
        faults: int = 1,
        *,
        generations: int = 0,
        workers: Sequence[Words] = (STEADY,),
        look: str = "",
        clocks: Clocks = NERVOUS,
    ) -> None:
        self.arena, self.values = arena, {**RUN, "generations": generations or 30 + 12 * faults}
        self.run, self.idling = "trouble", Idling()
        self.url, self.clocks = url, clocks
        self.seen = Seen(arena.client(look or url), self.run)
        known = self.seen.client.scard(RQ_WORKERS)
        self.workers = [self.start_worker(*options) for options in workers]
        if len(workers) > 1:  # or the first would have done it all before the last one joins
            wait_for(
                lambda: self.seen.client.scard(RQ_WORKERS) >= known + len(workers),
                "the workers wait for seats",
            )
        self.master = arena.processes.start(
            *(BIN / "es-master", *flags(self.values), "--run", self.run),
            *("--json", "--redis-url", url),
            **{VARIABLE: clocks_text(clocks)},
        )
        self.seats = [self.seen.joined(one) for one in self.workers]

    def start_worker(self, *options: object) -> Started:
        """A plain rq worker."""
        return self.arena.processes.start(
            *(BIN / "rq", "worker", "--url", self.url, *options),
            **{VARIABLE: clocks_text(self.clocks), ALLOW: os.environ[ALLOW]},
        )

    def ask(self, verb: str) -> None:
        """What a person asks of the run from another terminal."""
        ControlClient(self.seen.client, self.run).send(
            ControlRequest(secrets.token_hex(4), verb, "a person", time.time())
        )

    @property
    def keys(self) -> RunKeys:
        return self.seen.keys

    def closed(self) -> int:
        """Generations that the master has closed, as it says itself."""
        return len(self.master.events("generation"))

    def advance(self, generations: int = 1) -> None:
        """Wait until so many more generations are closed."""
        wanted = self.closed() + generations
        try:
            wait_for(lambda: self.closed() >= wanted, f"{generations} more generations", 60)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; heard {self.notes()}; {self.master.err.read_text()[-500:]}; a "
                f"worker said {self.workers[0].said()[-1500:]}"
            ) from None

    def notes(self) -> list[str]:
        return [one["text"] for one in self.master.events("note")]

    def wait_for_note(self, pattern: str, seconds: float = 40.0) -> re.Match[str]:
        try:
            return wait_for(
                lambda: [one for text in self.notes() if (one := re.search(pattern, text))],
                f"a note of {pattern!r}",
                seconds,
            )[0]
        except AssertionError as error:
            raise AssertionError(f"{error}; heard {self.notes()}") from None

    def frozen_holding(self) -> int:
        """Stop the first worker at a moment at which it holds a block, so that the generation
        cannot close meanwhile.
        """
        return self.seen.freeze_holding(self.seats[0])

    def wait(self, seconds: float) -> None:
        """How long an outage lasts; what the processes take meanwhile is watched."""
        with self.idling.watched(self.arena, self.master):
            time.sleep(seconds)

    def end(self, row: Row, cause: str = REDIS_AWAY) -> Row:
        """The run's own end and counters."""
        finish(row, self.master, self.values)
        row.noticed = recovered(self, cause)
        row.remark = row.remark or str(self.idling) * bool(self.idling.worst)
        return row


def recovered(trial: Trial, cause: str) -> int:
    """How often the run itself says that it recovered from this: its checkpoint when it has ended,
    its progress before.
    """
    summaries = trial.master.events("summary")
    if summaries:
        _, state, _ = decode((trial.arena.folder / summaries[-1]["last_checkpoint"]).read_bytes())
        return int(state.recoveries.get(cause, (0,))[0])
    return int(json.loads(trial.seen.progress().get("recoveries") or "{}").get(cause, (0,))[0])


def again(trial: Trial, row: Row, befall: Callable[[], Any]) -> None:
    """Let it happen as often as the row says, and time how long the run takes until it has closed a
    generation after it.
    """
    for _ in range(row.injected):
        trial.advance()
        watch = Stopwatch()
        befall()
        trial.advance()
        row.seconds.append(watch.seconds())
