"""A TCP proxy before a Redis server with the misfortunes of a network: slow, reset, silent, deaf.

All settings may change while it runs and hold for every connection from then on.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

PIECE = 2**16

#: Whether a piece of what a client sends is what is waited for.
Wanted = Callable[[bytes], bool]


@dataclass(eq=False)
class Link:
    """One connection: both its sockets, and whether its next reply is lost."""

    client: socket.socket
    server: socket.socket
    deaf: bool = False

    def close(self) -> None:
        for one in (self.client, self.server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def reset(self) -> None:
        """End both sides with an RST."""
        for one in (self.client, self.server):
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RD)  # wakes the thread that reads, without a FIN
                one.close()


@dataclass
class Trap:
    """Waits for a request. ``skip``: how many such requests pass before it closes; ``act``: done
    before the request goes on.
    """

    matches: Wanted
    skip: int
    lose: bool
    act: Callable[[], object]


class Proxy:
    """Listens on 127.0.0.1; ``url`` is what a client uses.

    upstream:  URL of the server; connections from then on go there
    latency:   seconds that every piece waits, each way
    frozen:    nothing passes and nothing is closed: a half-open connection
    caught:    how many traps have closed
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.latency, self.frozen, self.caught = 0.0, False, 0
        self._traps: list[Trap] = []
        self._lock = threading.Lock()
        self._open: set[Link] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_reply_to(self, *words: bytes, skip: int = 0) -> None:
        """The server carries out the request that has all ``words``, the skip-th after now; its
        reply is lost, its connection closed.
        """
        self._set_trap(Trap(having(words), skip, True, lambda: None))

    def before(self, *words: bytes, act: Callable[[], object], skip: int = 0) -> None:
        """Do something just before the server hears the request that has all ``words``."""
        self._set_trap(Trap(having(words), skip, False, act))

    def _set_trap(self, trap: Trap) -> None:
        with self._lock:
            self._traps.append(trap)

    def reset(self) -> int:
        """End every connection with an RST; how many there were."""
        with self._lock:
            doomed, self._open = self._open, set()
        for one in doomed:
            one.reset()
        return len(doomed)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.frozen = False
        self.reset()

    # --- threads

    def _connect(self) -> socket.socket:
        parts = urlsplit(self.upstream)
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
                server.settimeout(None)
                for one in (client, server):
                    with suppress(OSError):
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link = Link(client, server)
                with self._lock:
                    self._open.add(link)
                for replies in (False, True):
                    threading.Thread(target=self._pump, args=(link, replies), daemon=True).start()

    def _pump(self, link: Link, replies: bool) -> None:
        source, target = (link.server, link.client) if replies else (link.client, link.server)
        with suppress(OSError):
            while data := source.recv(PIECE):
                if not replies:
                    self._spring(link, data)
                while self.frozen:
                    time.sleep(0.01)
                if replies and link.deaf:
                    break
                if self.latency:
                    time.sleep(self.latency)
                target.sendall(data)
        link.close()
        with self._lock:
            self._open.discard(link)

    def _spring(self, link: Link, request: bytes) -> None:
        """Close the traps that this request is for."""
        with self._lock:
            due = [one for one in self._traps if one.matches(request)]
            for one in due:
                one.skip -= 1
            due = [one for one in due if one.skip < 0]
            self._traps = [one for one in self._traps if one not in due]
            self.caught += len(due)
        for one in due:
            one.act()
            link.deaf = link.deaf or one.lose


def having(words: Iterable[bytes]) -> Wanted:
    """Whether a piece has all the words; one that begins with "!" must be absent."""
    present = [word for word in words if not word.startswith(b"!")]
    absent = [word[1:] for word in words if word.startswith(b"!")]
    return lambda data: (
        all(word in data for word in present) and not any(word in data for word in absent)
    )
