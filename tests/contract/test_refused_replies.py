"""Servers that refuse: what passes is waited for, what does not is said in one sentence, and
strangers' bytes harm nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import redis

from es_queue.errors import FencedError, RedisError
from es_queue.protocol import keys
from es_queue.protocol.connection import Retry, client_from_url, refused_error
from es_queue.protocol.store import MasterStore
from tests.cases import each_case
from tests.contract.places import (
    HIGHER,
    P0,
    P1,
    RUN,
    TOKEN,
    RedisPlace,
    block,
    look,
    wait_until,
)

FATAL = (
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOPERM no permissions",
    "ERR unknown command MISCONF",
)
PASSING = (
    "READONLY You can't write against a read only replica.",
    "MISCONF Errors writing to the AOF file",
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    "MASTERDOWN Link with MASTER is down",
    "LOADING the dataset",
    (
        "Command # 1 (XADD es:a:results) of pipeline caused error: MISCONF Errors writing to the "
        "AOF file"
    ),
    (
        "ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write "
        "against a read only replica."
    ),
)


class Refusing:
    """Refuses once, then answers."""

    def __init__(self, text: str) -> None:
        self.text, self.calls = text, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls == 1:
            raise redis.exceptions.ResponseError(self.text)
        return "answer"


@each_case("text", PASSING)
def test_a_refusal_that_passes_is_an_outage(text: str) -> None:
    again, call = Retry(5), Refusing(text)
    assert again(call) == "answer"
    assert again.outages == 1


@each_case("text", FATAL)
def test_any_other_refusal_is_one_sentence_at_once(text: str) -> None:
    again, call = Retry(5), Refusing(text)
    with pytest.raises(RedisError, match=r"^Redis refused a command: ") as caught:
        again(call)
    assert (call.calls, again.outages) == (1, 0)
    assert "\n" not in str(caught.value)


def test_what_is_raised_during_an_outage_ends_it() -> None:
    class EnoughError(Exception): ...

    def enough(_: float) -> None:
        raise EnoughError

    def away() -> None:
        raise redis.exceptions.ConnectionError("gone")

    with pytest.raises(EnoughError):
        Retry(on_outage=enough)(away)


@pytest.fixture
def promote(valkey_url: str) -> Iterator[Callable[[], None]]:
    """Makes the server a master again, over a connection of its own: a change of role closes those
    that wait.
    """

    def call() -> None:
        with client_from_url(valkey_url) as client:
            client.replicaof("NO", "ONE")

    yield call
    call()


def test_a_server_that_is_a_replica_for_a_moment_is_waited_for(
    redis_place: RedisPlace, promote: Callable[[], None]
) -> None:
    redis_place.publish(P0, block(0, 4))
    master = MasterStore(redis_place.client, RUN, Retry(5, lambda _: promote()))
    writes: list[Callable[[], object]] = [
        lambda: master.issue(TOKEN, P0, [block(4, 8)]),
        lambda: redis_place.open(master, P1),
    ]
    for write in writes:
        redis_place.client.replicaof("127.0.0.1", "1")
        write()
    assert master.outages >= 2
    assert look(master).publication == P1


def test_a_lease_that_lapses_on_a_replica_ends_no_outage(
    redis_place: RedisPlace, promote: Callable[[], None]
) -> None:
    redis_place.publish(P0, block(0, 4))
    again = Retry(0.2)
    channel = MasterStore(redis_place.client, RUN, again)
    redis_place.client.replicaof("127.0.0.1", "1")
    with pytest.raises(RedisError, match="read only"):
        channel.renew(TOKEN, "nobody's lease can be taken", 9.0)
    assert "read only" in again.last_error and again.pop_ended_outages() == []
    promote()
    channel.renew(TOKEN, "me", 9.0)
    assert len(again.pop_ended_outages()) == 1


def test_a_blocked_read_outlives_the_servers_change_of_role(
    redis_place: RedisPlace, promote: Callable[[], None]
) -> None:
    redis_place.publish(P0, block(0, 4))
    channel = MasterStore(redis_place.client, RUN, Retry(5, lambda _: promote()))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(channel.wait, 1.0)
        wait_until(lambda: redis_place.client.info("clients")["blocked_clients"])
        redis_place.client.replicaof("127.0.0.1", "1")
        waiting.result(20)
    assert channel.outages >= 1


def test_progress_of_another_type_that_no_worker_may_write_is_said_in_one_sentence(
    redis_place: RedisPlace,
) -> None:
    master = redis_place.publish(P0, block(0, 4))
    redis_place.client.delete(redis_place.keys.progress)
    redis_place.client.set(redis_place.keys.progress, "a string")
    for call in (partial(master.progress_field, "state"), partial(look, master)):
        with pytest.raises(RedisError, match=r"^Redis refused .*WRONGTYPE"):
            call()


def test_a_worker_says_in_one_sentence_that_it_may_not_claim(redis_place: RedisPlace) -> None:
    redis_place.client.set(redis_place.keys.todo, "a string")
    with pytest.raises(RedisError, match=r"^Redis refused .*WRONGTYPE"):
        redis_place.worker().claim(0.01)


def test_a_long_refusal_is_one_short_line() -> None:
    text = str(refused_error(redis.exceptions.ResponseError("ERR " + "x" * 1000 + "\nmore")))
    assert len(text) < 400 and "\n" not in text


# --- what would stay for ever


def test_runs_whose_keys_have_gone_are_forgotten(redis_place: RedisPlace) -> None:
    master = redis_place.master()
    master.forget_gone_runs()
    redis_place.publish(P0)
    redis_place.client.zadd(keys.RUNS, {"gone": 1.0, b"\xff": 2.0})
    master.forget_gone_runs()
    assert redis_place.client.zrange(keys.RUNS, 0, -1) == [RUN.encode()]


def test_the_token_of_a_killed_master_goes_in_a_month_and_still_fences(
    redis_place: RedisPlace,
) -> None:
    month = 29 * 24 * 3600
    master, epoch = redis_place.master(), redis_place.keys.epoch
    master.renew(TOKEN, "me", 9.0)
    assert redis_place.client.ttl(epoch) > month, "it was killed before its first publish"
    redis_place.client.expire(epoch, 60)
    redis_place.publish(P0)
    assert redis_place.client.ttl(epoch) > month
    redis_place.client.expire(epoch, 60)
    master.renew(HIGHER, "successor", 9.0)
    assert redis_place.client.ttl(epoch) > month
    with pytest.raises(FencedError):
        redis_place.publish(P1)
