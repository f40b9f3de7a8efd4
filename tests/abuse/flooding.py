"""Floods by somebody who has a worker's password, sent as raw bytes: a client library would take
longer than the server.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 60.0


def command(*words: str | bytes) -> bytes:
    """A command as Redis reads it."""
    parts = [word if isinstance(word, bytes) else word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


def push(key: str, entry: bytes, count: int) -> bytes:
    """LPUSH of ``count`` equal entries."""
    return (
        b"*%d\r\n" % (count + 2)
        + command("LPUSH", key)[4:]
        + (b"$%d\r\n%b\r\n" % (len(entry), entry)) * count
    )


class Wire:
    """One connection that sends bytes and counts replies, which are integers or errors of
    one line.
    """

    def __init__(self, port: int, user: str, password: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._lines = self._socket.makefile("rb")
        assert self.send([command("AUTH", user, password)]) == [b"+OK"]

    def send(self, commands: Iterable[bytes]) -> list[bytes]:
        """The replies, in order."""
        replies = []
        for one in commands:
            self._socket.sendall(one)
            replies.append(self._lines.readline().rstrip())
        return replies

    def send_at_once(self, commands: list[bytes]) -> list[bytes]:
        """The same in one write."""
        self._socket.sendall(b"".join(commands))
        return [self._lines.readline().rstrip() for _ in commands]

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextmanager
def wire(port: int, folder: Path, user: str = "worker") -> Iterator[Wire]:
    """A connection of a user whose password is in ``folder``."""
    found = Wire(port, user, (folder / f"{user}.password").read_text().strip())
    try:
        yield found
    finally:
        found.close()
