"""The page of es-status: runs and their curves in a browser, and /metrics. It only reads.

waitress serves ``Page``, a WSGI application of a few fixed paths. Every answer needs the token and
a Host that the operator named.
"""

from __future__ import annotations

import argparse
import errno
import gzip
import json
import logging
import re
import secrets
import socket
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Any

import waitress

from es_queue.credentials import (
    HOST,
    TOKEN,
    TOKEN_FILE,
    has_token,
    has_token_in_address,
    is_host_allowed,
    is_loopback,
    listening_hosts,
    plain_host,
    token_from_environment,
)
from es_queue.errors import EsQueueError, UsageError
from es_queue.protocol.keys import RUN_ID, checked_run_id
from es_queue.text import sanitize
from master.display.log_view import SafeStream
from master.services.tcp_access import Address, is_address, parse_address
from master.status.metrics import format_metrics
from master.status.watch import signals_as_interrupts
from master.status.web.queries import DashboardQueries

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

LOOPBACK, DEFAULT_PORT = "127.0.0.1", 8642
#: waitress closes silent connections after channel_timeout seconds. Browsers send 1 KB of headers.
WAITRESS: dict[str, Any] = {
    "threads": 8,
    "connection_limit": 500,
    "channel_timeout": 10,
    "cleanup_interval": 1,
    "max_request_header_size": 16 * 1024,
    "max_request_body_size": 1,
    "asyncore_use_poll": True,
    "log_socket_errors": False,
    "ident": "es-status",
}
#: Only what comes from here runs, and no other page may put this one into a frame.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
JSON, TEXT = "application/json", "text/plain; charset=utf-8"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
RUN_PATH = re.compile(rf"/api/runs/(?P<run>{RUN_ID.pattern})(?:/(?P<part>errors|archive))?")
#: Whether the page answers, for probes of containers. It needs no token and shows nothing else.
HEALTH_PATH = "/healthz"
FORBIDDEN = (
    "this page needs its token: open the address that es-status printed, with ?token=, or send "
    "the header Authorization: Bearer TOKEN"
)
MISDIRECTED = (
    "this page is not served under that name: use the address that es-status printed, or start "
    "it with --web-host NAME"
)
EXPOSED = (
    "es-status: WARNING: the page at {place} has no encryption: anyone who can read its network "
    "traffic sees the token and the page, with names and settings of runs, hosts, and tracebacks. "
    "To keep it private, leave the address out and use  ssh -L {port}:127.0.0.1:{port} THIS-HOST"
)

#: Status, media type, body, and further headers.
Reply = tuple[int, str, bytes, dict[str, str]]


def serve(given: argparse.Namespace, out: SafeStream, err: SafeStream) -> int:
    """Serve until Ctrl-C or a signal, which is raised as KeyboardInterrupt.

    Raises UsageError if it cannot listen, and the errors of the first query.
    """
    address = parse_address(given.web, "web")
    address = Address(address.host or LOOPBACK, address.port or DEFAULT_PORT)
    hosts = hosts_of(address, given.web_host or ())
    chosen = token_from_environment(lambda text: err.write_line(f"es-status: WARNING: {text}"))
    token = chosen or secrets.token_urlsafe(32)
    queries = DashboardQueries(given, given.every)
    if given.run is not None:
        queries.run(given.run)
    else:
        queries.runs()
    with signals_as_interrupts(), closing(make_server(address, queries, token, hosts)) as server:
        if not is_loopback(address.host):
            err.write_line(EXPOSED.format(place=address, port=address.port))
            names = ", ".join(sorted({"localhost", *hosts}))
            err.write_line(
                f"es-status: the page answers as {names}; name other hosts with --web-host NAME"
            )
        # Not with the name localhost: another user's server on its other address could get the
        # token. A token that the user has chosen stays out of the logs of a service.
        shown = {"0.0.0.0": LOOPBACK, "localhost": LOOPBACK, "::": "::1"}
        url = f"http://{Address(shown.get(address.host, address.host), address.port)}/"
        query = "" if chosen else f"?token={token}"
        anchor = "" if given.run is None else f"#run={checked_run_id(given.run)}"
        hint = f"with ?token= and the token of {TOKEN} or {TOKEN_FILE}; " if chosen else ""
        out.write_line(f"{url}{query}{anchor}  ({hint}Ctrl-C stops the page; runs continue)")
        server.run()
    raise KeyboardInterrupt


