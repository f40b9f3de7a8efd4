"""A page on a free port, as es-status serves it."""

from __future__ import annotations

import argparse
import http.client
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from master.services.tcp_access import Address
from master.status.web import Looks, hosts_of, make_server

TOKEN = "a-token-of-the-tests"
GIVEN = dict.fromkeys(
    ("run", "run_folder", "redis_url", "run_dir", "runs_dir", "redis_password_file")
)


@contextmanager
def served(host: str = "127.0.0.1", names: Sequence[str] = ()) -> Iterator[int]:
    """Yields the port. The page shows the runs in ./runs."""
    address = Address(host, 0)
    looks = Looks(argparse.Namespace(**GIVEN), 0.2)
    server: Any = make_server(address, looks, TOKEN, hosts_of(address, names))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.effective_port
    finally:
        connections = list(server.active_channels.values())
        server.trigger.pull_trigger(server._map.clear)  # ends its loop
        thread.join(20)
        server.task_dispatcher.shutdown()
        for connection in connections:
            connection.close()
        server.close()


def asked(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and content of a reply to a request with the token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    shown = {"Host": "localhost", "Authorization": f"Bearer {TOKEN}"}
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=shown | more)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found
