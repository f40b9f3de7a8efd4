"""Metrics for Prometheus, and where workers serve theirs: ES_QUEUE_METRICS_PORT and
ES_QUEUE_METRICS_ADDRESS.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from es_queue.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import Metric

PORT, ADDRESS = "ES_QUEUE_METRICS_PORT", "ES_QUEUE_METRICS_ADDRESS"
LOOPBACK = "127.0.0.1"
LAST_PORT = 65535
Sample = tuple[Mapping[str, str], float]


def metrics_endpoint() -> tuple[str, int] | None:
    """Address and first port, None if the metrics are off. Raises UsageError."""
    text = os.environ.get(PORT, "")
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LAST_PORT))
    if not (is_number and 1 <= int(text) <= LAST_PORT):
        raise UsageError(f"{PORT} is {text[:40]!r}: use a port from 1 to {LAST_PORT}, or unset it")
    return os.environ.get(ADDRESS) or LOOPBACK, int(text)


def make_metric(name: str, text: str, samples: Iterable[Sample]) -> Metric:
    """A counter if its name ends with ``_total``, else a gauge."""
    # start-up: prometheus_client takes 0.1 s and 8 MB, and only metrics need it
    from prometheus_client import Metric

    kind = "counter" if name.endswith("_total") else "gauge"
    metric = Metric(f"es_queue_{name.removesuffix('_total')}", text, kind)
    for labels, value in samples:
        metric.add_sample(f"es_queue_{name}", dict(labels), value)
    return metric
