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
from es_queue.protocol.connection import Retry, client_from_url
from es_queue.protocol.store import MasterStore, WorkerStore, script_text
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
    look,
    moments,
    read,
    reasons,
    results,
    texts,
    worker_name,
)


class Line:
    """Stores whose one connection runs through the proxy, and the place as it truly is."""

    def __init__(self, place: RedisPlace, proxy: DeafProxy, client: Any) -> None:
        self.place, self.proxy = place, proxy
        self.outages: list[float] = []
        self.master = MasterStore(client, RUN, Retry(5, self.outages.append))
        self.worker = WorkerStore(client, RUN, worker_name(1), retry=Retry(5, self.outages.append))
        for name in ("open", "issue", "look", "renew", "finish", "answer"):
            # or the first reply would be that there is no such script
            place.client.script_load(script_text(name))
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


def test_the_reply_to_given_results_has_what_the_worker_still_holds(line: Line) -> None:
    first, second = line.worker.claim(0.01), line.worker.claim(0.01)
    line.place.client.config_resetstat()
    assert first is not None and line.worker.answer(first, results(1), b"")
    asked = line.calls("lrange")
    assert line.worker.held_blocks() == [second] and line.calls("lrange") == asked
    assert line.worker.held_blocks() == [second] and line.calls("lrange") == asked + 1, (
        "what a reply said is used once"
    )


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


def test_open_whose_reply_was_lost_opens_once(line: Line) -> None:
    line.proxy.swallow(passing=1)  # that of the parameters, which come first
    assert line.place.open(line.master, P1, history={"generation": "1"}) == P1
    assert line.proxy.swallowed == 1 and line.outages
    assert len(line.place.history()) == 1 and line.place.open_ones() == {P1}


def test_issue_whose_reply_was_lost_may_issue_twice_and_the_first_result_counts(line: Line) -> None:
    line.place.client.delete(line.place.keys.todo)
    line.proxy.swallow()
    line.master.issue(TOKEN, P0, [block(0, 4)])
    assert line.place.todo() == texts(block(0, 4), block(0, 4))


def test_results_whose_reply_was_lost_are_there_twice_at_most_and_their_claim_is_dropped(
    line: Line,
) -> None:
    assert line.worker.claim(0.01) == block(0, 4)
    line.proxy.swallow()
    assert line.worker.answer(block(0, 4), results(1, 2), moments(1))
    assert read(line.place.master()) == {P0: ([1, 2, 1, 2], [1, 1])}
    assert line.place.claims() == []


def test_a_read_whose_reply_was_lost_reads_the_same_results(line: Line) -> None:
    line.worker.answer(block(0, 2), results(1, 2), b"")
    line.proxy.swallow()
    assert read(line.master) == {P0: ([1, 2], [])} and line.proxy.swallowed == 1
    assert read(line.master) == {}


def test_a_release_whose_reply_was_lost_is_not_sent_again(line: Line) -> None:
    line.worker.claim(0.01)
    line.proxy.swallow()
    line.worker.release([block(0, 4)])
    assert line.calls("lpush") == 1
    assert line.place.todo() == texts(block(0, 4), block(4, 8))


def test_a_report_whose_reply_was_lost_is_not_sent_again(line: Line) -> None:
    line.worker.config()
    line.proxy.swallow()
    line.worker.report("trouble")  # the reply to EXISTS is lost, so that is asked again
    assert line.calls("exists") == 2
    assert reasons(line.place.master()) == ["trouble"]


def test_look_renew_and_finish_may_be_sent_twice(line: Line) -> None:
    line.place.worker().claim(0.01)
    line.place.lapse()
    look(line.master)
    assert line.place.todo() == texts(block(4, 8))
    line.proxy.swallow()
    line.master.renew(TOKEN, "me", 9.0)
    line.proxy.swallow()
    shown = line.master.look(TOKEN, "me", 9.0, {"answered": "1"}, {"late": 2})
    assert shown.todo == (block(4, 8),)
    line.proxy.swallow()
    line.master.finish(TOKEN, {"state": "finished"}, 60, b"last")
    assert line.proxy.swallowed == 3
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
    for ask in reads:
        line.proxy.swallow()
        ask()
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
    worker = WorkerStore(
        client_from_url("unix:///nowhere/redis.sock"), RUN, worker_name(1), retry=again
    )
    with pytest.raises(RedisError, match="has been unreachable"):
        worker.task()
