"""Again: send a command until the server has answered, for as long as an outage may last."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import redis

from es_queue.errors import RedisError
from es_queue.protocol.connection import is_outage, refusal

OUTAGE_SECONDS = 120.0
OUTAGES_KEPT = 1000

T = TypeVar("T")


def pauses(longest: float = 1.0) -> Iterator[float]:
    """Growing, jittered pauses between tries, in seconds."""
    pause = 0.02
    while True:
        yield pause * (0.5 + random.random() / 2)
        pause = min(longest, pause * 2)


class Again:
    """Sends a command again until the server has answered: only for what may be sent twice.

    on_outage: called after each failure with the seconds that the outage has lasted; what it raises ends the trying.
    outages: failures so far. Raises RedisError in one sentence when the server stays away or refuses the command.
    """

    def __init__(self, seconds: float = OUTAGE_SECONDS, on_outage: Callable[[float], None] = lambda _: None) -> None:
        self.seconds = seconds
        self.on_outage = on_outage
        self.outages = 0
        self._ended: deque[float] = deque(maxlen=OUTAGES_KEPT)

    def ended(self) -> list[float]:
        """The seconds that each outage lasted that ended since the last call."""
        seconds = list(self._ended)
        self._ended.clear()
        return seconds

    def __call__(self, call: Callable[[], T]) -> T:
        began, failed = time.monotonic(), False
        for pause in pauses():
            try:
                result = call()
                if failed:
                    self._ended.append(time.monotonic() - began)
                return result
            except redis.exceptions.AuthenticationError as error:
                raise RedisError(f"Redis refused the user or password: {error}") from None
            except redis.exceptions.RedisError as error:
                if not is_outage(error):
                    raise refusal(error) from None
                self.outages += 1
                failed = True
                gone = time.monotonic() - began
                if gone > self.seconds:
                    raise RedisError(f"Redis has been away or full for {gone:.0f} s: {error}") from None
                self.on_outage(gone)
                time.sleep(pause)
        raise AssertionError("pauses never end")
