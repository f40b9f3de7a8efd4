"""Serves the page with waitress, and adds limits that waitress lacks: it closes only silent
connections, and stops accepting when it has too many.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Collection, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, WSGITask

from master.services.tcp_access import Address
from master.status.web.pages import JSON, SECURITY_HEADERS, Reply, WebRoutes, text_reply

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


import argparse
import errno
import json
import secrets
from contextlib import closing, suppress

from es_queue.errors import UsageError
from es_queue.protocol.keys import checked_run_id
from es_queue.security.sanitize import sanitize
from es_queue.security.web_access import (
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
from master.display.log_view import SafeStream
from master.services.tcp_access import is_address, parse_address
from master.status.watch import signals_as_interrupts
from master.status.web.queries import DashboardQueries

LOOPBACK, DEFAULT_PORT = "127.0.0.1", 8642


def parse_web_address(text: str) -> Address:
    """Parse ``ADDRESS:PORT``; the defaults are loopback and port 8642. Raises UsageError."""
    given = parse_address(text, "web")
    return Address(given.host or LOOPBACK, given.port or DEFAULT_PORT)


def named_hosts(names: Iterable[str]) -> frozenset[str]:
    """The values of --web-host in the form of Host headers.

    Raises UsageError for a value that is neither a name nor an address.
    """
    hosts = set[str]()
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


def hosts_of(address: Address, names: Iterable[str]) -> frozenset[str]:
    """The names and addresses, in addition to loopback's, under which a page at this address
    answers.

    Raises UsageError.
    """
    return named_hosts(names) | listening_hosts(address.host)


def bind_error(address: Address, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"web cannot be served at {address}: another program listens there; give another "
            f"port, such as --web {Address(address.host, find_free_port(address))}"
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"web cannot be served at {address}: this user may not listen there; use a port "
            "from 1024 on"
        )
    return UsageError(
        f"web cannot be served at {address}: {error.strerror or error}; give an address of "
        f"this host, or only a port (:{DEFAULT_PORT}); RUN comes before --web"
    )


def find_free_port(address: Address) -> int:
    """A port after the given one on which nothing listens; the next one if none is known."""
    following = range(address.port + 1, min(address.port + 20, 65536))
    for port in following:
        with (
            suppress(OSError),
            socket.create_server((address.host, port), family=address_family(address)),
        ):
            return port
    return min(address.port + 1, 65535)


def address_family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address.host else socket.AF_INET


ALLOWED = "GET, HEAD"
MISDIRECTED = (
    "this page is not served under that name: use the address that es-status printed, or start "
    "it with --web-host NAME"
)


#: Whether the page answers, for probes of containers. It needs no token and tells nothing else.
HEALTH_PATH = "/healthz"
FORBIDDEN = (
    "this page needs its token: open the address that es-status printed, with ?token=, or send "
    "the header Authorization: Bearer TOKEN"
)


class PageApplication:
    """Answers GET and HEAD of the page's paths under loopback names and ``hosts``, to requests with
    the token. The address with the token sets a cookie, so that no further address contains it.
    """

    def __init__(self, routes: WebRoutes, hosts: Collection[str], token: str, port: int) -> None:
        self._routes, self._hosts, self._token = routes, hosts, token
        # Browsers send a cookie to all ports of a host, so each page has a name of its own. Its
        # value is not the token, because the port can be another user's once this process has
        # ended.
        self._cookie = f"es-queue-{port}={secrets.token_urlsafe(32)}"

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            reply = self._reply(environ)
        except Exception:
            logging.getLogger(__name__).exception("es-status: the page failed")
            reply = text_reply(500, "the page failed: es-status printed the reason")
        start_response(status_line(reply), response_headers(reply))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [reply.body]

    def _reply(self, environ: WSGIEnvironment) -> Reply:
        if environ["REQUEST_METHOD"] not in ALLOWED.split(", "):
            return text_reply(405, f"this page is read-only: use {ALLOWED}", Allow=ALLOWED)
        if not is_host_allowed(environ.get("HTTP_HOST"), self._hosts):
            return text_reply(421, MISDIRECTED)
        path = environ["PATH_INFO"]
        if path == HEALTH_PATH:
            return text_reply(200, "the page answers")
        if not has_token(environ, self._token, self._cookie):
            return forbidden_reply(path)
        if path == "/" and has_token_in_address(environ, self._token):
            cookie = f"{self._cookie}; Path=/; HttpOnly; SameSite=Strict"
            moved = "the page is at / without the token"
            return text_reply(303, moved, **{"Location": "/", "Set-Cookie": cookie})
        reply = self._routes.reply(path)
        tag = reply.headers.get("ETag")
        if tag is not None and tag in environ.get("HTTP_IF_NONE_MATCH", ""):
            return Reply(304, reply.media_type, b"", reply.headers)
        return reply.compress() if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", "") else reply


def forbidden_reply(path: str) -> Reply:
    """In the form in which the page's script reads what is wrong, if it asks."""
    if path.startswith("/api/"):
        return Reply(403, JSON, json.dumps({"trouble": FORBIDDEN}).encode())
    return text_reply(403, FORBIDDEN)


