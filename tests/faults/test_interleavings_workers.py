"""Interleavings on the workers' side: claims whose replies are lost, seats that follow each other,
a lease that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from es_queue.protocol.channel import PublishRequest, ReconcileReport, ReconcileRequest, WorkerFlags
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.messages import Block
from es_queue.protocol.redis_channel import RedisWorkerChannel
from tests.contract.places import (
    ABOUT,
    P0,
    RUN,
    TOKEN,
    TTL,
    RedisPlace,
    block,
    owed,
    wait_until,
    worker_name,
)
from tests.memory_channel import MemoryMasterChannel, MemoryServer, MemoryWorkerChannel
from tests.parts import TABLE, evaluator
from tests.ring import QUICK, quick_config
from tests.tiny import Script, eventually
from tests.unit.workers.living import replace_heartbeat, replace_serving, serve_seat
from tests.unit.workers.test_block_worker import Ring
from tests.unit.workers.test_seat import Ending, Progress
from workers import open_seat, parameter_cache, serving
from workers.block_worker import BlockWorker
from workers.episode import EpisodeControl
from workers.heartbeat import Heartbeat, ProcessLimits
from workers.join import JoinResult, Refusal
from workers.open_seat import is_horse
from workers.serving import Seat


@pytest.fixture
def place(redis_client: redis.Redis) -> RedisPlace:
    return RedisPlace(redis_client)


# --- 1.1


def test_a_block_that_my_dead_connection_was_given_is_the_next_that_i_work(
    place: RedisPlace, valkey_url: str
) -> None:
    """The server serves whoever waits longest, and does not know that nobody listens there any
    more.
    """
    master = place.publish(P0)
    nobody: Any = SimpleNamespace()
    me = BlockWorker(place.arrived(), nobody, QUICK, "")
    with client_from_url(valkey_url) as client, ThreadPoolExecutor(1) as pool:
        dead = pool.submit(RedisWorkerChannel(client, RUN, worker_name(1)).claim, 4.0)
        wait_until(lambda: place.client.info("clients")["blocked_clients"])
        master.extend(TOKEN, P0, [block(0, 4), block(4, 8)])
        dead.result(20)
    assert me._next_block() == block(0, 4)


# --- 1.2


def dropped(place: RedisPlace) -> None:
    """It read another publication's task, and dropped a block that is open."""
    worker = place.arrived()
    worker.drop(worker.claim(0.01) or block(0, 1))


def unknown(place: RedisPlace) -> None:
    """It has claimed, and nothing says yet that it lives."""
    place.worker().claim(0.01)


def answered_without_use(place: RedisPlace) -> None:
    """Its answer is there, but was refused, or left slots out."""
    worker = place.arrived()
    worker.answer(worker.claim(0.01) or block(0, 1), b"refused")


def suspected(place: RedisPlace) -> None:
    """Thought dead, it claims again while its former block is on its way back."""
    worker = place.arrived()
    worker.claim(0.01)
    place.lapse()
    place.master().reconcile(TOKEN, owed(("train", 0, 8)))
    worker.beat(ABOUT, TTL)
    worker.claim(0.01)
    worker.answer(block(0, 4), b"refused")


@pytest.mark.parametrize("befall", [dropped, unknown, answered_without_use, suspected])
def test_whatever_befalls_a_claim_no_unanswered_slot_is_in_no_list(
    place: RedisPlace, befall: Callable[[RedisPlace], None]
) -> None:
    master = place.publish(P0, block(0, 4), block(4, 8))
    befall(place)
    found = master.reconcile(TOKEN, owed(("train", 0, 8)))
    assert found is not None
    held = [one for blocks in found.claims.values() for one in blocks]
    waiting = [Block.decode(text) for text in place.todo()]
    assert sorted(slot for one in (*held, *waiting) for slot in range(one.start, one.stop)) == list(
        range(8)
    )


# --- 1.4, 1.5, 1.25: the seat


class Recorder(MemoryWorkerChannel):
    """Remembers the verbs that it was asked for; leaves at the first claim that finds nothing."""

    watch: EpisodeControl

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server, worker_name(1))
        self.verbs: list[str] = []

    def arrive(self, about: Any, ttl: float) -> None:
        self.verbs.append("arrive")
        super().arrive(about, ttl)

    def claim(self, wait: float) -> Block | None:
        self.verbs.append("claim")
        self.watch.leave_reason = "nothing to do"
        return super().claim(0.0)


