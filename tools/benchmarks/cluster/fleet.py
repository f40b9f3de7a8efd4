"""One process of simulated workers: ``python -m tools.benchmarks.cluster.fleet``. Its Order comes
as JSON on its input, and what it saw goes out as JSON.

A worker sends the real one's commands in the real one's order over real connections, and waits as
long as its episodes last. What a real worker computes beside its episodes is left out.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import ACTIVE_STATES, Clocks, RunKeys
from es_queue.protocol.messages import TRAIN, Block, Task
from es_queue.protocol.store import PIECE
from es_queue.slot_plan import max_slots
from es_queue.slots import Slots, Span, Table, spans_from_bytes, worker_mark
from master.run.setup import Setup, prepare_run
from tools.benchmarks.cluster.connections import Link, Loop, Request, Then
from tools.benchmarks.cluster.durations import Durations, Seconds
from tools.benchmarks.cluster.wire_format import ANSWER, Commands, Reply
from tools.benchmarks.micro.drain import honest_results
from workers.heartbeat import worker_info
from workers.serving import MAX_WAIT, MIN_SHARED_BYTES

ARRIVAL_SECONDS, START_SECONDS = 1.0, 60.0
ACTIVE = {None, *(state.encode() for state in ACTIVE_STATES)}


@dataclass(frozen=True)
class Order:
    """What one process simulates.

    first, workers: numbers of its workers; lives: connections that their beats and polls share
    """

    url: str
    socket: str
    run: str
    first: int
    workers: int
    lives: int
    per_host: int
    durations: str
    seed: int = 0


class Publication:
    """An open publication: its table, the records of its rows, and what happened.

    seconds: of each training slot; times are of the monotonic clock
    """

    def __init__(self, slots: Slots, seconds: Seconds) -> None:
        self.slots, self.seconds = slots, seconds
        self._results: Table = np.empty(0, slots.shape.result)
        self._moments: Table = np.empty(0, slots.shape.moments)
        self.first_claim, self.last_answer = float("inf"), 0.0
        self.answers = self.late = 0
        self.played = 0.0

    def grow_to(self, spans: Sequence[Span]) -> None:
        """Take the rows that these spans have in addition."""
        before = len(self.slots)
        self.slots.add(spans[len(self.slots.spans) :])
        rows = np.arange(before, len(self.slots))
        results, moments = honest_results(self.slots, rows, np.zeros(len(rows), np.int64))
        self._results = np.concatenate([self._results, results])
        self._moments = np.concatenate([self._moments, moments])

    def records(self, block: Block, mark: int) -> tuple[bytes, bytes]:
        results = self._results[block.start : block.stop].copy()
        results["worker"] = mark
        first, last = np.searchsorted(self._moments["row"], [block.start, block.stop])
        return results.tobytes(), self._moments[first:last].tobytes()

    def length(self, block: Block) -> float:
        """Seconds of the block's episodes. The unperturbed policy plays one of a pair's two."""
        numbers = self.slots.table["number"][block.start : block.stop]
        total = float(self.seconds[numbers].sum())
        return total if block.kind == TRAIN else total / 2


@dataclass
class Host:
    """What the workers of a host share: one copy of large parameters. fetching: the publication
    that one of them fetches
    """

    has: str = ""
    fetching: str = ""
    waiting: list[partial[None]] = field(default_factory=list)


class Fleet:
    """All workers of this process. plays: (began, seconds) of each block that came in time"""

    def __init__(self, setup: Setup, durations: Durations, clocks: Clocks) -> None:
        self.loop, self.clocks = Loop(), clocks
        self._setup, self._durations = setup, durations
        self.publications: dict[str, Publication] = {}
        self.plays: list[tuple[float, float]] = []

    def open(self, task: Task) -> None:
        if task.publication not in self.publications:
            setup, most = self._setup, max_slots(self._setup.config, self._setup.strategy.per_slot)
            slots = Slots(setup.config, setup.strategy, setup.spec, task.generation)
            seconds = self._durations.slots(task.generation, most)
            self.publications[task.publication] = Publication(slots, seconds)
        self.publications[task.publication].grow_to(spans_from_bytes(task.spans))

    def seen(self) -> dict[str, object]:
        names = ("first_claim", "last_answer", "answers", "late", "played")
        return {
            "generations": {
                one.slots.generation: {name: getattr(one, name) for name in names}
                for one in self.publications.values()
                if one.answers
            },
            "plays": self.plays,
            "timers_late": self.loop.late / max(1, self.loop.called),
        }


class Worker:
    """claim → fetch → wait → answer, and beats and polls on a connection that may be shared."""

    def __init__(
        self, fleet: Fleet, name: str, host: Host, link: Link, life: Link, commands: Commands
    ) -> None:
        self._fleet, self._host, self._link, self._life = fleet, host, link, life
        self._commands, self._mark = commands, worker_mark(name)
        self._publication = self._serving = ""
        self._turn = 0
        self._poll = fleet.clocks.leave_poll
        self._last_beat = 0.0

    def begin(self) -> None:
        self._last_beat = time.monotonic()
        self._ask(self._commands.beat, lambda _: self._look())
        self._fleet.loop.after(self._poll, self._live)

    def _ask(self, request: Request, then: Then) -> None:
        self._link.ask(request, then)

    # --- the episodes' thread

    def _look(self) -> None:
        """What it holds already comes first (rule 5)."""
        if not self._fleet.loop.over:
            self._ask(self._commands.held_blocks, lambda replies: self._take(replies[0]))

    def _take(self, held: Sequence[bytes]) -> None:
        if held:
            self._work(Block.decode(held[0]))
        elif not self._fleet.loop.over:
            wait = max(self._fleet.clocks.claim_wait, min(self._poll, MAX_WAIT))
            self._ask(self._commands.claim(wait), self._claimed)

    def _claimed(self, replies: Sequence[Reply]) -> None:
        if replies[0] is None:
            self._look()
        else:
            self._work(Block.decode(replies[0]))

    def _work(self, block: Block) -> None:
        """Fetch the publication if it is new, or has grown; then play."""
        known = self._fleet.publications.get(block.publication)
        is_large = known is not None and known.slots.strategy.size * 4 >= MIN_SHARED_BYTES
        host = self._host
        if self._publication == block.publication or (is_large and host.has == block.publication):
            self._publication = block.publication
            if known is not None and block.stop <= len(known.slots):
                self._play(block)
                return
        elif is_large and host.fetching == block.publication:
            host.waiting.append(partial(self._work, block))
            return
        self._ask(self._commands.task, partial(self._fetched, block))

    def _fetched(self, block: Block, replies: Sequence[Reply]) -> None:
        task = Task.decode(replies[0])
        if task.publication != block.publication:
            self._ask(self._commands.drop(block), lambda _: self._look())
            return
        self._fleet.open(task)
        self._poll = task.poll
        if self._publication == task.publication:
            self._play(block)
        elif 4 * task.size < MIN_SHARED_BYTES:
            self._piece(task, 0, partial(self._play, block))
        elif task.publication in (self._host.has, self._host.fetching):
            self._work(block)
        else:
            self._host.fetching = task.publication
            self._piece(task, 0, partial(self._share, task, block))

    def _piece(self, task: Task, start: int, then: partial[None]) -> None:
        if start < 4 * task.size:
            request = self._commands.parameters(task.publication, start, 4 * task.size)
            self._ask(request, lambda _: self._piece(task, start + PIECE, then))
            return
        self._publication = task.publication
        then()

    def _share(self, task: Task, block: Block) -> None:
        host, waiting = self._host, self._host.waiting
        host.has, host.waiting = task.publication, []
        for then in (partial(self._play, block), *waiting):
            then()

    def _play(self, block: Block) -> None:
        publication, began = self._fleet.publications[block.publication], time.monotonic()
        publication.first_claim = min(publication.first_claim, began)
        seconds = publication.length(block)
        self._serving, self._turn = block.publication, self._turn + 1
        self._fleet.loop.after(seconds, partial(self._answer, self._turn, block, began, seconds))

    def _answer(self, turn: int, block: Block, began: float, seconds: float) -> None:
        if turn != self._turn:  # its publication has closed meanwhile
            return
        publication, self._serving = self._fleet.publications[block.publication], ""
        publication.played += seconds
        records = publication.records(block, self._mark)

        def answered(replies: Sequence[Reply]) -> None:
            status, *held = replies[0]
            publication.late += not status
            if status:
                publication.last_answer = time.monotonic()
                publication.answers += 1
                self._fleet.plays.append((began, seconds))
            self._take(held[0])

        self._ask(self._commands.answer(block, *records), answered)

    # --- the life

    def _live(self) -> None:
        """Beat at the intervals of ``workers.heartbeat``, and read the leave flags."""
        if self._fleet.loop.over:
            return
        clocks, now = self._fleet.clocks, time.monotonic()
        beat = min(max(clocks.beat, 2.5 * self._poll), clocks.beat_ttl / 2)
        if now - self._last_beat + self._poll > beat:
            self._last_beat = now
            self._life.ask(self._commands.alive, lambda _: None)
            self._life.ask(self._commands.beat, lambda _: None)
        flags = self._commands.poll_flags(self._serving)
        self._life.ask(flags, partial(self._obey, self._serving))

    def _obey(self, serving: str, replies: Sequence[Reply]) -> None:
        state, _, newest = replies[0]
        if state not in ACTIVE:
            self._fleet.loop.over = True
            return
        is_replaced = newest not in (None, serving.encode()) and not replies[2]
        if serving and serving == self._serving and is_replaced:  # another's copy was first
            self._turn += 1
            self._serving = ""
            self._ask(self._commands.held_blocks, self._drop)
        self._fleet.loop.after(min(self._poll, self._fleet.clocks.beat_ttl / 2), self._live)

    def _drop(self, replies: Sequence[Reply]) -> None:
        if replies[0]:
            request = self._commands.drop(Block.decode(replies[0][0]))
            self._ask(request, lambda _: self._look())
        else:
            self._look()


def about(number: int, order: Order, told: dict[str, str]) -> dict[str, str]:
    """What a seated worker shows, in about as many bytes."""
    figures = {"block": "train 1000 1003", "late": "0", "blocks": "100", "steps": "1000000"}
    figures |= {"generation": "generation 3", "steps_per_second": "10000", "outages": "0"}
    own = {"host": f"host{number // order.per_host}", "pid": str(number), "backend": "stock"}
    own |= {"rq_name": f"{number:032x}", "python": sys.version.split()[0]}
    return {**told, **own, "numerics": "0" * 32, "noise": "0" * 32, **figures}


def simulate(order: Order) -> dict[str, object]:
    """Serve the run until it ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with client_from_url(order.url) as client:
        deadline = time.monotonic() + START_SECONDS
        while (text := client.get(RunKeys(order.run).config)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("no master has published the run")
            time.sleep(0.05)
        client.script_load(ANSWER)
    clocks, told = Clocks(), worker_info(Clocks())
    setup = prepare_run(RunConfig.from_json(text.decode()), table=NoiseTable.in_memory(2**22))
    fleet = Fleet(setup, Durations(order.durations, order.seed), clocks)
    hosts: dict[int, Host] = {}
    lives = [Link(order.socket) for _ in range(order.lives)]
    for number in range(order.first, order.first + order.workers):
        host, rq_name = number // order.per_host, f"{number:032x}"
        name, link = f"host{host}-{number}-{number:06x}", Link(order.socket)
        commands = Commands(order.run, name, rq_name, about(number, order, told), clocks.beat_ttl)
        life = lives[number % order.lives]
        worker = Worker(fleet, name, hosts.setdefault(host, Host()), link, life, commands)
        fleet.loop.watch(link)
        fleet.loop.after(random.random() * ARRIVAL_SECONDS, worker.begin)
    for link in lives:
        fleet.loop.watch(link)
    fleet.loop.run()
    return {"order": asdict(order), **fleet.seen()}


if __name__ == "__main__":
    print(json.dumps(simulate(Order(**json.load(sys.stdin)))))
