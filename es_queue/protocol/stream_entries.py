"""Reads results streams within bounded memory: lengths are compared before bytes are fetched.

Anyone with a worker's rights can add an entry of a gigabyte, and redis-py holds a whole reply. This
reader stops at an entry that does not fit and closes the connection, so that the server drops the
rest of the reply.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

import redis

from es_queue.protocol.channel import StreamEntry
from es_queue.protocol.retry import Retry

#: Bytes of one reply; of its first entry there may be as many as an answer has.
REPLY_BYTES = 32 * 2**20
#: An entry of ours has one field. A few more are read and left out, many are not even read.
MOST_FIELDS = 64
#: Besides the answer: names of fields, and ids.
ENTRY_EXTRA = 1024
LONGEST_LINE = 1024
RECEIVED_AT_ONCE = 2**16
ANSWER = b"answer"
#: An entry as workers write it, up to its answer: id, and length of the answer.
PLAIN = re.compile(
    rb"\*2\r\n\$\d{1,2}\r\n([0-9-]{1,60})\r\n\*2\r\n\$6\r\nanswer\r\n\$(\d{1,9})\r\n"
)


class StreamReply(NamedTuple):
    """Entries of each stream, by key. is_cut: the rest of the reply was dropped with the
    connection.
    """

    streams: dict[bytes, list[StreamEntry]]
    is_cut: bool


class EntryTooLargeError(Exception):
    """The next entry does not fit. is_alone: it has more bytes than any entry may have."""

    def __init__(self, *, is_alone: bool) -> None:
        super().__init__()
        self.is_alone = is_alone


def read_entries(
    client: Any, cursors: Mapping[str, str], count: int, milliseconds: int, largest: int
) -> StreamReply:
    """XREAD of at most ``count`` entries of each stream, after its cursor.

    An entry of more than ``largest`` bytes comes with an empty payload, and the reply ends with
    it. Raises redis-py's errors, as its own commands do.
    """
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        words = ["XREAD", b"COUNT", count, b"BLOCK", milliseconds, b"STREAMS", *cursors]
        connection.send_command(*words, *cursors.values())
        reply = StreamReplyReader(connection._sock, largest).read()
        if reply.is_cut:
            connection.disconnect()
        return reply
    except TimeoutError:
        connection.disconnect()
        raise redis.exceptions.TimeoutError("Timeout reading from socket") from None
    except OSError as error:
        connection.disconnect()
        text = f"Error while reading from socket: {error.args}"
        raise redis.exceptions.ConnectionError(text) from None
    except redis.exceptions.ResponseError:
        raise
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


class EntryReader:
    """XREAD over one client, sent again until the server responds.

    is_cut: whether the last reply left out entries because of their size
    """

    def __init__(self, client: Any, again: Retry) -> None:
        self._client, self._again = client, again
        self.is_cut = False

    def read(
        self, cursors: Mapping[str, str], count: int, wait: float, largest: int
    ) -> dict[bytes, list[StreamEntry]]:
        """Entries of each stream after its cursor, by key; waits up to ``wait`` seconds."""
        asked, milliseconds = count, max(1, int(wait * 1000))

        def call() -> StreamReply:
            nonlocal asked
            try:
                return read_entries(self._client, cursors, asked, milliseconds, largest)
            except redis.exceptions.RedisError:
                asked = max(1, asked // 8)  # the reply may be what was too much for the server
                raise

        reply = self._again(call)  # twice: yes
        self.is_cut = reply.is_cut or asked < count
        return reply.streams


class StreamReplyReader:
    """Reads one reply to XREAD from a socket, in RESP 2 or 3."""

    def __init__(self, sock: socket.socket, largest: int) -> None:
        self._sock, self._largest = sock, largest + ENTRY_EXTRA
        self._data, self._position = b"", 0
        self._total = self._entry_bytes = 0  # of the whole entries so far, and of the next one

    def read(self) -> StreamReply:
        """The reply, up to the limit. Raises ResponseError if it is an error."""
        streams, is_cut = dict[bytes, list[StreamEntry]](), False
        kind, number = self._head()
        while kind == b">":  # nobody asked for it
            for _ in range(number):
                self._skip()
            kind, number = self._head()
        for _ in range(number):
            if kind == b"*":
                self._head()  # a pair
            name, entries = self._take(self._head()[1]), list[StreamEntry]()
            try:
                for _ in range(self._head()[1]):
                    self._read_entry(entries)
            except EntryTooLargeError:
                is_cut = True
            if entries:
                streams[name] = entries
            if is_cut:
                break
        return StreamReply(streams, is_cut)

    def _read_entry(self, entries: list[StreamEntry]) -> None:
        """Append the next entry. Raises EntryTooLargeError if it does not fit."""
        if (plain := PLAIN.match(self._data, self._position)) is not None:
            start, length = plain.end(), int(plain[2])
            fits = length <= self._largest and self._total + length <= REPLY_BYTES
            if fits and start + length + 2 <= len(self._data):
                entries.append(StreamEntry(plain[1].decode(), self._data[start : start + length]))
                self._position = start + length + 2
                self._total += length
                return
        self._head()  # id and fields
        self._entry_bytes = 0
        name, payload = self._bulk().decode(), b""
        try:
            numbers = self._head()[1]
            if numbers > 2 * MOST_FIELDS:
                raise EntryTooLargeError(is_alone=True)
            for _ in range(numbers // 2):
                is_answer = self._bulk() == ANSWER
                value = self._bulk()
                payload = value if is_answer else payload
        except EntryTooLargeError as error:
            if error.is_alone:
                entries.append(StreamEntry(name, b""))
            raise
        entries.append(StreamEntry(name, payload))
        self._total += self._entry_bytes

    def _head(self) -> tuple[bytes, int]:
        """Type and number of the next element; null counts as an empty list."""
        line = self._line()
        kind, text = line[:1], line[1:]
        if kind == b"-":
            raise redis.exceptions.ResponseError(text.decode("utf-8", "replace"))
        if kind == b"_":
            return b"*", 0
        if kind not in (b"*", b"%", b">", b"$"):
            raise redis.exceptions.InvalidResponse(f"Protocol Error: {line!r}")
        return kind, max(0, int(text))

    def _bulk(self) -> bytes:
        length = self._head()[1]
        self._entry_bytes += length
        if self._entry_bytes > self._largest:
            raise EntryTooLargeError(is_alone=True)
        if self._total and self._total + self._entry_bytes > REPLY_BYTES:
            raise EntryTooLargeError(is_alone=False)
        return self._take(length)

    def _skip(self) -> None:
        kind, number = self._head()
        if kind == b"$":
            self._take(number)
            return
        for _ in range(number * (2 if kind == b"%" else 1)):
            self._skip()

    def _line(self) -> bytes:
        while (end := self._data.find(b"\r\n", self._position)) < 0:
            if len(self._data) - self._position > LONGEST_LINE:
                raise redis.exceptions.InvalidResponse("Protocol Error: a line without an end")
            self._data, self._position = self._data[self._position :] + self._receive(), 0
        line = self._data[self._position : end]
        self._position = end + 2
        return line

    def _take(self, length: int) -> bytes:
        """Take that many bytes, and the line end after them."""
        stop = self._position + length
        if stop + 2 <= len(self._data):
            taken = self._data[self._position : stop]
            self._position = stop + 2
            return taken
        whole = bytearray(length + 2)
        had = len(self._data) - self._position
        whole[:had] = self._data[self._position :]
        self._data, self._position = b"", 0
        with memoryview(whole) as view:
            while had < length + 2:
                received = self._sock.recv_into(view[had:])
                if not received:
                    raise redis.exceptions.ConnectionError("Connection closed by server.")
                had += received
        del whole[length:]
        return bytes(whole)

    def _receive(self) -> bytes:
        data = self._sock.recv(RECEIVED_AT_ONCE)
        if not data:
            raise redis.exceptions.ConnectionError("Connection closed by server.")
        return data
