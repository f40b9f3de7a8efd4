"""A worker's metrics for Prometheus, served by the worker's own process.

This module loads prometheus_client, so only a worker that serves metrics imports it.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector

from es_queue.util.metrics_endpoint import LAST_PORT
from workers.episode import EpisodeControl
from workers.heartbeat import resident_memory

#: The workers of a host take this many ports in turn.
PORTS = 256


class WorkerMetrics(Collector):
    """The figures of one seat, read only when they are scraped.

    labels: of every sample
    blocks: how many blocks were evaluated, and how many of them too late
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        control: EpisodeControl,
        blocks: Callable[[], tuple[int, int]],
    ) -> None:
        self._labels, self._control, self._blocks = dict(labels), control, blocks
        self._began = time.monotonic()

    def collect(self) -> Iterator[Metric]:
        (blocks, late), control = self._blocks(), self._control
        busy, seconds = control.work.busy_seconds(), max(time.monotonic() - self._began, 1e-9)
        counters = (
            ("episodes", "Episodes of results", control.work.episodes),
            ("steps", "Environment steps", control.steps),
            ("blocks", "Blocks evaluated", blocks),
            ("late_blocks", "Blocks whose result came too late", late),
            ("failures", "Slots that failed", control.work.failures),
            ("busy_seconds", "Seconds spent on blocks", busy),
        )
        gauges = (
            ("idle_ratio", "Share of the seat's time spent without a block", 1 - busy / seconds),
            ("memory_bytes", "Resident memory of the process", resident_memory()),
        )
        for name, text, value in counters:
            yield self._metric(name, text, "counter", value)
        for name, text, value in gauges:
            yield self._metric(name, text, "gauge", max(0.0, value))

    def _metric(self, name: str, text: str, kind: str, value: float) -> Metric:
        metric = Metric(f"es_queue_worker_{name}", text, kind)
        suffix = "_total" if kind == "counter" else ""
        metric.add_sample(f"es_queue_worker_{name}{suffix}", self._labels, value)
        return metric


@contextmanager
def served_metrics(metrics: WorkerMetrics, address: str, first_port: int) -> Iterator[int]:
    """Serve ``metrics`` on the first free port from ``first_port`` on; yields the port. Raises
    OSError if there is none.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    last = min(first_port + PORTS - 1, LAST_PORT)
    for port in range(first_port, last + 1):
        try:
            server, thread = start_http_server(port, address, registry)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == last:
                raise
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
