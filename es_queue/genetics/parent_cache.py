"""Builds children in one process. Decoded parents are kept, so a child costs one product and one
sum.
"""

from __future__ import annotations

import hashlib

import numpy as np

from es_queue.genetics.mutation_chain import MutationChain, ParentTable, apply_mutations
from es_queue.numerics.arrays import Floats
from es_queue.numerics.ordered_sums import NoiseRows

#: Bytes of decoded parents that a process keeps; the one that was not used for longest goes. Each
#: takes some more.
MAX_BYTES, ENTRY_OVERHEAD = 2**29, 512
#: Nor are more kept than so many times the rows of a tree: older parents come back for late answers
#: alone.
MAX_TREES = 4
#: Numbers by which a vector is told from others before it is compared whole.
COMPARED_FIRST = 256

Key = bytes


class ParentCache:
    """Decoded rows of published family trees; ``decodes`` counts the applied links.

    A kept vector is identified by its links from the root under which it was decoded. When the root
    changes, the new root is searched for among the kept vectors by its bits. If none is equal, all
    are dropped, because anyone who can write to Redis can publish any root.
    """

    def __init__(self, noise: NoiseRows, max_bytes: int = MAX_BYTES) -> None:
        self._noise, self._max_bytes = noise, max_bytes
        self._cache: dict[Key, Floats] = {}
        self._keys: list[Key] = []
        self._roots = 0
        self._base: Floats = np.empty(0, np.float32)
        self._table: ParentTable | None = None
        self._cacheable: set[int] = set()
        self.decodes = 0

    def open(self, base: Floats, table: ParentTable) -> None:
        """Open another publication: its decoded root, and the tree below it."""
        self._base, self._table = base, table
        tree = table.tree
        self._keys = [self._root(base)]
        for parent, index, sigma in zip(
            tree.parent[1:].tolist(),
            tree.mutations.index[1:].tolist(),
            tree.mutations.sigma[1:],
            strict=True,
        ):
            self._keys.append(
                hashlib.blake2b(
                    self._keys[parent] + index.to_bytes(8, "little") + sigma.tobytes(),
                    digest_size=16,
                ).digest()
            )
        forks = np.flatnonzero(np.bincount(tree.parent[1:], minlength=len(tree)) > 1)
        self._cacheable = {
            *forks.tolist(),
            *table.parents.tolist(),
            *table.elite_candidates.tolist(),
        }

    def _root(self, base: Floats) -> Key:
        for key, vector in reversed(self._cache.items()):  # it was used lately
            if has_same_bits(vector[:COMPARED_FIRST], base[:COMPARED_FIRST]) and has_same_bits(
                vector, base
            ):
                self._cache[key] = self._cache.pop(key)  # used last
                return key
        self._cache.clear()
        self._roots += 1
        key = b"root %d" % self._roots
        self._store(key, base)
        return key

    def parent(self, number: int) -> Floats:
        """The parameters of a row, float32 [size]; cached, so read-only."""
        assert self._table is not None, "no publication is open"
        tree, missing, row = self._table.tree, list[int](), number
        while row and self._keys[row] not in self._cache:
            missing.append(row)
            row = int(tree.parent[row])
        parameters = self._cache.pop(self._keys[row], self._base)
        self._store(self._keys[row], parameters)
        segment: list[int] = []
        for link_row in reversed(missing):
            segment.append(link_row)
            if link_row in self._cacheable or link_row == number:
                parameters = self._apply(parameters, tree.chain(segment))
                self._store(self._keys[link_row], parameters)
                segment = []
        return parameters

    def child(self, number: int, index: int, sigma: float) -> Floats:
        """The parameters of a mutated row: float32 [size], a new array."""
        start = self.parent(number)
        return apply_mutations(
            start, MutationChain(np.array([index]), np.array([sigma], np.float32)), self._noise
        )

    def _apply(self, start: Floats, mutations: MutationChain) -> Floats:
        self.decodes += len(mutations.index)
        return apply_mutations(start, mutations, self._noise)

    def _store(self, key: Key, vector: Floats) -> None:
        self._cache[key] = vector
        while len(self._cache) > max(
            1,
            min(
                self._max_bytes // (vector.nbytes + ENTRY_OVERHEAD),
                MAX_TREES * max(8, len(self._keys)),
            ),
        ):
            del self._cache[next(iter(self._cache))]


def has_same_bits(first: Floats, second: Floats) -> bool:
    return np.array_equal(first.view(np.int32), second.view(np.int32))