def status_line(reply: Reply) -> str:
    return f"{reply.status} {HTTPStatus(reply.status).phrase}"


def response_headers(reply: Reply) -> list[tuple[str, str]]:
    """A reply without content has neither type nor length."""
    content = {"Content-Type": reply.media_type, "Content-Length": str(len(reply.body))}
    return list(
        {**SECURITY_HEADERS, **reply.headers, **({} if reply.status == 304 else content)}.items()
    )


#: Connections at once. One more closes the oldest, so that silent clients shut nobody out.
MOST_CONNECTIONS = 64
#: Requests that wait for a thread, those of closed connections included.
MOST_WAITING = 4 * MOST_CONNECTIONS
#: Seconds that a connection has in all. waitress counts only seconds of silence.
LONGEST_SECONDS = 30.0
BLANKS = re.compile(rb"[ \t]{2,}")
#: header size: the request line and all headers; browsers send 1 KB. body size: none.
LIMITS: dict[str, Any] = {
    "threads": 8,
    "connection_limit": 2 * MOST_CONNECTIONS,
    "backlog": MOST_CONNECTIONS,
    "channel_timeout": 10,
    "cleanup_interval": 1,
    "max_request_header_size": 16 * 1024,
    "max_request_body_size": 1,
    "log_socket_errors": False,
    "ident": "es-status",
}


class PageParser(HTTPRequestParser):
    """waitress's parser, safe from two kinds of requests that waitress 3.0 handles badly."""

    def parse_header(self, header_plus: bytes) -> None:
        """Raises ParsingError.

        Blanks are folded because waitress needs seconds for a field that has thousands of them.
        It does not catch the ValueError of a length with thousands of digits or of a broken URL.
        """
        try:
            super().parse_header(BLANKS.sub(b" ", header_plus))
        except ValueError:
            raise ParsingError("a number or a URL") from None


class PageTask(WSGITask):
    """A request and its response. The connection ends with it, so that its time is bounded."""

    def build_response_header(self) -> bytes:
        self.set_close_on_finish()
        return bytes(super().build_response_header())


class RefusalTask(ErrorTask):
    """The reply to a request that waitress refuses. Nothing of the request is repeated."""

    def execute(self) -> None:
        reply = text_reply(self.request.error.code, "this request cannot be understood")
        self.status = status_line(reply)
        self.response_headers.extend(response_headers(reply))
        self.set_close_on_finish()
        self.write(reply.body)


class PageChannel(HTTPChannel):
    parser_class, task_class, error_task_class = PageParser, PageTask, RefusalTask


