"""A worker's metrics for Prometheus, served by the worker's own process at ES_QUEUE_METRICS_PORT
and ES_QUEUE_METRICS_ADDRESS, under a Host of its own, and with the token if the user has set one.

``es-worker`` imports this module before it fixes the numeric environment: it must not load numpy.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from es_queue.credentials import (
    has_token,
    is_host_allowed,
    listening_hosts,
    token_from_environment,
)
from es_queue.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client import Metric

    from workers.episode import EpisodeControl

PORT, ADDRESS = "ES_QUEUE_METRICS_PORT", "ES_QUEUE_METRICS_ADDRESS"
LOOPBACK, LAST_PORT = "127.0.0.1", 65535
#: The workers of a host take this many ports in turn.
PORTS = 256


def metrics_endpoint() -> tuple[str, int] | None:
    """Address and first port, None if the metrics are off. Raises UsageError."""
    text = os.environ.get(PORT, "")
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LAST_PORT))
    if not (is_number and 1 <= int(text) <= LAST_PORT):
        raise UsageError(f"{PORT} is {text[:40]!r}: use a port from 1 to {LAST_PORT}, or unset it")
    return os.environ.get(ADDRESS) or LOOPBACK, int(text)


class WorkerMetrics:
    """Collects the figures of one seat when they are scraped.

    labels: of every sample; blocks: how many blocks were evaluated, and how many of them too late
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
        # start-up: prometheus_client takes 0.1 s and 8 MB, and few workers serve metrics
        from prometheus_client import Metric

        (blocks, late), control = self._blocks(), self._control
        busy, seconds = control.busy_seconds(), max(time.monotonic() - self._began, 1e-9)
        for name, kind, text, value in (
            ("episodes_total", "counter", "Episodes of results", control.episodes),
            ("steps_total", "counter", "Environment steps", control.steps),
            ("blocks_total", "counter", "Blocks evaluated", blocks),
            ("late_blocks_total", "counter", "Blocks whose result came too late", late),
            ("failures_total", "counter", "Slots that failed", control.failures),
            ("busy_seconds_total", "counter", "Seconds spent on blocks", busy),
            ("idle_ratio", "gauge", "Share of time without a block", 1 - busy / seconds),
            ("memory_bytes", "gauge", "Resident memory of the process", resident_memory()),
        ):
            name = f"es_queue_worker_{name}"
            metric = Metric(name.removesuffix("_total"), text, kind)
            metric.add_sample(name, self._labels, max(0.0, value))
            yield metric


def resident_memory() -> int:
    """Resident bytes of this process, 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def served_metrics(metrics: WorkerMetrics, address: str, first_port: int) -> Iterator[int]:
    """Serve ``metrics`` on the first free port from ``first_port`` on; yields the port. Raises
    OSError if there is none, and UsageError for an unusable token.
    """
    # start-up: every worker imports this module, and few serve metrics
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

    token, hosts = token_from_environment(), listening_hosts(address)
    registry = CollectorRegistry()
    registry.register(metrics)
    application = make_wsgi_app(registry)

    def guarded(environ: dict[str, Any], start_response: Any) -> Any:
        if not is_host_allowed(environ.get("HTTP_HOST"), hosts):
            status, text = "421 Misdirected Request", b"these metrics have no such host name\n"
        elif token is not None and not has_token(environ, token):
            status, text = "403 Forbidden", b"these metrics need Authorization: Bearer TOKEN\n"
        else:
            return application(environ, start_response)
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text]

    class MetricsServer(ThreadingWSGIServer):
        address_family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]

    class SilentHandler(WSGIRequestHandler):
        """Logs no request: an address may contain the token."""

        def log_message(self, *_: Any) -> None:
            pass

    last = min(first_port + PORTS - 1, LAST_PORT)
    for port in range(first_port, last + 1):
        try:
            server = make_server(address, port, guarded, MetricsServer, SilentHandler)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == last:
                raise
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
