"""A seated worker: what it works, what it drops, and what it gives back when it leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol.channel import PublishRequest
from es_queue.protocol.messages import WORKER_ID, Answer, Block, Task
from tests.cases import each_case
from tests.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel
from tests.parts import TABLE, evaluator, task_of
from tests.ring import QUICK
from tests.tiny import Script
from workers import parameter_cache
from workers.block_worker import BlockWorker, make_worker_id
from workers.join import Refusal

TOKEN, ME = "1-00000000", "host-1-abcdef"


class Patient(MemoryWorkerChannel):
    """Leaves as soon as nothing waits."""

    watch: Any = None

    def claim(self, wait: float) -> Block | None:
        block = super().claim(0.0)
        if block is None:
            self.watch.leave_reason = "nothing to do"
        return block


class Ring:
    """One publication on a memory server, and one worker for it."""

    def __init__(self, world: Script, *blocks: str, **changes: Any) -> None:
        self.server = MemoryServer()
        self.who = evaluator(world)
        task, published = task_of(2, 2)
        self.task: Task = replace(task, **changes)
        self.blocks = [Block.decode(f"{task.publication} {block}") for block in blocks]
        master = MemoryMasterChannel(self.server)
        master.renew(TOKEN, "master", 10, {}, {})
        master.stage(task.publication, published.tobytes())
        master.publish(
            TOKEN,
            PublishRequest(
                task.publication, self.task.encode(), self.blocks, "{}", {"state": "running"}
            ),
        )
        self.channel = Patient(self.server, ME)
        self.channel.watch = self.who.control
        self.worker = BlockWorker(self.channel, self.who, QUICK, TABLE.digest)

    def answers(self) -> list[Answer]:
        return [
            Answer.decode(entry.payload)
            for entry in self.server.results[self.task.publication]
            if entry.payload
        ]

    def idle(self) -> bool:
        return not self.server.todo and not self.server.claims.get(ME)


def test_it_works_every_block_and_sends_one_answer_each() -> None:
    ring = Ring(Script(), "eval 0 2", "centre 0 1", "train 0 3")
    ring.worker.run()
    assert [(one.kind, [result.slot for result in one.results]) for one in ring.answers()] == [
        ("eval", [0, 1]),
        ("centre", [0]),
        ("train", [0, 1, 2]),
    ]
    assert ring.idle() and (ring.worker.blocks, ring.worker.late, ring.worker.generation) == (
        3,
        0,
        4,
    )
    assert ring.who.control.poll == ring.task.poll


def test_what_it_holds_already_comes_before_what_waits() -> None:
    ring = Ring(Script(), "train 0 1", "train 1 2")
    ring.server.claims[ME] = [f"{ring.task.publication} train 5 6"]
    ring.worker.run()
    assert [one.results[0].slot for one in ring.answers()] == [5, 0, 1]
    assert ring.idle()


@each_case("publication", ["3.1-00000000", "4.2-00000000", "4.1-00000001", "5.1-00000000"])
def test_a_block_of_another_publication_is_dropped(publication: str) -> None:
    ring = Ring(Script(), "train 0 1")
    ring.server.todo.insert(0, f"{publication} train 7 8")
    ring.worker.run()
    assert [one.results[0].slot for one in ring.answers()] == [0]
    assert (
        ring.idle()
        and list(ring.server.results) == [ring.task.publication]
        and ring.worker.blocks == 1
    )


def test_it_takes_up_the_next_publication() -> None:
    ring = Ring(Script(), "train 0 1")
    ring.worker.run()
    task, published = task_of(2, 2, generation=5, parameters=[1, 2])
    master = MemoryMasterChannel(ring.server)
    master.stage(task.publication, published.tobytes())
    master.publish(
        TOKEN,
        PublishRequest(
            task.publication, task.encode(), [Block(task.publication, "train", 0, 1)], "{}", {}
        ),
    )
    ring.who.control.leave_reason = ""
    ring.task = task
    ring.worker.run()
    assert ring.answers()[0].publication == task.publication and ring.worker.generation == 5


def test_of_two_workers_of_a_host_one_asks_for_the_header_of_large_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_cache, "MIN_SHARED_BYTES", 1)
    monkeypatch.setattr(parameter_cache, "host_private_directory", lambda: tmp_path)
    ring = Ring(Script(), "train 0 1")
    channels: list[Any] = [Patient(ring.server, name) for name in (ME, "host-2-abcdef")]
    others = [BlockWorker(channel, ring.who, QUICK, TABLE.digest) for channel in channels]
    asked: list[str] = []
    for channel, other in zip(channels, others, strict=True):
        monkeypatch.setattr(
            channel,
            "task",
            lambda channel=channel: (
                asked.append(channel.worker) or MemoryWorkerChannel.task(channel)
            ),
        )
        assert (
            other._load_publication(ring.blocks[0]) is not None
        )  # the first time, to see that they are large
    task, published = task_of(2, 2, generation=5, parameters=[1, 2])
    master = MemoryMasterChannel(ring.server)
    master.stage(task.publication, published.tobytes())
    block = Block(task.publication, "train", 0, 1)
    master.publish(TOKEN, PublishRequest(task.publication, task.encode(), [block], "{}", {}))
    asked.clear()
    found = [other._load_publication(block) for other in others]
    assert asked == [ME] and [one and one.task for one in found] == [task, task]


@each_case(
    "changes",
    [
        {"noise": "0" * 32},
        {"size": 3},
        {"obs_mean": bytes(4), "obs_std": np.ones(1, "<f4").tobytes()},
    ],
)
def test_a_task_that_is_not_ours_to_work_is_refused_and_its_block_given_back(
    changes: dict[str, Any],
) -> None:
    world = Script()
    ring = Ring(world, "train 0 1", **changes)
    with pytest.raises(Refusal):
        ring.worker.run()
    assert ring.answers() == [] and world.seeds == []
    assert ring.server.todo == [str(ring.blocks[0])] and not ring.server.claims.get(ME)


def test_parameters_that_are_damaged_are_left_alone() -> None:
    world = Script()
    ring = Ring(world, "train 0 1", digest=bytes_digest(b"other parameters"))
    ring.worker.run()
    assert ring.answers() == [] and world.seeds == [] and ring.idle()


def test_a_task_that_is_gone_is_left_alone() -> None:
    ring = Ring(Script(), "train 0 1")
    ring.server.task = None
    ring.worker.run()
    assert ring.answers() == [] and ring.idle()


@each_case("task", [b"", b"no task at all"])
def test_a_worker_that_cannot_read_the_task_takes_no_block_from_the_others(task: bytes) -> None:
    ring = Ring(Script(), "train 0 1")
    ring.server.task = task
    with pytest.raises(Refusal, match="cannot read the run's task"):
        ring.worker.run()
    assert ring.server.todo == [str(ring.blocks[0])] and not ring.server.claims.get(ME)


def test_a_process_that_has_grown_too_large_answers_what_it_has_played_and_leaves() -> None:
    world = Script()
    ring = Ring(world, "train 0 3", "train 3 4")
    world.hook = lambda seed, step: setattr(
        ring.who.control, "finish_reason", "too large" if len(world.seeds) == 4 else ""
    )
    ring.worker.run()
    assert [[one.slot for one in answer.results] for answer in ring.answers()] == [[0, 1]]
    assert (
        ring.who.control.leave_reason == "too large"
        and ring.server.todo == [str(ring.blocks[1])]
        and ring.server.claims[ME] == []
    )


def test_a_process_that_is_too_large_from_the_start_still_plays_a_slot() -> None:
    ring = Ring(Script(), "train 0 3")
    ring.who.control.finish_reason = "too large"
    ring.worker.run()
    assert [[one.slot for one in answer.results] for answer in ring.answers()] == [[0]]


def test_leaving_gives_back_the_block_in_hand_at_the_head() -> None:
    world = Script()
    ring = Ring(world, "train 0 2", "train 2 4", "train 4 6")

    def leave(seed: int, step: int) -> None:
        if len(world.seeds) == 6 and step == 2:  # in the second block
            ring.who.control.leave_reason = "asked"

    world.hook = leave
    ring.worker.run()
    assert [one.results[0].slot for one in ring.answers()] == [0]
    assert ring.server.todo == [str(block) for block in ring.blocks[1:]]
    assert ring.server.claims[ME] == []
    assert len(world.seen) == 5 * 5 + 2


def test_an_error_on_the_way_gives_the_block_back_too() -> None:
    ring = Ring(Script(), "train 0 2")
    ring.channel.answer = lambda *_: (_ for _ in ()).throw(RuntimeError("the wire broke"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the wire broke"):
        ring.worker.run()
    assert ring.server.todo == [str(ring.blocks[0])] and ring.server.claims[ME] == []


def test_an_answer_after_the_publication_has_closed_is_counted_late() -> None:
    world = Script()
    ring = Ring(world, "train 0 1")
    world.hook = lambda seed, step: ring.server.results.clear()
    ring.worker.run()
    assert (ring.worker.late, ring.server.results) == (1, {})
    assert ring.idle()


def test_a_block_whose_publication_closes_meanwhile_is_not_played_to_its_end() -> None:
    world = Script()
    ring = Ring(world, "train 0 3", "train 3 4")

    def close(seed: int, step: int) -> None:
        if len(world.seeds) == 3 and step == 1:  # in the second slot of the first block
            ring.who.control.close_publication(ring.task.publication)

    world.hook = close
    ring.worker.run()
    assert [one.results[0].slot for one in ring.answers()] == [3] and ring.idle()
    assert ring.worker.late == 1 and ring.who.control.leave_reason == "nothing to do"
    ring.who.control.leave_reason = ""
    ring.who.control.close_publication(ring.task.publication)
    ring.who.control.begin_steps()  # nothing is served any more: a worker may join again


def test_a_publication_that_closed_before_says_nothing_of_the_block_in_hand() -> None:
    world = Script()
    ring = Ring(world, "train 0 1")

    def mistaken(seed: int, step: int) -> None:
        if len(world.seeds) == 1:
            ring.who.control.close_publication("1.1-00000000")

    world.hook = mistaken
    ring.worker.run()
    assert (
        [one.results[0].slot for one in ring.answers()] == [0]
        and ring.idle()
        and ring.worker.late == 0
    )


def test_a_failing_episode_is_told_to_people_and_to_the_master() -> None:
    def burn(seed: int, step: int) -> None:
        raise RuntimeError("the motor burnt")

    ring = Ring(Script(hook=burn), "train 3 4")
    ring.worker.run()
    assert ring.answers()[0].failures == ((3, "RuntimeError: the motor burnt"),)
    told = json.loads(ring.server.errors[0])
    assert (told["slot"], told["generation"], told["worker"], told["environment"]) == (
        3,
        4,
        ME,
        "Script",
    )
    assert told["reason"] in told["trace"] and told["seed"] >= 0


@each_case("host", ["plain", "", "with space", "höst", "a" * 300, "-", "es:run:todo"])
def test_a_worker_id_is_one_whatever_the_host_is_called(host: str) -> None:
    assert WORKER_ID.fullmatch(make_worker_id(host))
    assert make_worker_id(host) != make_worker_id(host)
