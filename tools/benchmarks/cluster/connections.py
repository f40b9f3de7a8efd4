"""Timers and connections of one simulator process: a selector loop, for thousands of connections in
one thread.
"""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from tools.benchmarks.cluster.wire_format import Incomplete, Reply, first_error, parsed

#: Bytes of commands, and how many replies come.
Request = tuple[bytes, int]
Then = Callable[[Sequence[Reply]], None]


class Loop:
    """Calls timers and the receivers of replies.

    late: seconds by which timers were called too late, in all; called: how many
    """

    def __init__(self) -> None:
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._poll = select.epoll()
        self._links: dict[int, Link] = {}
        self._number = 0
        self.late, self.called = 0.0, 0
        self.over = False

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._number, call))

    def watch(self, link: Link) -> None:
        self._links[link.socket.fileno()] = link
        self._poll.register(link.socket.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Until ``over``."""
        while not self.over:
            wait = self._timers[0][0] - time.monotonic() if self._timers else 1.0
            for number, _ in self._poll.poll(max(0.0, min(1.0, wait)), 256):
                self._links[number].is_readable()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                due, _, call = heapq.heappop(self._timers)
                self.late, self.called = self.late + now - due, self.called + 1
                call()


class Link:
    """One connection to the server's Unix socket; requests are answered in the order in which they
    were sent.
    """

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.setblocking(False)
        self._buffer = bytearray()
        self._awaited: deque[tuple[int, Then]] = deque()
        self._replies: list[Reply] = []

    def ask(self, request: Request, then: Then) -> None:
        """``then`` gets the replies."""
        data, count = request
        self._awaited.append((count, then))
        sent = self.socket.send(data)
        if sent < len(data):  # an answer larger than the socket's buffer
            self.socket.setblocking(True)
            self.socket.sendall(data[sent:])
            self.socket.setblocking(False)

    def is_readable(self) -> None:
        try:
            data = self.socket.recv(2**18)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the server has closed a connection")
        self._buffer += data
        self._take()

    def _take(self) -> None:
        at = 0
        while self._awaited:
            count, then = self._awaited[0]
            try:
                while len(self._replies) < count:
                    reply, at = parsed(self._buffer, at)
                    self._replies.append(reply)
            except Incomplete:
                break
            replies, self._replies = self._replies, []
            self._awaited.popleft()
            if error := first_error(replies):
                raise RuntimeError(f"the server says {error}")
            then(replies)
        del self._buffer[:at]