class WebServer(TcpWSGIServer):
    """Serves pages until it is interrupted. Raises OSError if it cannot listen.

    Args:
        token: What each request must show.
        names: Further hosts under which the page answers.

    Raises:
        UsageError: One of ``names`` cannot be a host.
    """

    channel_class = PageChannel

    def __init__(
        self, address: Address, routes: WebRoutes, token: str, names: Iterable[str] = ()
    ) -> None:
        self.is_local, self.hosts = is_loopback(address.host), hosts_of(address, names)
        family = address_family(address)
        listening = socket.create_server(
            (address.host, address.port),
            family=family,
            dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
        )
        # waitress reports what clients do wrong, which would fill the terminal.
        logging.getLogger("waitress").setLevel(logging.CRITICAL)
        super().__init__(
            PageApplication(routes, self.hosts, token, listening.getsockname()[1]),
            _sock=listening,
            adj=Adjustments(**LIMITS),
            sockinfo=(family, listening.type, listening.proto, listening.getsockname()),
            bind_socket=False,
        )

    def serve_forever(self) -> None:
        """Serve until an exception, such as KeyboardInterrupt, which waitress's own ``run`` hides
        until all requests are answered.
        """
        wasyncore.loop(timeout=1, map=self._map)

    def handle_accept(self) -> None:
        """Accept a connection; if there are too many, close the oldest."""
        super().handle_accept()
        while len(self.active_channels) > MOST_CONNECTIONS:
            next(iter(self.active_channels.values())).handle_close()

    def add_task(self, task: PageChannel) -> None:
        """Let a request wait for a thread, unless too many do."""
        if len(self.task_dispatcher.queue) < MOST_WAITING:
            super().add_task(task)
        else:
            task.cancel()

    def maintenance(self, now: float) -> None:
        """Each second: close connections that are too old."""
        super().maintenance(now)
        for channel in self.active_channels.values():
            if now - channel.creation_time > LONGEST_SECONDS:
                channel.will_close = True


EXPOSURE_WARNING = (
    "WARNING: the page at {place} has no encryption: anyone who can read its network traffic sees "
    "the token and the page, with names and settings of runs, hosts, and tracebacks. To keep it "
    "private, leave the address out and use  ssh -L {port}:127.0.0.1:{port} THIS-HOST"
)


def serve(given: argparse.Namespace, out: SafeStream, err: SafeStream) -> int:
    """Serve until the user ends it by a KeyboardInterrupt or a signal, which is raised.

    Raises UsageError if it cannot listen, and the errors of the first query.
    """
    address = parse_web_address(given.web)
    names = given.web_host or ()
    hosts_of(address, names)
    chosen = token_from_environment(lambda text: err.write_line(f"es-status: WARNING: {text}"))
    token = chosen or secrets.token_urlsafe(32)
    queries = DashboardQueries(given, given.every)
    if given.run is not None:
        queries.run(given.run)
    else:
        queries.runs()
    with signals_as_interrupts(), closing(make_server(address, queries, token, names)) as server:
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
        # A token that the user has chosen stays out of the logs of a service.
        shown = f"?token={token}" if chosen is None else ""
        hint = f"with ?token= and the token of {TOKEN} or {TOKEN_FILE}; " if chosen else ""
        out.write_line(
            f"{page_url(address)}{shown}{anchor}  ({hint}Ctrl-C stops the page; runs continue)"
        )
        server.serve_forever()
    return 0


def make_server(
    address: Address, queries: DashboardQueries, token: str, names: Iterable[str] = ()
) -> WebServer:
    try:
        return WebServer(address, WebRoutes(queries), token, names)
    except OSError as error:
        raise bind_error(address, error) from None


def page_url(address: Address) -> str:
    """Not with the name localhost: another user's server on its other address could get the
    token.
    """
    hosts = {"0.0.0.0": LOOPBACK, "localhost": LOOPBACK, "::": "::1"}
    return f"http://{Address(hosts.get(address.host, address.host), address.port)}/"
