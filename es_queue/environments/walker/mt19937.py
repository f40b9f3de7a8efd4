"""The random stream of std::mt19937 with libstdc++'s distributions, from which EnvPool draws."""

from __future__ import annotations

import numpy as np

_WORD = 2**32
#: Words drawn ahead: a normal terrain takes about 600, so one draw serves an episode.
_BLOCK = 768


class Mt19937:
    """``std::mt19937(seed)``: the same doubles and integers as C++ code built with GCC's library.

    NumPy's RandomState has the same generator and seeding, and its stream is frozen (NEP 19).

    seed: integer in [0, 2**32)
    """

    def __init__(self, seed: int) -> None:
        self._source = np.random.RandomState(0)
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Begin again with another seed: fifty times cheaper than a new object."""
        self._source.seed(seed)
        self._words: list[int] = []
        self._next = 0

    def skip(self, words: int) -> None:
        """Skip ``words`` draws of 32 bits."""
        ahead = min(words, len(self._words) - self._next)
        self._next += ahead
        for _ in range(words - ahead):
            self.next_word()

    def next_word(self) -> int:
        """The next 32 bits, as ``std::mt19937::operator()``."""
        if self._next == len(self._words):
            self._words = np.frombuffer(self._source.bytes(4 * _BLOCK), "<u4").tolist()
            self._next = 0
        self._next += 1
        return self._words[self._next - 1]

    def uniform(self, low: float, high: float) -> float:
        """``std::uniform_real_distribution<double>``: two words per draw, the low one first."""
        fraction = (self.next_word() + self.next_word() * _WORD) / 2**64
        # The sum of 64 bits is rounded to 53 and may reach 1.0, which the C++ library steps back
        # from.
        return min(fraction, 1.0 - 2.0**-53) * (high - low) + low

    def integer(self, low: int, high: int) -> int:
        """``std::uniform_int_distribution<int>``: both ends included, Lemire's method (GCC 11 and
        later).
        """
        count = high - low + 1
        product = self.next_word() * count
        if product % _WORD < count:
            threshold = (_WORD - count) % count
            while product % _WORD < threshold:
                product = self.next_word() * count
        return low + product // _WORD