@pytest.fixture
def seated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[Callable[[], None]], Recorder]]:
    """A seat that serves a run without blocks; ``joining`` is called each time before it joins."""
    monkeypatch.setattr(parameter_cache, "host_private_directory", lambda: tmp_path)
    replace_heartbeat(monkeypatch, lambda *arguments: Ending(arguments[-1], False))

    def serve(joining: Callable[[], None]) -> Recorder:
        channel, watch = (
            Recorder(MemoryServer(config=quick_config().to_json().encode())),
            EpisodeControl(),
        )
        channel.watch = watch

        def joined(config: Any, given: EpisodeControl) -> JoinResult:
            joining()
            who = evaluator(Script())
            who.control = watch
            return JoinResult(who, TABLE.digest, "0" * 32, "stock")

        monkeypatch.setattr(serving, "join", joined)
        seat = Seat(Progress(b"running"), "run", QUICK, "rq worker/1", owns_process=is_horse())  # type: ignore[arg-type]
        serve_seat(seat, channel, watch)
        return channel

    yield serve


def test_a_worker_is_known_before_its_first_claim(seated: Callable[..., Recorder]) -> None:
    verbs = seated(lambda: None).verbs
    assert verbs[0] == "arrive" and verbs[-1] == "claim"


def test_a_worker_that_must_refuse_keeps_its_seat_claims_nothing_and_says_so_once(
    seated: Callable[..., Recorder],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(
        serving, "wait_or_leave", lambda watch, seconds, poll: waited.append(seconds)
    )

    def refuse() -> None:
        if len(waited) < 3:
            raise Refusal("noise digest: another table")

    channel = seated(refuse)
    assert waited == [1.0, 2.0, 4.0]
    assert capsys.readouterr().out.count("cannot join: noise digest: another table") == 1
    assert channel.verbs.count("claim") == 1, (
        "it was admitted in the end, by the seat that it had kept"
    )


def test_the_next_seat_of_an_rq_worker_keeps_nobodys_claims_alive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The horse was killed; its RQ worker takes the next seat under the name that it always had."""
    server, served, found = MemoryServer(config=b"{}"), list[str](), list[ReconcileReport | None]()
    master, publication = MemoryMasterChannel(server), "0.1-00000000"
    master.stage(publication, b"1234")
    master.publish(
        "1-00000000",
        PublishRequest(
            publication, b"task", [Block(publication, "train", 0, 4)], "{}", {"state": "running"}
        ),
    )
    monkeypatch.setattr(
        "workers.serving.RedisWorkerChannel",
        lambda client, run, worker, name, retry: MemoryWorkerChannel(server, worker, run),
    )
    monkeypatch.setattr(open_seat, "host_private_directory", lambda: tmp_path)
    for name in ("reseed_global_generators", "install_sigterm"):
        monkeypatch.setattr(serving, name, lambda *_: None)

    def serve(self: Seat, channel: MemoryWorkerChannel, watch: EpisodeControl) -> None:
        channel.arrive(ABOUT, TTL)
        served.append(channel.worker)
        channel.claim(0.0)
        found.append(
            master.reconcile("1-00000000", ReconcileRequest(publication, [("train", 0, 4)], 4))
        )

    replace_serving(monkeypatch, serve)
    for _ in range(2):
        Seat(
            Progress(b"running"), "run", QUICK, "rq worker/1", owns_process=is_horse()
        ).join_and_serve()
    assert [one is not None and one.requeued for one in found] == [0, 4], (
        "what the first held is owed, although the second lives"
    )
    assert len(set(served)) == 2


# --- 1.27


class Looked(MemoryWorkerChannel):
    """Counts the looks at the leave flags."""

    looks = 0

    def poll_flags(self, publication: str = "") -> WorkerFlags:
        self.looks += 1
        return WorkerFlags("running")


def test_an_episode_that_outlasts_its_seats_lease_is_answered_all_the_same() -> None:
    world = Script()
    ring = Ring(world, "train 0 1")
    orders = Looked(ring.server, ring.channel.worker)
    life = Heartbeat(
        orders,
        ring.who.control,
        dict,
        replace(QUICK, leave_poll=0.01, seat_lease=0.05),
        ProcessLimits(60.0, lambda: None),
    )

    def last(seed: int, step: int) -> None:
        if step == 2 and len(world.seeds) == 1:
            before = orders.looks
            eventually(lambda: ring.who.control.leave_reason or orders.looks > before + 10)

    world.hook = last
    life.start()
    try:
        ring.worker.run()
    finally:
        life.stop()
    assert [one.slot for answer in ring.answers() for one in answer.results] == [0]
