"""es-status --web: prints the page's address, and serves it until Ctrl-C."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import closing

from es_queue.protocol.keys import checked_run_id
from master.display.log_view import SafeStream
from master.services.tcp_access import Address
from master.status.watch import signals_as_interrupts
from master.status.web.address import bind_error, hosts_of, parse_web_address
from master.status.web.pages import WebRoutes
from master.status.web.queries import DashboardQueries
from master.status.web.server import WebServer

EXPOSURE_WARNING = (
    "WARNING: anyone who reaches {place} can read the page: names and settings of runs, hosts, "
    "and tracebacks. It has no password and no encryption. To keep it private, leave the address "
    "out and use  ssh -L {port}:localhost:{port} THIS-HOST"
)


def serve(given: argparse.Namespace, out: SafeStream, err: SafeStream) -> int:
    """Serve until the watcher ends it, by a KeyboardInterrupt or a signal, which is raised.

    Raises UsageError if it cannot listen, and what the first look raises.
    """
    address = parse_web_address(given.web)
    names = given.web_host or ()
    hosts_of(address, names)
    queries = DashboardQueries(given, given.every)
    if given.run is not None:
        queries.run(given.run)
    else:
        queries.runs()
    with signals_as_interrupts(), closing(make_server(address, queries, names)) as server:
        if not server.is_local:
            err.write_line(
                f"es-status: {EXPOSURE_WARNING.format(place=address, port=address.port)}"
            )
            err.write_line(
                "es-status: the page answers as "
                f"{', '.join(sorted({'localhost', *server.hosts}))}; name other hosts with "
                "--web-host NAME"
            )
        anchor = "" if given.run is None else f"#run={checked_run_id(given.run)}"
        out.write_line(f"{page_url(address)}{anchor}  (Ctrl-C stops the page; runs continue)")
        server.serve_forever()
    return 0


def make_server(
    address: Address, queries: DashboardQueries, names: Iterable[str] = ()
) -> WebServer:
    try:
        return WebServer(address, WebRoutes(queries), names)
    except OSError as error:
        raise bind_error(address, error) from None


def page_url(address: Address) -> str:
    """Where a browser of this host finds the page."""
    anywhere = address.host in ("0.0.0.0", "::")
    return f"http://{Address('localhost' if anywhere else address.host, address.port)}/"
