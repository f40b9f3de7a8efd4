"""No call to Redis waits longer than it says: measured where bytes are sent and received, against
servers that say nothing.
"""

from __future__ import annotations

import itertools

from es_queue.protocol.connection import backoff_delays


def test_a_server_that_is_back_is_tried_within_a_second() -> None:
    tries = list(itertools.islice(backoff_delays(), 50))
    assert max(tries) <= 1.0 and min(tries[10:]) >= 0.5, "neither later than that, nor in circles"
