"""Serves the page with waitress, and adds limits that waitress lacks: it closes only silent
connections, and stops accepting when it has too many.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterable
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, WSGITask

from master.services.tcp_access import Address
from master.status.web.address import address_family, hosts_of, is_loopback
from master.status.web.application import PageApplication, response_headers, status_line
from master.status.web.pages import WebRoutes, text_reply

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
    """One connection."""

    parser_class, task_class, error_task_class = PageParser, PageTask, RefusalTask


class WebServer(TcpWSGIServer):
    """Serves pages until it is interrupted. Raises OSError if it cannot listen.

    Args:
        names: Further hosts under which the page answers.

    Raises:
        UsageError: One of ``names`` cannot be a host.
    """

    channel_class = PageChannel

    def __init__(self, address: Address, routes: WebRoutes, names: Iterable[str] = ()) -> None:
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
            PageApplication(routes, self.hosts),
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
        """Accept a connection; of too many the oldest is closed."""
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
        """Each second: close the connections whose time is over."""
        super().maintenance(now)
        for channel in self.active_channels.values():
            if now - channel.creation_time > LONGEST_SECONDS:
                channel.will_close = True
