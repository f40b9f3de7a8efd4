"""Reads the result streams of the open publications into the ledger, in bulk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from es_queue.protocol.channel import MasterChannel, StreamEntry
from master.collect.ledger import Ledger

MOST_READ, FIRST_READ = 1000, 4
#: Entries a second that are read again at the most, and how many seconds a flood may keep reconcile
#: waiting.
MOST_REREAD_PER_SECOND, MOST_POSTPONED_TICKS = 5000, 10
MOST_READ_BYTES = 4 * 2**20  # of one reply, as far as its size can be told from the one before


@dataclass
class StreamCursor:
    """How far the stream of an open publication was read; the cursor may go back, and what was
    ``seen`` does not count twice.
    """

    cursor: str = "0"
    seen: set[str] = field(default_factory=set)

    def move_to(self, cursor: str) -> None:
        """Read on from there."""
        self.cursor = cursor


class StreamReader:
    """patience: seconds of a flood after which reconcile comes first; answered_at: when an answer
    last counted, on the wall clock; has_results: whether any ever has
    """

    def __init__(self, channel: MasterChannel, patience: float) -> None:
        self._channel, self._patience = channel, patience
        self._cursors: dict[str, StreamCursor] = {}
        self._read_count = FIRST_READ
        self._postponed_ticks = 0
        self._next_reread = 0.0
        self.answered_at = time.time()
        self.has_results = False

    def open(self, publication: str, prior: Iterable[str]) -> None:
        """Read a publication from its beginning, and prior ones on from where they are."""
        kept = {name: self._cursors.get(name, StreamCursor()) for name in prior}
        self._cursors = {**kept, publication: StreamCursor()}

    def restart(self) -> None:
        """Streams are there again, and may have ids that others had."""
        self._cursors = {publication: StreamCursor() for publication in self._cursors}

    def rewind(self) -> None:
        """All streams are read from their beginning again (rule 9)."""
        for cursor in self._cursors.values():
            cursor.move_to("0")

    def reread(self) -> None:
        """From the beginning (rule 9), in case something stands where nobody looks; of many entries
        seldom, for that takes its time.
        """
        now = time.monotonic()
        if now >= self._next_reread:
            self.rewind()
            seen = sum(len(cursor.seen) for cursor in self._cursors.values())
            self._next_reread = now + seen / MOST_REREAD_PER_SECOND

    def mark_answered(self) -> None:
        """As if an answer had counted: a pause is no stall."""
        self.answered_at = time.time()

    def drain(self, ledger: Ledger, wait: float, workers: int) -> bool:
        """Drain what is there, but no flood for ever: a thousand entries, or 32 MiB, and the other
        duties come first. Whether nothing is left.
        """
        number = size = 0
        self._cursors.setdefault(ledger.publication, StreamCursor())
        while number < MOST_READ and size < 8 * MOST_READ_BYTES:
            limit = self._read_count
            cursors = {publication: tail.cursor for publication, tail in self._cursors.items()}
            entries_by_publication = self._channel.collect_each(
                cursors, limit, 0.0 if number else wait, ledger.largest_answer
            )
            length = sum(
                len(entry.payload)
                for entries in entries_by_publication.values()
                for entry in entries
            )
            count = sum(map(len, entries_by_publication.values()))
            number, size = number + count, size + length
            for publication, entries in entries_by_publication.items():
                self._accept_entries(ledger, publication, entries, workers)
            if self._channel.is_cut:  # what was read, its length says nothing of what was asked for
                limit = max(1, count)
            elif all(len(entries) < limit for entries in entries_by_publication.values()):
                self._read_count = FIRST_READ
                return True
            # Large entries are read one by one: a reply of a thousand of them would fill this
            # process.
            self._read_count = max(
                1, min(MOST_READ, 4 * limit, MOST_READ_BYTES * limit // (length + 1))
            )
        return False

    def drain_fully(self, ledger: Ledger, workers: int) -> bool:
        """Read to the end: what is unread would look as if nobody held it. A flood that does not
        end puts reconcile off for a while only.
        """
        until = time.monotonic() + self._patience
        while not self.drain(ledger, 0.0, workers):
            if time.monotonic() > until:
                self._postponed_ticks += 1
                return self._postponed_ticks > MOST_POSTPONED_TICKS
        self._postponed_ticks = 0
        return True

    def _accept_entries(
        self, ledger: Ledger, publication: str, entries: Sequence[StreamEntry], workers: int
    ) -> None:
        """What did not count is deleted, so that a flood does not stay (rule 6)."""
        cursor = self._cursors[publication]
        if (
            not cursor.seen and not entries[0].payload
        ):  # the header; any other entry without an answer is refused
            cursor.seen.add(entries[0].id)
        unseen = [entry for entry in entries if entry.id not in cursor.seen]
        cursor.seen.update(entry.id for entry in unseen)
        refused = [entry.id for entry in unseen if not ledger.accept(entry.payload, workers)]
        self._channel.discard(publication, refused)
        cursor.seen.difference_update(refused)  # they are gone: a flood is not remembered either
        cursor.move_to(entries[-1].id)
        self.has_results = self.has_results or bool(ledger.tally.contributors)
        if len(refused) < len(unseen):
            self.answered_at = time.time()
