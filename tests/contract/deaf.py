"""A proxy before a Redis server that can swallow replies: the server has executed, the client never
hears of it.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

from tests.contract.places import closing, stop_listening


class DeafProxy:
    """Listens on a Unix socket; ``swallow`` closes that many connections in place of their next
    reply, after ``passing`` others.
    """

    def __init__(self, server: Path, listen: Path) -> None:
        self._server = str(server)
        self._left = self._passing = 0
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen(64)
        self.url = f"unix://{listen}"
        self.swallowed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self, replies: int = 1, passing: int = 0) -> None:
        with self._lock:
            self._left, self._passing = replies, passing

    def close(self) -> None:
        stop_listening(self._listener)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                for source, target, replies in ((client, server, False), (server, client, True)):
                    threading.Thread(
                        target=self._pump, args=(source, target, replies), daemon=True
                    ).start()

    def _take(self) -> bool:
        with self._lock:
            if self._passing:
                self._passing -= 1
            elif self._left:
                self._left -= 1
                self.swallowed += 1
                return True
            return False

    def _pump(self, source: socket.socket, target: socket.socket, replies: bool) -> None:
        with closing(source), closing(target), suppress(OSError):
            while data := source.recv(2**16):
                if replies and self._take():
                    break
                target.sendall(data)
            for one in (source, target):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
