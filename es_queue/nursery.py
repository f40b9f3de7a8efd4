"""Children in one process: parents are decoded once and kept, so that a child costs one product and one sum."""

from __future__ import annotations

import hashlib

import numpy as np

from es_queue.genome import Floats, Links, Table, descended
from es_queue.sums import NoiseRows

#: Bytes of decoded parents that a process keeps; the one that was not used for longest goes. Each takes some more.
MOST_BYTES, BESIDE = 2**29, 512
#: Nor are more kept than so many times the rows of a tree: older parents come back for late answers alone.
TREES = 4
#: Numbers by which a vector is told from others before it is compared whole.
LOOK = 256

Key = bytes


class Nursery:
    """Decoded rows of published family trees; ``decodes`` counts links that were applied.

    Kept vectors are known by the links that lead to them from the root under which they were decoded. When the root
    moves, the new one is found among them by its very numbers; where none is equal to it, all are forgotten, for
    whoever can write to Redis can publish any root.
    """

    def __init__(self, noise: NoiseRows, most: int = MOST_BYTES) -> None:
        self._noise, self._most = noise, most
        self._kept: dict[Key, Floats] = {}
        self._keys: list[Key] = []
        self._roots = 0
        self._base: Floats = np.empty(0, np.float32)
        self._table: Table | None = None
        self._worth: set[int] = set()
        self.decodes = 0

    def open(self, base: Floats, table: Table) -> None:
        """Take up another publication: its root decoded, and the tree below it."""
        self._base, self._table = base, table
        tree = table.tree
        self._keys = [self._root(base)]
        for parent, index, sigma in zip(tree.parent[1:].tolist(), tree.links.index[1:].tolist(), tree.links.sigma[1:], strict=True):
            self._keys.append(hashlib.blake2b(self._keys[parent] + index.to_bytes(8, "little") + sigma.tobytes(), digest_size=16).digest())
        forks = np.flatnonzero(np.bincount(tree.parent[1:], minlength=len(tree)) > 1)
        self._worth = {*forks.tolist(), *table.parents.tolist(), *table.contenders.tolist()}

    def _root(self, base: Floats) -> Key:
        for key, one in reversed(self._kept.items()):  # it was used lately
            if same(one[:LOOK], base[:LOOK]) and same(one, base):
                self._kept[key] = self._kept.pop(key)  # used last
                return key
        self._kept.clear()
        self._roots += 1
        key = b"root %d" % self._roots
        self._keep(key, base)
        return key

    def parent(self, number: int) -> Floats:
        """The parameters of a row of the tree, float32 [size]; kept, so never written to."""
        assert self._table is not None, "no publication was opened"
        tree, way, row = self._table.tree, list[int](), number
        while row and self._keys[row] not in self._kept:
            way.append(row)
            row = int(tree.parent[row])
        found = self._kept.pop(self._keys[row], self._base)
        self._keep(self._keys[row], found)
        part: list[int] = []
        for one in reversed(way):
            part.append(one)
            if one in self._worth or one == number:
                found = self._applied(found, tree.chain(part))
                self._keep(self._keys[one], found)
                part = []
        return found

    def child(self, number: int, index: int, sigma: float) -> Floats:
        """The parameters of a row, mutated: float32 [size], the caller's own."""
        start = self.parent(number)
        return descended(start, Links(np.array([index]), np.array([sigma], np.float32)), self._noise)

    def _applied(self, start: Floats, links: Links) -> Floats:
        self.decodes += len(links.index)
        return descended(start, links, self._noise)

    def _keep(self, key: Key, vector: Floats) -> None:
        self._kept[key] = vector
        while len(self._kept) > max(1, min(self._most // (vector.nbytes + BESIDE), TREES * max(8, len(self._keys)))):
            del self._kept[next(iter(self._kept))]


def same(one: Floats, other: Floats) -> bool:
    """Whether two vectors have the same bits."""
    return np.array_equal(one.view(np.int32), other.view(np.int32))
