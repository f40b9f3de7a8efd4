"""The required slots of one kind, and which have no result; updated incrementally."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Slot = tuple[str, int]
Ranges = list[tuple[str, int, int]]


class PendingSlots:
    """The slots 0 … wanted-1 of a kind, or chosen ones.

    is_settled: whether a slot has a result or counts as failed; is_untouched: whether none has
    unanswered_count: the number of unanswered slots
    """

    def __init__(self, is_settled: Callable[[int], bool], is_untouched: Callable[[], bool]) -> None:
        self._is_settled, self._is_untouched = is_settled, is_untouched
        self._chosen: tuple[int, ...] | None = None
        self._marks = bytearray()  # 1 where a slot is wanted and unanswered
        self.unanswered_count = 0

    def require(self, count: int) -> None:
        """Require the first ``count`` slots instead."""
        if self._chosen is not None:
            self._chosen, self._marks, self.unanswered_count = None, bytearray(), 0
        if count < len(self._marks):
            del self._marks[count:]
            self.unanswered_count = self._marks.count(1)
        more = range(len(self._marks), count)
        new_marks = (
            bytearray(b"\1") * len(more)
            if self._is_untouched()
            else bytearray(not self._is_settled(slot) for slot in more)
        )
        self._marks += new_marks
        self.unanswered_count += new_marks.count(1)

    def require_slots(self, slots: Iterable[int]) -> bool:
        """Require these slots, ascending, instead; False if nothing changes."""
        chosen = tuple(slots)
        if chosen == (self._chosen or ()):
            return False
        self._chosen = chosen
        self._marks = bytearray(chosen[-1] + 1 if chosen else 0)
        for slot in chosen:
            self._marks[slot] = not self._is_settled(slot)
        self.unanswered_count = self._marks.count(1)
        return True

    @property
    def slots(self) -> Sequence[int]:
        """All required slots, ascending."""
        return range(len(self._marks)) if self._chosen is None else self._chosen

    def mark_answered(self, slot: int) -> None:
        """It has a result, or counts as failed."""
        if slot < len(self._marks) and self._marks[slot]:
            self._marks[slot] = 0
            self.unanswered_count -= 1

    def first_unanswered(self) -> int:
        """The first unanswered slot; the number of slots if there is none."""
        first_mark = self._marks.find(1)
        return len(self._marks) if first_mark < 0 else first_mark

    def ranges(self, kind: str) -> Ranges:
        runs: Ranges = []
        start = self._marks.find(1) if self.unanswered_count else -1
        while start >= 0:
            stop = self._marks.find(0, start)
            stop = len(self._marks) if stop < 0 else stop
            runs.append((kind, start, stop))
            start = self._marks.find(1, stop)
        return runs


def to_ranges(slots: Iterable[int], kind: str) -> Ranges:
    """Ascending slots as (kind, start, stop)."""
    runs: Ranges = []
    for slot in slots:
        if runs and runs[-1][2] == slot:
            runs[-1] = (kind, runs[-1][1], slot + 1)
        else:
            runs.append((kind, slot, slot + 1))
    return runs
