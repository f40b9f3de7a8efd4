"""Replies that are lost after the server has executed: what is sent again, and what never is (rules
4, 5, 6, 14).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from es_queue.errors import RedisError
from es_queue.protocol.channel import RUNNING, PublishRequest, RenewResult
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.redis_channel import RedisMasterChannel, RedisWorkerChannel
from es_queue.protocol.retry import Retry
from tests.contract.deaf import DeafProxy
from tests.contract.places import (
    ABOUT,
    P0,
    P1,
    RUN,
    TOKEN,
    TTL,
    RedisPlace,
    block,
    owed,
    texts,
    worker_name,
)


class Line:
    """Channels whose one connection runs through the proxy, and the place as it truly is."""

    def __init__(self, place: RedisPlace, proxy: DeafProxy, client: Any) -> None:
        self.place, self.proxy = place, proxy
        self.outages: list[float] = []
        self.master = RedisMasterChannel(client, RUN, Retry(5, self.outages.append))
        self.worker = RedisWorkerChannel(
            client, RUN, worker_name(1), retry=Retry(5, self.outages.append)
        )
        for script in self.master._scripts.values():
            place.client.script_load(
                script.script
            )  # or the first reply would be that there is no such script
        client.ping()  # the connection stands: the next reply is that of the next command
        place.client.config_resetstat()

    def calls(self, command: str) -> int:
        found = self.place.client.info("commandstats").get(f"cmdstat_{command}", {})
        return int(found.get("calls", 0))


@pytest.fixture
def line(redis_place: RedisPlace, valkey_url: str, tmp_path: Path) -> Iterator[Line]:
    redis_place.publish(P0, block(0, 4), block(4, 8))
    redis_place.arrived()
    proxy = DeafProxy(Path(unquote(valkey_url.removeprefix("unix://"))), tmp_path / "proxy.sock")
    with client_from_url(proxy.url) as client:
        yield Line(redis_place, proxy, client)
    proxy.close()


def test_a_claim_whose_reply_was_lost_is_not_sent_again_and_the_block_is_found(line: Line) -> None:
    line.proxy.swallow()
    assert line.worker.claim(0.01) == block(0, 4)
    assert line.proxy.swallowed == 1
    assert line.calls("blmove") == 1
    assert line.place.claims() == texts(block(0, 4))
    assert line.place.todo() == texts(block(4, 8))


def test_the_reply_to_an_answer_says_what_the_worker_still_holds(line: Line) -> None:
    first, second = line.worker.claim(0.01), line.worker.claim(0.01)
    line.place.client.config_resetstat()
    assert first is not None and line.worker.answer(first, b"answer")
    assert line.calls("lrange") == 1, "in the same transaction"
    assert line.worker.held_blocks() == [second]
    assert line.calls("lrange") == 1
    assert line.worker.held_blocks() == [second]
    assert line.calls("lrange") == 2, "what a reply said is used once"


def test_a_block_of_a_lost_claim_stands_first_in_what_is_claimed(line: Line) -> None:
    line.proxy.swallow()
    assert line.worker.claim(0.01) == block(0, 4)
    assert line.worker.claim(0.01) == block(4, 8)
    assert line.worker.held_blocks() == [block(0, 4), block(4, 8)]


def test_a_lost_claim_that_moved_nothing_is_no_block(line: Line) -> None:
    line.place.client.delete(line.place.keys.todo)
    line.proxy.swallow()
    assert line.worker.claim(0.01) is None
    assert (line.proxy.swallowed, line.calls("blmove")) == (1, 1)


def test_publish_whose_reply_was_lost_is_one_publication(line: Line) -> None:
    line.master.stage(P1, b"12345678")
    line.proxy.swallow()
    line.master.publish(
        TOKEN,
        PublishRequest(
            P1, b"new", [block(0, 2, P1)], "{}", {"state": RUNNING}, history={"generation": "1"}
        ),
    )
    assert line.proxy.swallowed == 1 and line.outages
    assert len(line.place.history()) == 1
    assert line.place.todo() == texts(block(0, 2, P1))
    entries = line.place.master().collect(P1, "0", 10, 0.001)
    assert [entry.payload for entry in entries] == [b""]


def test_publish_sent_again_after_workers_have_answered_keeps_their_answers(line: Line) -> None:
    worker = line.place.worker()
    taken = worker.claim(0.01)
    assert taken is not None and worker.answer(taken, b"answer")
    line.place.publish(P0, block(0, 4), block(4, 8))
    assert line.place.answers() == [b"answer"] and line.place.todo() == texts(block(4, 8))


def test_an_answer_whose_reply_was_lost_is_in_the_stream_twice_at_the_most_and_drops_its_claim(
    line: Line,
) -> None:
    assert line.worker.claim(0.01) == block(0, 4)
    line.proxy.swallow()
    assert line.worker.answer(block(0, 4), b"answer")
    assert line.place.answers() == [b"answer", b"answer"]
    assert line.place.claims() == []


def test_give_back_whose_reply_was_lost_is_not_sent_again(line: Line) -> None:
    line.worker.claim(0.01)
    line.proxy.swallow()
    line.worker.give_back([block(0, 4)])
    assert line.calls("lpush") == 1
    assert line.place.todo() == texts(block(0, 4), block(4, 8))


def test_a_report_whose_reply_was_lost_is_not_sent_again(line: Line) -> None:
    line.worker.config()
    line.proxy.swallow()
    line.worker.report("trouble")  # the reply to EXISTS is lost, so that is asked again
    assert line.calls("exists") == 2
    assert line.place.master().errors() == ["trouble"]


def test_reconcile_whose_reply_was_lost_owes_nothing_twice(line: Line) -> None:
    line.place.client.delete(line.place.keys.todo)
    line.proxy.swallow()
    found = line.master.reconcile(TOKEN, owed(("train", 0, 8)))
    assert line.proxy.swallowed == 1
    assert found is not None and found.todo == 2
    assert line.place.todo() == texts(block(0, 4), block(4, 8))


def test_renew_and_finish_may_be_sent_twice(line: Line) -> None:
    line.proxy.swallow()
    assert line.master.renew(TOKEN, "me", 9.0, {"answered": "1"}, {"late": 2}) == RenewResult(
        P0, True
    )
    line.proxy.swallow()
    line.master.finish(TOKEN, {"state": "finished"}, 60, b"last")
    assert line.proxy.swallowed == 2
    assert line.place.progress()["state"] == "finished" and line.place.refused() == {"late": 2}


def test_reads_are_asked_again_until_they_are_answered(line: Line) -> None:
    reads = (
        line.worker.task,
        line.worker.config,
        line.worker.held_blocks,
        line.worker.poll_flags,
        line.master.epoch,
        line.master.workers,
    )
    for read in reads:
        line.proxy.swallow()
        read()
    assert line.proxy.swallowed == len(reads)
    assert line.worker.parameters(P0, 8) == b"12345678"


def test_the_master_counts_every_time_that_the_server_did_not_answer(line: Line) -> None:
    assert line.master.outages == 0
    line.proxy.swallow(2)
    line.master.epoch()
    assert line.master.outages == 2 == len(line.outages)
    line.master.epoch()
    assert line.master.outages == 2


def test_a_beat_whose_reply_was_lost_is_sent_again(line: Line) -> None:
    line.proxy.swallow()
    line.worker.beat(ABOUT, TTL)
    assert line.place.master().workers() == {worker_name(1): ABOUT}


def test_a_server_that_stays_away_is_an_error_in_one_sentence(line: Line) -> None:
    again = Retry(seconds=0.05)
    channel = RedisWorkerChannel(
        client_from_url("unix:///nowhere/redis.sock"), RUN, worker_name(1), retry=again
    )
    with pytest.raises(RedisError, match="has been unreachable"):
        channel.task()
