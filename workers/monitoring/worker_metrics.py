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

from es_queue.util.metrics_endpoint import LAST_PORT, make_metric
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
        for name, text, value in (
            ("episodes_total", "Episodes of results", control.work.episodes),
            ("steps_total", "Environment steps", control.steps),
            ("blocks_total", "Blocks evaluated", blocks),
            ("late_blocks_total", "Blocks whose result came too late", late),
            ("failures_total", "Slots that failed", control.work.failures),
            ("busy_seconds_total", "Seconds spent on blocks", busy),
            ("idle_ratio", "Share of the seat's time spent without a block", 1 - busy / seconds),
            ("memory_bytes", "Resident memory of the process", resident_memory()),
        ):
            yield make_metric(f"worker_{name}", text, [(self._labels, max(0.0, value))])


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
