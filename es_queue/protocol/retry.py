"""Retry: sends a command until the server responds, as long as an outage may last."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import redis

from es_queue.errors import RedisError
from es_queue.protocol.connection import first_line, is_outage, is_silence, refused_error

OUTAGE_SECONDS = 120.0
MAX_OUTAGES_KEPT = 1000

T = TypeVar("T")


def backoff_delays() -> Iterator[float]:
    """Growing, jittered pauses between tries, in seconds."""
    pause = 0.02
    while True:
        yield pause * (0.5 + random.random() / 2)
        pause = min(1.0, pause * 2)


class Retry:
    """Repeats a command until the server responds; only for commands that may be sent twice.

    on_outage: called after each failure with the duration of the outage, in seconds; an exception
    from it ends the retries
    outages: failures so far; last_error: the server's last refusal, empty if it did not respond

    Raises RedisError in one sentence when the server stays away or refuses the command.
    """

    def __init__(
        self, seconds: float = OUTAGE_SECONDS, on_outage: Callable[[float], None] = lambda _: None
    ) -> None:
        self.seconds = seconds
        self.on_outage = on_outage
        self.outages = 0
        self.last_error = ""
        self._since: float | None = None
        self._refusing = False
        self._ended: deque[float] = deque(maxlen=MAX_OUTAGES_KEPT)

    def give_up_after(self, seconds: float) -> None:
        """Limit the time to retry, without callbacks."""
        self.seconds, self.on_outage = seconds, lambda _: None

    def pop_ended_outages(self) -> list[float]:
        """Seconds of each outage that ended since the last call; none during another one."""
        if self._since is not None:
            return []
        seconds = list(self._ended)
        self._ended.clear()
        return seconds

    def record_failure(self, error: Exception, began: float | None = None) -> float:
        """Record that a command that began at that time (monotonic clock) failed in an outage.
        Returns the duration of the outage so far, in seconds.
        """
        return self._record_outage("" if is_silence(error) else first_line(error), began)

    def record_refusal(self, reason: str) -> None:
        """Record that the server refuses writes; an empty reason ends the refusal. Read-only
        commands do not end such an outage.
        """
        self._refusing = bool(reason)
        if reason:
            self.on_outage(self._record_outage(reason))
        else:
            self._record_success()

    def _record_outage(self, reason: str, began: float | None = None) -> float:
        self.outages += 1
        self.last_error = reason
        if self._since is None:
            self._since = time.monotonic() if began is None else began
        return time.monotonic() - self._since

    def _record_success(self) -> None:
        if self._since is not None and not self._refusing:
            self._ended.append(time.monotonic() - self._since)
            self._since = None

    def __call__(self, call: Callable[[], T]) -> T:
        began = time.monotonic()
        for pause in backoff_delays():
            try:
                result = call()
                self._record_success()
                return result
            except redis.exceptions.AuthenticationError as error:
                raise RedisError(f"Redis refused the user or password: {error}") from None
            except redis.exceptions.RedisError as error:
                if not is_outage(error):
                    raise refused_error(error) from None
                lasted = self.record_failure(error, began)
                elapsed = time.monotonic() - began
                if elapsed > self.seconds:
                    raise RedisError(
                        f"Redis has been unreachable or full for {elapsed:.0f} s: "
                        f"{first_line(error)}"
                    ) from None
                self.on_outage(lasted)
                time.sleep(pause)
        raise AssertionError("pauses never end")