def make_server(
    address: Address, queries: DashboardQueries, token: str, hosts: Collection[str]
) -> Any:
    """waitress with the page, listening; ``run`` serves it. Raises UsageError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listening = socket.create_server(
            (address.host, address.port),
            family=family,
            dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        raise bind_error(address, family, error) from None
    # waitress reports what clients do wrong, which would fill the terminal.
    logging.getLogger("waitress").setLevel(logging.CRITICAL + 1)
    page = Page(queries, hosts, token, listening.getsockname()[1])
    return waitress.create_server(page, sockets=[listening], **WAITRESS)


def bind_error(address: Address, family: socket.AddressFamily, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        free = address.port + 1
        for port in range(address.port + 1, min(address.port + 20, 65536)):
            with suppress(OSError), socket.create_server((address.host, port), family=family):
                free = port
                break
        why = (
            "another program listens there; give another port, such as --web "
            f"{Address(address.host, min(free, 65535))}"
        )
    elif error.errno == errno.EACCES:
        why = "this user may not listen there; use a port from 1024 on"
    else:
        why = (
            f"{error.strerror or error}; give an address of this host, or only a port "
            f"(:{DEFAULT_PORT}); RUN comes before --web"
        )
    return UsageError(f"web cannot be served at {address}: {why}")


def hosts_of(address: Address, names: Iterable[str]) -> frozenset[str]:
    """The hosts, in addition to loopback's, under which a page at this address answers.

    Raises UsageError for a value of --web-host that is neither a name nor an address.
    """
    hosts = set(listening_hosts(address.host))
    for name in names:
        match = HOST.fullmatch(f"[{name}]" if ":" in name and not name.startswith("[") else name)
        if match is None or match["port"] or (match["six"] and not is_address(match["six"])):
            raise UsageError(
                f"--web-host is {sanitize(name, 80)!r}: give the name or address by which a "
                "browser reaches the page, without http:// and port, such as node7.example; "
                "repeat the flag for more"
            )
        hosts.add(plain_host(match))
    return frozenset(hosts)


class Page:
    """The WSGI application. It answers GET and HEAD under loopback names and ``hosts``, to requests
    with the token. The address with the token sets a cookie, so that no further address contains
    it.
    """

    def __init__(
        self, queries: DashboardQueries, hosts: Collection[str], token: str, port: int
    ) -> None:
        self._queries, self._hosts, self._token = queries, hosts, token
        # Browsers send a cookie to all ports of a host, so each page has a name of its own. Its
        # value is not the token, because the port can be another user's once this process has
        # ended.
        self._cookie = f"es-queue-{port}={secrets.token_urlsafe(32)}"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            status, kind, body, more = self._reply(environ)
        except Exception:
            logging.getLogger(__name__).exception("es-status: the page failed")
            status, kind, body, more = text(500, "the page failed: es-status printed the reason")
        if len(body) > 1400 and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            body = gzip.compress(body, 1, mtime=0)
            more = {**more, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        content = {"Content-Type": kind, "Content-Length": str(len(body))}
        start_response(
            f"{status} {HTTPStatus(status).phrase}", list((HEADERS | more | content).items())
        )
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _reply(self, environ: WSGIEnvironment) -> Reply:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return text(405, "this page is read-only: use GET, HEAD", Allow="GET, HEAD")
        if not is_host_allowed(environ.get("HTTP_HOST"), self._hosts):
            return text(421, MISDIRECTED)
        if path == HEALTH_PATH:
            return text(200, "the page answers")
        if not has_token(environ, self._token, self._cookie):
            if path.startswith("/api/"):  # as the page's script reads what is wrong
                return 403, JSON, json.dumps({"trouble": FORBIDDEN}).encode(), {}
            return text(403, FORBIDDEN)
        if path == "/" and has_token_in_address(environ, self._token):
            cookie = f"{self._cookie}; Path=/; HttpOnly; SameSite=Strict"
            moved = "the page is at / without the token"
            return text(303, moved, **{"Location": "/", "Set-Cookie": cookie})
        if path in static_files():
            return 200, *static_files()[path], {}
        try:
            return self._data(path)
        except EsQueueError as error:
            status = 404 if isinstance(error, UsageError) else 503
            return status, JSON, json.dumps({"trouble": sanitize(error)}).encode(), {}

    def _data(self, path: str) -> Reply:
        """Raises UsageError for a run that does not exist, other EsQueueErrors if it cannot be
        read.
        """
        if path == "/metrics":
            try:
                figures = self._queries.figures()
            except EsQueueError as error:
                figures = {"trouble": str(error)}
            return 200, METRICS_TYPE, format_metrics(figures), {}
        if path == "/api/runs":
            return json_reply(self._queries.runs())
        match = RUN_PATH.fullmatch(path)
        if match is None:
            return text(404, "there is no such page")
        queries = {"errors": self._queries.errors, "archive": self._queries.archive}
        return json_reply(queries.get(match["part"], self._queries.run)(match["run"]))


def text(status: int, sentence: str, **headers: str) -> Reply:
    return status, TEXT, f"{sentence}\n".encode(), headers


def json_reply(data: object) -> Reply:
    return 200, JSON, json.dumps(data, allow_nan=False).encode(), {}


@cache
def static_files() -> dict[str, tuple[str, bytes]]:
    """The media type and content of the page's files by path. The paths are fixed, so none leads
    out of the folder.
    """
    files = {}
    for entry in resources.files("master.status").joinpath("static").iterdir():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            files[f"/{entry.name}"] = kind, entry.read_bytes()
    return {**files, "/": files["/index.html"]}
