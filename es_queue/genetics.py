"""Such et al. 2017, Deep neuroevolution, section 3.1: individuals as chains of mutations.

https://arxiv.org/abs/1712.06567: θⁿ = θⁿ⁻¹ + σ ε(τₙ), the first parameters, then a noise index and
a deviation per link. They are kept as a family tree, whose root, the last common ancestor, is a
vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Floats, Integers, NoiseRows, column_pieces

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class MutationChain:
    """Mutations in their order. index: int64[k], starts in the noise table; sigma: float32[k]"""

    index: Integers
    sigma: Floats

    def append(self, index: Integers, sigma: Floats) -> MutationChain:
        return MutationChain(np.append(self.index, index), np.append(self.sigma, sigma))


EMPTY_CHAIN = MutationChain(np.empty(0, np.int64), np.empty(0, np.float32))


def apply_mutations(start: Floats, mutations: MutationChain, noise: NoiseRows) -> Floats:
    """start + σ₁ε₁ + σ₂ε₂ + …, float32 [size], each product and sum rounded to float32, piece by
    piece, so that a long vector is read once. Raises ValueError for an index outside the noise.
    """
    rows = noise.views(mutations.index, 0, len(start))
    if not rows:
        return np.array(start, np.float32)
    result = np.empty(len(start), np.float32)
    for first, stop in column_pieces(len(start)):
        before, after = start[first:stop], result[first:stop]
        product = np.empty(stop - first, np.float32)
        for row, sigma in zip(rows, mutations.sigma, strict=True):
            np.multiply(row[first:stop], sigma, out=product)
            np.add(before, product, out=after)
            before = after
    return result


@dataclass(frozen=True)
class MutationTree:
    """A family tree: row 0 is the root, and parents precede children.

    parent: int64[n], rows, the root's is itself; mutations: of each row, the root's is ignored
    """

    parent: Integers
    mutations: MutationChain

    def __len__(self) -> int:
        return len(self.parent)

    def chain(self, rows: Sequence[int]) -> MutationChain:
        """The mutations of the rows."""
        return MutationChain(self.mutations.index[rows], self.mutations.sigma[rows])

    def ancestors(self, rows: Iterable[int]) -> Integers:
        """``rows`` and all above them, the root too, ascending."""
        included = np.zeros(len(self), np.bool_)
        included[0] = True
        for row in rows:
            while not included[row]:
                included[row] = True
                row = int(self.parent[row])
        return np.flatnonzero(included)

    def subtree(self, rows: Integers) -> MutationTree:
        """The subtree of ``rows``, ascending and with all their ancestors."""
        place = np.zeros(len(self), np.int64)
        place[rows] = np.arange(len(rows))
        return MutationTree(place[self.parent[rows]], self.chain(rows.tolist()))


ROOT = MutationTree(
    np.zeros(1, np.int64), MutationChain(np.zeros(1, np.int64), np.zeros(1, np.float32))
)


@dataclass(frozen=True)
class Lineage:
    """A tree with its root decoded, and the links before the root.

    base: float32[size], the root; prefix: the links from the first parameters to it
    names: int64[n], a unique number for each row, which never changes; next_name: the next unused
    one
    """

    base: Floats
    prefix: MutationChain
    tree: MutationTree
    names: Integers
    next_name: int

    @classmethod
    def of(cls, first: Floats) -> Lineage:
        return cls(first, EMPTY_CHAIN, ROOT, np.zeros(1, np.int64), 1)

    def rows(self, names: Integers) -> Integers:
        """The row of each name, -1 if it is not in the tree."""
        place = np.minimum(np.searchsorted(self.names, names), len(self.names) - 1)
        return np.where(self.names[place] == names, place, -1)

    def with_children(
        self, parents: Integers, mutations: MutationChain
    ) -> tuple[Lineage, Integers]:
        """With a child of each of ``parents`` (names in the tree), and the children's names."""
        names = self.next_name + np.arange(len(parents))
        tree = MutationTree(
            np.append(self.tree.parent, self.rows(parents)),
            self.tree.mutations.append(mutations.index, mutations.sigma),
        )
        family = replace(self, tree=tree, names=np.append(self.names, names))
        return replace(family, next_name=self.next_name + len(parents)), names

    def prune(self, living: Integers, noise: NoiseRows) -> Lineage:
        """The tree without extinct lines, from the last common ancestor of the ``living`` names."""
        rows = self.rows(living)
        kept = self.tree.ancestors(rows.tolist())
        tree, names = self.tree.subtree(kept), self.names[kept]
        # A line without branches is in the first rows, because each row comes after its parent.
        children, alive, depth = np.bincount(tree.parent[1:], minlength=len(tree)), set(rows), 0
        while children[depth] == 1 and kept[depth] not in alive:
            depth += 1
        if not depth:
            return replace(self, tree=tree, names=names)
        moved, links = tree.chain(range(1, depth + 1)), tree.mutations
        tree = MutationTree(
            np.maximum(tree.parent[depth:] - depth, 0),
            MutationChain(links.index[depth:], links.sigma[depth:]),
        )
        base = apply_mutations(self.base, moved, noise)
        prefix = self.prefix.append(moved.index, moved.sigma)
        return Lineage(base, prefix, tree, names[depth:], self.next_name)

    def decode(self, name: int, noise: NoiseRows) -> Floats:
        """The parameters of an individual, float32 [size]."""
        return apply_mutations(self.base, self._links(name), noise)

    def chain(self, name: int) -> MutationChain:
        """All mutations of an individual from the first parameters on."""
        links = self._links(name)
        return self.prefix.append(links.index, links.sigma)

    def _links(self, name: int) -> MutationChain:
        """Those from the root on."""
        row, path = int(self.rows(np.array([name]))[0]), list[int]()
        while row:
            path.append(row)
            row = int(self.tree.parent[row])
        return self.tree.chain(path[::-1])

    def to_arrays(self) -> Arrays:
        return {
            "base": self.base,
            "prefix_index": self.prefix.index,
            "prefix_sigma": self.prefix.sigma,
            "tree_parent": self.tree.parent,
            "tree_index": self.tree.mutations.index,
            "tree_sigma": self.tree.mutations.sigma,
            "tree_name": self.names,
            "born": np.array(self.next_name),
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Lineage:
        tree = MutationTree(
            arrays["tree_parent"], MutationChain(arrays["tree_index"], arrays["tree_sigma"])
        )
        prefix = MutationChain(arrays["prefix_index"], arrays["prefix_sigma"])
        return cls(arrays["base"], prefix, tree, arrays["tree_name"], int(arrays["born"]))


# --- on the wire: float32, for parameters are published as such


@dataclass(frozen=True)
class ParentTable:
    """The parents of a publication's slots: a tree whose root is published beside it.

    parents: rows that are mutated; elite_candidates: rows to evaluate again (asynchronously)
    """

    tree: MutationTree
    parents: Integers
    elite_candidates: Integers

    def encode(self) -> Floats:
        """Counts, parents, contenders, then for each row below the root its parent, the index in
        two halves, and σ.
        """
        index, below = self.tree.mutations.index[1:], self.tree.parent[1:]
        links = np.stack(
            [below, index >> 16, index & 0xFFFF, self.tree.mutations.sigma[1:]], axis=1
        )
        header = np.array([len(self.tree), len(self.parents), len(self.elite_candidates)])
        parts = header, self.parents, self.elite_candidates, links.ravel()
        return np.concatenate(parts).astype(np.float32)


HEADER_FLOATS = 3
#: More than a run has: rows are counted in float32, which holds whole numbers up to 2^24.
MAX_ROWS = 2**20
#: Floats that the largest table has.
MAX_TABLE_FLOATS = HEADER_FLOATS + 6 * MAX_ROWS


def decode_parent_table(values: Floats, index_count: int) -> ParentTable:
    """The table in ``values``; ``index_count``: number of noise indices. Raises ValueError if
    invalid.
    """
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    if len(whole) < HEADER_FLOATS:
        raise ValueError("a table of mutations lacks its counts")
    rows, parents, elite_candidates = whole[:HEADER_FLOATS].tolist()
    links = HEADER_FLOATS + parents + elite_candidates
    if not (0 < rows <= MAX_ROWS and parents >= 0 and elite_candidates >= 0):
        raise ValueError("a table of mutations has impossible counts")
    if len(values) != links + 4 * (rows - 1):
        raise ValueError("a table of mutations does not have its stated length")
    named, (parent, high, low, _) = whole[HEADER_FLOATS:links], whole[links:].reshape(-1, 4).T
    index, sigma = (high << 16) + low, values[links:].reshape(-1, 4)[:, 3]
    mutations = MutationChain(np.append(0, index), np.append(np.float32(0), sigma))
    tree = MutationTree(np.append(0, parent), mutations)
    table = ParentTable(tree, named[:parents], named[parents:])
    is_possible = (
        ((named >= 0) & (named < rows)).all()
        and ((parent >= 0) & (parent <= np.arange(rows - 1))).all()
        and ((index >= 0) & (index < index_count)).all()
        and (np.isfinite(sigma) & (sigma >= 0)).all()
    )
    if not is_possible or not np.array_equal(table.encode(), values):
        raise ValueError("a table of mutations contains impossible values")
    return table


# --- building children in one process

#: Bytes of decoded parents that a process keeps; the one that was not used for longest goes. Each
#: takes some more.
MAX_BYTES, ENTRY_OVERHEAD = 2**29, 512
#: Nor are more kept than so many times the rows of a tree: older parents come back only for late
#: results.
MAX_TREES = 4
#: Numbers by which a vector is told from others before it is compared whole.
COMPARED_FIRST = 256


class ParentCache:
    """Decoded rows of published family trees, by their links from a root. A new root is searched
    for among them by its bits; if none is equal, all are dropped.
    """

    def __init__(self, noise: NoiseRows, max_bytes: int = MAX_BYTES) -> None:
        self._noise, self._max_bytes = noise, max_bytes
        self._cache: dict[bytes, Floats] = {}
        self._keys: list[bytes] = []
        self._roots = 0
        self._base: Floats = np.empty(0, np.float32)
        self._table: ParentTable | None = None
        self._cacheable: set[int] = set()

    def open(self, base: Floats, table: ParentTable) -> None:
        """Open another publication: its decoded root, and the tree below it."""
        self._base, self._table = base, table
        tree = table.tree
        self._keys = [self._root(base)]
        links = zip(tree.parent.tolist(), tree.mutations.index, tree.mutations.sigma, strict=True)
        for parent, index, sigma in list(links)[1:]:
            link = self._keys[parent] + index.tobytes() + sigma.tobytes()
            self._keys.append(hashlib.blake2b(link, digest_size=16).digest())
        forks = np.flatnonzero(np.bincount(tree.parent[1:], minlength=len(tree)) > 1)
        often = np.concatenate([forks, table.parents, table.elite_candidates])
        self._cacheable = set(often.tolist())

    def _root(self, base: Floats) -> bytes:
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
                parameters = apply_mutations(parameters, tree.chain(segment), self._noise)
                self._store(self._keys[link_row], parameters)
                segment = []
        return parameters

    def child(self, number: int, index: int, sigma: float) -> Floats:
        """The parameters of a mutated row: float32 [size], a new array."""
        mutation = MutationChain(np.array([index]), np.array([sigma], np.float32))
        return apply_mutations(self.parent(number), mutation, self._noise)

    def _store(self, key: bytes, vector: Floats) -> None:
        self._cache[key] = vector
        most = self._max_bytes // (vector.nbytes + ENTRY_OVERHEAD)
        most = max(1, min(most, MAX_TREES * max(8, len(self._keys))))
        while len(self._cache) > most:
            del self._cache[next(iter(self._cache))]


def has_same_bits(first: Floats, second: Floats) -> bool:
    return np.array_equal(first.view(np.int32), second.view(np.int32))
