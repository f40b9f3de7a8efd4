"""es-status --web: say where the page is, and serve it until Ctrl-C."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from es_queue.protocol.keys import checked_run_id
from master.console import SafeStream
from master.household.listen import Address
from master.status.watch import interruptible
from master.status.web.address import chosen, hosts_of, unusable
from master.status.web.looks import Looks
from master.status.web.pages import Pages
from master.status.web.server import WebServer

REACHABLE = (
    "WARNING: the page can be read by everyone who reaches {place}: names and settings of runs, hosts, and tracebacks. It asks for no "
    "password and is not encrypted; leave the address out and use  ssh -L {port}:localhost:{port} THIS-HOST  to keep it to yourself"
)


def serve(given: argparse.Namespace, out: SafeStream, err: SafeStream) -> int:
    """Serve until the watcher ends it, by a KeyboardInterrupt or a signal, which is raised.

    Raises UsageError where it cannot listen, and what the first look raises.
    """
    address = chosen(given.web)
    names = given.web_host or ()
    hosts_of(address, names)
    looks = Looks(given, given.every)
    if given.run is not None:
        looks.run(given.run)
    else:
        looks.runs()
    with interruptible(), listening(address, looks, names) as server:
        if not server.local:
            err.line(f"es-status: {REACHABLE.format(place=address, port=address.port)}")
            err.line(
                f"es-status: the page answers as {', '.join(sorted({'localhost', *server.hosts}))}; name other hosts with --web-host NAME"
            )
        out.line(f"{url(address)}{'' if given.run is None else f'#run={checked_run_id(given.run)}'}  (Ctrl-C ends the page, no run)")
        server.serve_forever(poll_interval=0.2)
    return 0


def listening(address: Address, looks: Looks, names: Iterable[str] = ()) -> WebServer:
    try:
        return WebServer(address, Pages(looks), names)
    except OSError as error:
        raise unusable(address, error) from None


def url(address: Address) -> str:
    """Where a browser of this host finds the page."""
    anywhere = address.host in ("0.0.0.0", "::")
    return f"http://{Address('localhost' if anywhere else address.host, address.port)}/"

