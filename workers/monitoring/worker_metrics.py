"""A worker's metrics for Prometheus, served by the worker's own process: for a Host of its own, and
with the token if the user has set one.

This module loads prometheus_client, so only a worker that serves metrics imports it.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app
from prometheus_client.registry import Collector

from es_queue.security.web_access import (
    has_token,
    is_host_allowed,
    listening_hosts,
    token_from_environment,
)
from es_queue.util.metrics_endpoint import LAST_PORT, make_metric
from workers.episode import EpisodeControl
from workers.heartbeat import resident_memory

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

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
        busy, seconds = control.busy_seconds(), max(time.monotonic() - self._began, 1e-9)
        for name, text, value in (
            ("episodes_total", "Episodes of results", control.episodes),
            ("steps_total", "Environment steps", control.steps),
            ("blocks_total", "Blocks evaluated", blocks),
            ("late_blocks_total", "Blocks whose result came too late", late),
            ("failures_total", "Slots that failed", control.failures),
            ("busy_seconds_total", "Seconds spent on blocks", busy),
            ("idle_ratio", "Share of the seat's time spent without a block", 1 - busy / seconds),
            ("memory_bytes", "Resident memory of the process", resident_memory()),
        ):
            yield make_metric(f"worker_{name}", text, [(self._labels, max(0.0, value))])


class SilentHandler(WSGIRequestHandler):
    """Logs no request: an address may contain the token."""

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served_metrics(metrics: WorkerMetrics, address: str, first_port: int) -> Iterator[int]:
    """Serve ``metrics`` on the first free port from ``first_port`` on; yields the port. Raises
    OSError if there is none, and UsageError for an unusable token.
    """
    token = token_from_environment()
    registry = CollectorRegistry()
    registry.register(metrics)
    application = guarded(make_wsgi_app(registry), address, token)

    class MetricsServer(ThreadingWSGIServer):
        address_family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]

    last = min(first_port + PORTS - 1, LAST_PORT)
    for port in range(first_port, last + 1):
        try:
            server = make_server(address, port, application, MetricsServer, SilentHandler)
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


def guarded(application: WSGIApplication, address: str, token: str | None) -> WSGIApplication:
    """The application, for requests to loopback or to this address, and with the token if there is
    one.
    """
    hosts = listening_hosts(address)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if not is_host_allowed(environ.get("HTTP_HOST"), hosts):
            status, text = "421 Misdirected Request", "these metrics have no such host name"
        elif token is not None and not has_token(environ, token):
            status, text = "403 Forbidden", "these metrics need Authorization: Bearer TOKEN"
        else:
            return application(environ, start_response)
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{text}\n".encode()]

    return answer
