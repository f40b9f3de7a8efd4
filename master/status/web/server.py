"""The page over HTTP: each connection has one request and a few seconds, and they are not many."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO

from master.household.listen import Address
from master.status.web.address import family_of, hosts_of, is_loopback, may_ask
from master.status.web.pages import GUARDS, Pages, Reply, said

#: Connections at once; with one more the oldest, which keeps us waiting, gives way.
MOST_CONNECTIONS = 64
#: Together with those that were hung up on and whose threads have not noticed yet: on a busy machine
#: that takes a while.
MOST_THREADS = 4 * MOST_CONNECTIONS
#: A connection has so many seconds in all, and so many for each of its pieces.
LONGEST_SECONDS = 30.0
PIECE_SECONDS = 10.0
#: Of the request line and all headers of a connection; browsers send 1 KB.
MOST_HEAD_BYTES = 16 * 1024
ALLOWED = "GET, HEAD"
MISDIRECTED = "this page is not served under that name: use the address that es-status printed, or start it with --web-host NAME"


class WebServer(ThreadingHTTPServer):
    """Serves pages until it is shut down. Raises OSError where it cannot listen."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: Address, pages: Pages, names: Iterable[str] = ()) -> None:
        """names: further hosts under which the page answers.

        Raises UsageError for one that cannot be a host.
        """
        self.pages, self.local, self.hosts = (
            pages,
            is_loopback(address.host),
            hosts_of(address, names),
        )
        self.address_family = family_of(address)
        self._lock, self._open, self._ending = threading.Lock(), dict[socket.socket, float](), set[socket.socket]()
        super().__init__((address.host, address.port), Handler)

    def server_bind(self) -> None:
        """Without http.server's look for our own name, which may ask a far name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open), None) if len(self._open) >= MOST_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
                self._ending.add(oldest)
            refused = len(self._open) + len(self._ending) >= MOST_THREADS
            if not refused:
                self._open[request] = time.monotonic()
        if oldest is not None:
            hang_up(oldest)
        if refused:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
            self._ending.discard(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second: who has had his time is hung up on."""
        now = time.monotonic()
        with self._lock:
            late = [one for one, began in self._open.items() if now - began > LONGEST_SECONDS]
        for one in late:
            hang_up(one)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is nobody's trouble; anything else is ours, and is said."""
        if not isinstance(sys.exception(), (OSError, ValueError)):
            super().handle_error(request, client_address)


def hang_up(connection: socket.socket) -> None:
    """Wake the thread that waits on it; that thread closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Head:
    """The lines of a request, as http.server reads them, up to MOST_HEAD_BYTES in all.

    http.server itself allows a hundred lines of 64 KiB, and keeps them.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, MOST_HEAD_BYTES

    def readline(self, most: int) -> bytes:
        """Raises HTTPException for the line that is too many, which http.server answers with 431."""
        line = self._file.readline(min(most, self._left + 1))
        self._left -= len(line)
        if self._left < 0:
            raise HTTPException("the head of the request is too long")
        return line

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: WebServer
    timeout = PIECE_SECONDS
    server_version, sys_version = "es-status", ""

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = Head(self.rfile)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except HTTPException:  # from the request line; http.server answers for the headers
            self.requestline = self.request_version = self.command = ""
            self.send_error(431)

    def do_GET(self) -> None:
        self._send(self._reply())

    def do_HEAD(self) -> None:
        self._send(self._reply())

    def _refuse(self) -> None:
        self._send(said(405, f"this page is for looking alone: use {ALLOWED}", Allow=ALLOWED))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse  # noqa: N815

    def _reply(self) -> Reply:
        if not may_ask(self.headers.get("Host"), self.server.hosts):
            return said(421, MISDIRECTED)
        reply = self.server.pages.reply(self.path.partition("?")[0])
        tag = reply.headers.get("ETag")
        if tag is not None and tag in (self.headers.get("If-None-Match") or ""):
            return Reply(304, reply.kind, b"", reply.headers)
        return reply.packed() if "gzip" in (self.headers.get("Accept-Encoding") or "") else reply

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        length = {} if reply.status == 304 else {"Content-Type": reply.kind, "Content-Length": str(len(reply.body))}
        for name, value in {**GUARDS, **reply.headers, **length, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses, without repeating a word of it."""
        self.close_connection = True
        self._send(said(code, "this request cannot be understood"))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: a page that asks each second would fill the terminal."""
