"""A TCP proxy before a Redis server with the misfortunes of a network: slow, thin, sliced, reset, silent, deaf.

All settings may change while it runs and hold for every connection from then on.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote, urlsplit

PIECE = 2**16


class Proxy:
    """Listens on 127.0.0.1; ``url`` is what a client uses.

    latency:   seconds that every piece waits, each way
    bandwidth: bytes a second each way, 0 for no limit
    slice:     bytes that are sent at once at most, 0 for no limit
    frozen:    nothing passes and nothing is closed: a half-open connection
    ``swallow(n)`` drops the next n replies and closes their connections; ``reset()`` resets every connection.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.latency, self.bandwidth, self.slice, self.frozen = 0.0, 0, 0, False
        self.swallowed = self.connections = 0
        self._left = 0
        self._wanted: Callable[[bytes], bool] = lambda reply: True
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, replies: int = 1, wanted: Callable[[bytes], bool] = lambda reply: True) -> None:
        """Drop the next replies for which ``wanted`` holds."""
        with self._lock:
            self._left, self._wanted = replies, wanted

    def reset(self) -> int:
        """End every connection with an RST; how many there were."""
        with self._lock:
            doomed, self._open = self._open, set()
        for one in doomed:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
        return len(doomed)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    # --- threads

    def _connect(self) -> socket.socket:
        parts = urlsplit(self._upstream)
        if parts.scheme == "unix":
            server = socket.socket(socket.AF_UNIX)
            server.connect(unquote(parts.path))
            return server
        return socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), 5)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = self._connect()
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self.connections += 1
                    self._open |= {client, server}
                for source, target, replies in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=(source, target, replies), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while data := source.recv(self.slice or PIECE):
                while self.frozen:
                    time.sleep(0.01)
                if replies and self._take(data):
                    break
                if self.latency:
                    time.sleep(self.latency)
                if self.bandwidth:
                    time.sleep(len(data) / self.bandwidth)
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        with self._lock:
            self._open -= {source, target}

    def _take(self, reply: bytes) -> bool:
        with self._lock:
            if self._left and self._wanted(reply):
                self._left -= 1
                self.swallowed += 1
                return True
            return False
