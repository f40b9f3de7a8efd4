"""Interleavings that the protocol's rules stop, where no other folder's tests play them: broken-off
writes, tokens after a loss, takeovers, seats that follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue.errors import FencedError, RedisError
from es_queue.numerics.noise_table import NoiseTable
from es_queue.protocol.connection import Retry, client_from_url
from es_queue.protocol.messages import Task, token_number
from es_queue.protocol.store import MasterStore, WorkerStore
from master.loop import checkpoint
from master.loop.checkpoint import Checkpoints
from master.loop.loop import Interrupted
from master.run.launch import Launch
from master.run.lease import take_lease
from master.run.session import Session
from master.run.setup import prepare_run
from tests.contract.places import (
    P0,
    P1,
    P2,
    RUN,
    TOKEN,
    RedisPlace,
    block,
    wait_until,
    worker_name,
)
from tests.faults.proxy import Proxy
from tests.integration.processes import Heard
from tests.memory import (
    NOISE,
    QUICK,
    MemoryMasterStore,
    MemoryServer,
    Sink,
    make_master,
    quick_config,
    run_ring,
    workers,
)
from tests.tiny import QUAD

TABLE = NoiseTable.in_memory(NOISE)
SETUP = prepare_run(quick_config(env=QUAD, population=8), table=TABLE)


def saved(generation: int, epoch: int = 1) -> bytes:
    state = replace(SETUP.initial_state(), generation=generation, epoch=epoch)
    centre = SETUP.strategy.centre(SETUP.strategy.published(state.strategy))
    return checkpoint.encode(SETUP.config, SETUP.spec, RUN, state, centre)


@pytest.fixture
def place(redis_client: redis.Redis) -> RedisPlace:
    return RedisPlace(redis_client)


@pytest.fixture
def proxy(valkey_url: str) -> Iterator[Proxy]:
    found = Proxy(valkey_url)
    yield found
    found.close()


# --- broken-off writes, and data of before


def test_an_open_that_broke_off_half_way_is_completed_by_the_next(place: RedisPlace) -> None:
    """Scripts do not roll back: a key of another type ends one in the middle."""
    master, more = place.publish(P0, block(0, 4)), {"history": {"generation": "1"}}
    place.client.set(place.keys.history, "no stream")
    with pytest.raises(RedisError, match="WRONGTYPE"):
        place.open(master, P1, **more)
    place.client.delete(place.keys.history)
    assert place.open(master, P1, **more) is not None
    assert place.open_ones() == place.parameters() == {P1} and place.todo() == []


def test_results_that_a_failover_brought_back_go_with_the_next_publication(
    place: RedisPlace,
) -> None:
    place.publish(P0, block(0, 4))
    replica = {name: place.client.dump(name) for name in place.client.scan_iter("*")}
    place.publish(P1, block(0, 4, P1))
    place.flush()
    for name, value in replica.items():
        place.client.restore(name, 0, value)
    place.publish(P2, block(0, 4, P2))
    assert (place.open_ones(), place.parameters()) == ({P2}, {P2})


def test_a_block_that_my_dead_connection_was_given_is_the_next_that_i_work(
    place: RedisPlace, valkey_url: str
) -> None:
    """The server serves the connection that waits longest, and does not know that nobody reads its
    reply.
    """
    master, me = place.publish(P0), place.arrived()
    with client_from_url(valkey_url) as client, ThreadPoolExecutor(1) as pool:
        dead = pool.submit(WorkerStore(client, RUN, worker_name(1)).claim, 4.0)
        wait_until(lambda: place.client.info("clients")["blocked_clients"])
        master.issue(TOKEN, P0, [block(0, 4), block(4, 8)])
        dead.result(20)
    assert me.held_blocks() == [block(0, 4)]


# --- tokens and leases


def test_a_token_that_was_lost_with_redis_is_not_given_to_two_masters(place: RedisPlace) -> None:
    """Both would count from 1 again; the number in the checkpoint tells the later one that there
    was an earlier.
    """
    asleep = place.master()
    asleep.renew("3-0000000a", "asleep", 60.0)
    place.flush()
    token = take_lease(place.master(), "new", QUICK, wait=False, floor=3)
    assert token_number(token) == 4
    with pytest.raises(FencedError):
        asleep.renew("3-0000000a", "asleep", 60.0)
    assert place.master().lease_holder()[0] == "new"


def test_a_master_whose_lease_was_granted_in_a_lost_reply_does_not_refuse_itself(
    place: RedisPlace, proxy: Proxy
) -> None:
    # The server knows the script from now on.
    MasterStore(place.client, "other").renew(TOKEN, "other", 9.0)
    with client_from_url(proxy.url) as client:
        proxy.lose_reply_to(b"EVALSHA")
        store = MasterStore(client, RUN, Retry(5))
        token = take_lease(store, "me pid 1 abcdef", QUICK, wait=False)
    assert proxy.caught == 1
    assert place.master().epoch() == token and place.master().lease_holder()[0] == "me pid 1 abcdef"


# --- takeovers


def test_a_resumed_master_counts_on_from_the_token_of_its_checkpoint(
    place: RedisPlace, valkey_url: str, tmp_path: Path
) -> None:
    Checkpoints(tmp_path / RUN).save(4, saved(4, epoch=7))
    launch = Launch(valkey_url, 0, resume=RUN, run_dir=tmp_path / RUN, noise_dir=tmp_path / "noise")
    Session(launch, QUICK, lambda *_: Heard(), lambda: True).run(None, {})
    assert token_number(str(place.master().epoch())) == 8


def test_a_generation_that_had_grown_is_taken_over_under_its_name_and_no_slot_is_played_again() -> (
    None
):
    config = quick_config(env=QUAD, population=8, generations=2, min_steps=400, block=1)
    quiet, _ = run_ring(config)
    setup, server, sink = prepare_run(config, table=TABLE), MemoryServer(), Sink()
    has_grown: list[str] = []

    def interrupted() -> bool:
        task = Task.decode(server.task or b"")
        if len(task.spans) > 3 * 12 and not has_grown:
            has_grown.append(task.publication)
            return True
        return False

    with workers(server, setup.config, TABLE):
        with pytest.raises(Interrupted):
            make_master(setup, server, sink, interrupted=interrupted).train(setup.initial_state())
        server.lease = ("", 0.0)
        second = make_master(setup, server, sink)
        state = checkpoint.decode(server.checkpoint or b"")[1]
        outcome = second.train(state, Task.decode(server.task or b""))
    assert outcome.digest == quiet.digest
    assert sink.records[0]["publication"] == has_grown[0] and sink.records[0]["reissued"] == 0
    assert not second.refused()


def test_a_result_that_comes_just_before_a_look_is_not_played_again() -> None:
    class Behind(MemoryMasterStore):
        """Looks only when the workers have answered all that was issued."""

        def look(self, *arguments: Any, **more: Any) -> Any:
            wait_until(lambda: not self.server.todo and not any(self.server.claims.values()))
            return super().look(*arguments, **more)

    config = quick_config(env=QUAD, population=8, generations=3, block=1)
    _, sink = run_ring(config, store_of=Behind)
    assert {record["reissued"] for record in sink.records} == {0}
