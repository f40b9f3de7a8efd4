"""A simulated worker: the real one's commands in the real one's order, with waiting in the place of
episodes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from es_queue.protocol.messages import TRAIN, Answer, EpisodeMoments, SlotResult, Task
from es_queue.protocol.timing import Clocks
from master.collect.ledger import AnswerChecker
from tools.benchmarks.cluster.simulation.connections import Link, Loop
from tools.benchmarks.cluster.simulation.durations import Durations, Seconds
from tools.benchmarks.cluster.simulation.wire_format import PIECE, Commands, Reply
from workers.block_worker import MAX_WAIT

WORTH_SHARING = 2**18  # as workers.parameter_cache has it
ENDED = (b"stopped", b"finished", b"failed", b"stopping")


@dataclass
class Generation:
    """What is known of one generation before it is played, and when it was (seconds of the
    monotonic clock).
    """

    checker: AnswerChecker
    seconds: Seconds
    first_claim: float = float("inf")
    last_answer: float = 0.0
    answers: int = 0
    late: int = 0
    played: float = 0.0
    sent: int = 0


@dataclass
class Host:
    """What the workers of a host share: one copy of large parameters and of their header. asking:
    whether one of them fetches.
    """

    task: Task | None = None
    asking: bool = False
    waiting: list[partial[None]] = field(default_factory=list)


@dataclass
class Cost:
    """Seconds that a real worker needs beside its episodes: block: of each block's commands in its
    client library;
    plan: of a generation's plan, a slot in it; digest: of a byte of the parameters that it checks.
    """

    block: float = 0.0
    plan: float = 0.0
    digest: float = 0.0


@dataclass
class Shared:
    """What all workers of a process share. trips: requests by name; received: bytes of their
    replies by name;
    plays: (began, seconds) of each block whose answer came in time.
    """

    loop: Loop
    clocks: Clocks
    generations: dict[int, Generation]
    cost: Cost
    mean: bytes
    trips: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    plays: list[tuple[float, float]] = field(default_factory=list)
    ended: bool = False


class Worker:
    """claim → wait → push, and the life beside it on a connection that may be shared."""

    def __init__(
        self, shared: Shared, name: str, host: Host, link: Link, life: Link, commands: Commands
    ) -> None:
        self._shared, self._name, self._host, self._link, self._life, self._commands = (
            shared,
            name,
            host,
            link,
            life,
            commands,
        )
        self._task: Task | None = None
        self._serving = ""
        self._large = False  # as far as this worker knows yet
        self._turn = 0
        self._poll = shared.clocks.leave_poll
        self._last_beat = self._began = 0.0
        self._claim = commands.claim(shared.clocks.claim_wait)
        self._flags_command: tuple[str, tuple[bytes, int]] = ("", commands.poll_flags(""))

    def begin(self) -> None:
        """Arrive, then look for work."""
        self._ask("arrive", self._commands.beat, lambda _: self._look())
        self._last_beat = time.monotonic()
        self._shared.loop.after(self._poll, self._live)

    def _ask(
        self, name: str, request: tuple[bytes, int], then: object, link: Link | None = None
    ) -> None:
        link = link or self._link
        self._shared.trips[name] += 1
        before = link.received

        def heard(replies: Sequence[Reply]) -> None:
            if link is self._link:
                self._shared.received[name] += link.received - before
            then(replies)  # type: ignore[operator]

        link.ask(request, heard)

    # --- the episodes' thread

    def _look(self) -> None:
        """What is held already comes first (rule 5)."""
        if not self._shared.ended:
            self._ask("claimed", self._commands.held_blocks, self._held)

    def _held(self, replies: Sequence[Reply]) -> None:
        if replies[0]:
            self._work(replies[0][0].decode())
        else:
            self._ask("claim", self._claim, self._start_block)

    def _start_block(self, replies: Sequence[Reply]) -> None:
        if replies[0] is None:
            self._ask(
                "claimed",
                self._commands.held_blocks,
                lambda held: self._work(held[0][0].decode()) if held[0] else self._look(),
            )
        else:
            self._work(replies[0].decode())

    def _work(self, block: str) -> None:
        """Fetch the task where it is another publication's, or find it on the host, then play."""
        publication = block.partition(" ")[0]
        if self._task is not None and self._task.publication == publication:
            self._play(block)
        elif (
            self._large
            and self._host.task is not None
            and self._host.task.publication == publication
        ):
            self._take(self._host.task)
            self._checked(4 * self._host.task.size, partial(self._play, block))
        elif self._large and self._host.asking:
            self._host.waiting.append(partial(self._work, block))
        else:
            self._host.asking = self._host.asking or self._large
            self._ask(
                "task",
                self._commands.task,
                lambda replies: self._fetched(block, Task.decode(replies[0])),
            )

    def _take(self, task: Task) -> None:
        self._task, self._poll = task, task.poll
        self._claim = self._commands.claim(
            max(self._shared.clocks.claim_wait, min(task.poll, MAX_WAIT))
        )

    def _fetched(self, block: str, task: Task) -> None:
        self._take(task)
        held, self._large = self._large, 4 * task.size >= WORTH_SHARING
        if task.publication != block.partition(" ")[0]:
            if held:
                self._continue()
            self._ask("drop", self._commands.drop(block), lambda _: self._look())
            return
        play, size = partial(self._play, block), 4 * task.size
        if not self._large:
            self._piece(task, 0, play)
        elif self._host.task is not None and self._host.task.publication == task.publication:
            self._checked(size, play)
        elif (
            self._host.asking and not held
        ):  # its first task: only now does it know that it should have waited
            self._host.waiting.append(partial(self._checked, size, play))
        else:
            self._host.asking = True
            self._host.waiting.append(partial(self._checked, size, play))
            self._piece(task, 0, partial(self._stored, task))

    def _piece(self, task: Task, start: int, then: partial[None]) -> None:
        """Parameters come in pieces of 1 MiB."""
        if start >= 4 * task.size:
            then()
            return
        request = self._commands.parameters(task.publication, start, 4 * task.size)
        self._ask("parameters", request, lambda _: self._piece(task, start + PIECE, then))

    def _stored(self, task: Task) -> None:
        self._host.task = task
        self._continue()

    def _continue(self) -> None:
        """The next of those who wait for what this worker has fetched."""
        self._host.asking, waiting, self._host.waiting = False, self._host.waiting, []
        for go_on in waiting:
            go_on()

    def _checked(self, size: int, play: partial[None]) -> None:
        self._shared.loop.after(size * self._shared.cost.digest, play)

    def _play(self, block: str) -> None:
        publication, kind, start, stop = block.split(" ")
        number = int(publication.partition(".")[0])
        generation = self._shared.generations[number]
        self._began = time.monotonic()
        generation.first_claim = min(generation.first_claim, self._began)
        first, last = int(start), int(stop)
        seconds = float(
            generation.seconds[first:last].sum() if kind == TRAIN else generation.seconds[first] / 2
        )
        self._serving, self._turn = publication, self._turn + 1
        cost = self._shared.cost.block + self._shared.cost.plan * (last if kind == TRAIN else 1)
        self._shared.loop.after(
            seconds + cost,
            partial(self._play_kind, self._turn, block, kind, first, last, seconds, generation),
        )

    def _play_kind(
        self,
        turn: int,
        block: str,
        kind: str,
        start: int,
        stop: int,
        seconds: float,
        generation: Generation,
    ) -> None:
        if turn != self._turn:  # its publication has closed meanwhile
            return
        publication, self._serving = self._serving, ""
        generation.played += seconds
        payload = self._make_answer(publication, kind, start, stop, seconds, generation.checker)
        generation.sent += len(payload)
        self._ask(
            "answer",
            self._commands.answer(publication, block, payload),
            partial(self._answered, generation, seconds),
        )

    def _answered(self, generation: Generation, seconds: float, replies: Sequence[Reply]) -> None:
        if replies[-1][0] is None:
            generation.late += 1
        else:
            generation.last_answer, generation.answers = time.monotonic(), generation.answers + 1
            self._shared.plays.append((self._began, seconds))
        if not self._shared.ended:
            self._held([replies[-1][2]])  # the reply has what is held

    def _make_answer(
        self,
        publication: str,
        kind: str,
        start: int,
        stop: int,
        seconds: float,
        expectations: AnswerChecker,
    ) -> bytes:
        """Honest in all that the master can check."""
        results = []
        for slot in range(start, stop):
            due = expectations.expected_answer(kind, slot)
            assert due is not None
            each = due.individuals
            fitness = tuple(float(np.sin(slot + half)) for half in range(each))
            moments = (
                EpisodeMoments(400, self._shared.mean, bytes(len(self._shared.mean))),
            ) * due.moments
            results.append(
                SlotResult(
                    slot,
                    due.noise_index,
                    due.seed,
                    fitness,
                    fitness,
                    (400,) * each,
                    (0,) * each,
                    (0,) * each,
                    moments,
                )
            )
        return Answer(publication, kind, self._name, seconds, tuple(results)).encode()

    # --- the life

    def _live(self) -> None:
        """As workers.heartbeat does: a beat when one is due, and the orders at each look."""
        if self._shared.ended:
            return
        clocks, now = self._shared.clocks, time.monotonic()
        beat = min(max(clocks.beat, 2.5 * self._poll), clocks.beat_ttl / 2)
        if now - self._last_beat >= beat:
            self._last_beat = now
            self._ask(
                "alive",
                self._commands.alive,
                lambda _: self._ask(
                    "beat", self._commands.beat, lambda _: self._obey(), self._life
                ),
                self._life,
            )
        else:
            self._obey()

    def _obey(self) -> None:
        if self._flags_command[0] != self._serving:
            self._flags_command = (self._serving, self._commands.poll_flags(self._serving))
        self._ask(
            "orders", self._flags_command[1], partial(self._obeyed, self._serving), self._life
        )

    def _obeyed(self, serving: str, replies: Sequence[Reply]) -> None:
        state, _, newest = replies[0]
        if state in ENDED or state is None:
            self._shared.ended = self._shared.loop.over = True
            return
        if (
            serving
            and serving == self._serving
            and not replies[4]
            and newest not in (None, serving.encode())
        ):
            self._close()
        self._shared.loop.after(min(self._poll, self._shared.clocks.beat_ttl / 2), self._live)

    def _close(self) -> None:
        """Somebody else's copy was first: what is held of a closed publication is dropped at the
        next look.
        """
        self._turn += 1
        self._serving = ""
        self._task = None
        self._ask("claimed", self._commands.held_blocks, lambda held: self._dropped(held[0]))

    def _dropped(self, held: Sequence[bytes]) -> None:
        if held:
            self._ask("drop", self._commands.drop(held[0].decode()), lambda _: self._look())
        else:
            self._look()


def generations(
    expected: Sequence[AnswerChecker], durations: Durations, slots: int
) -> dict[int, Generation]:
    """All of a run's generations, by number, made before it begins."""
    return {
        one.generation: Generation(one, durations.slots(one.generation, slots)) for one in expected
    }
