"""Where workers serve their metrics: ES_QUEUE_METRICS_PORT and ES_QUEUE_METRICS_ADDRESS."""

from __future__ import annotations

import os

from es_queue.errors import UsageError

PORT, ADDRESS = "ES_QUEUE_METRICS_PORT", "ES_QUEUE_METRICS_ADDRESS"
LOOPBACK = "127.0.0.1"
LAST_PORT = 65535


def metrics_endpoint() -> tuple[str, int] | None:
    """Address and first port, None if the metrics are off. Raises UsageError."""
    text = os.environ.get(PORT, "")
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LAST_PORT))
    if not (is_number and 1 <= int(text) <= LAST_PORT):
        raise UsageError(f"{PORT} is {text[:40]!r}: use a port from 1 to {LAST_PORT}, or unset it")
    return os.environ.get(ADDRESS) or LOOPBACK, int(text)
