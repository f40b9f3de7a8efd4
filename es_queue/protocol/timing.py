"""Time constants of the protocol."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields

from es_queue.errors import UsageError

VARIABLE = "ES_QUEUE_CLOCKS"


@dataclass(frozen=True)
class Clocks:
    """Every time constant of the protocol, in seconds. Blocking calls are shorter than the 5 s
    socket timeout.

    grace: time after the lease of a dead master expires, until its private server, its local
    workers and the run's seats end
    """

    lease: float = 10.0
    renew: float = 1.0
    beat_ttl: float = 5.0
    beat: float = 1.0
    leave_poll: float = 0.2
    claim_wait: float = 0.25
    collect_wait: float = 1.0
    reconcile: float = 1.0
    overdue: float = 1.0
    seat_lease: float = 600.0
    seat_margin: float = 60.0
    grace: float = 60.0


def clocks_from_environment() -> Clocks:
    """The clocks, changed by ES_QUEUE_CLOCKS (JSON, seconds by field name), for tests and unusual
    networks.

    Raises UsageError if that is invalid.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return Clocks()
    try:
        changes = {name: float(value) for name, value in json.loads(text).items()}
        if (
            set(changes) - {field.name for field in fields(Clocks)}
            or min(changes.values(), default=1.0) <= 0
        ):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        names = ", ".join(field.name for field in fields(Clocks))
        raise UsageError(f"{VARIABLE} is not JSON of seconds above 0 by name ({names})") from None
    return Clocks(**changes)
