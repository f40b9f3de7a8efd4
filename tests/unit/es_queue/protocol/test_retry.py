"""Retry: what counts as one outage, how long it lasted, and what the server said."""

from __future__ import annotations

from collections.abc import Callable

import redis

from es_queue.protocol.connection import is_silence
from es_queue.protocol.retry import Retry
from tests.cases import each_case

AWAY = redis.exceptions.ConnectionError("gone")
FULL = "OOM command not allowed when used memory > 'maxmemory'."


def failing(*errors: Exception) -> Callable[[], str]:
    """Fails with each of the errors, then answers."""
    left = list(errors)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return call


def test_one_command_that_fails_often_is_one_outage() -> None:
    again = Retry(5)
    assert again(failing(AWAY, AWAY, AWAY)) == "answer"
    assert (again.outages, len(again.pop_ended_outages()), again.pop_ended_outages()) == (3, 1, [])


def test_what_failed_in_other_hands_and_then_here_is_one_outage() -> None:
    again = Retry(5)
    again.record_failure(AWAY)
    assert again.pop_ended_outages() == []
    again(failing(AWAY))
    assert (again.outages, len(again.pop_ended_outages())) == (2, 1)


def test_what_ended_is_told_when_nothing_is_under_way() -> None:
    again = Retry(5)
    again(failing(AWAY))
    again.record_refusal(FULL)
    assert again.pop_ended_outages() == []
    again.record_refusal("")
    assert len(again.pop_ended_outages()) == 2


def test_an_outage_begins_with_the_command_that_first_failed() -> None:
    lasted: list[float] = []
    again = Retry(5, lasted.append)
    again.record_failure(AWAY, began=0.0)
    again(failing(AWAY))
    assert lasted[0] > 1.0 and again.pop_ended_outages()[0] > 1.0


def test_a_server_that_refuses_to_write_is_an_outage_until_it_writes_again() -> None:
    said: list[str] = []
    again = Retry(5, lambda _: said.append(again.last_error))
    again.record_refusal(FULL)
    again(failing())
    assert again.pop_ended_outages() == [], "what only reads ends no such outage"
    again.record_refusal(FULL)
    again.record_refusal("")
    assert (again.outages, len(again.pop_ended_outages()), said) == (2, 1, [FULL, FULL])
    again.record_refusal("")
    assert again.pop_ended_outages() == []


@each_case(
    ("error", "silent"),
    [
        (AWAY, True),
        (redis.exceptions.TimeoutError("Timeout reading from socket"), True),
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), False),
        (redis.exceptions.ConnectionError("max number of clients reached"), False),
        (redis.exceptions.OutOfMemoryError("command not allowed"), False),
        (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), False),
    ],
)
def test_the_servers_own_words_are_kept_where_it_has_any(error: Exception, silent: bool) -> None:
    again = Retry(5)
    again(failing(error))
    assert is_silence(error) is silent
    assert again.last_error == ("" if silent else str(error))
