"""Individuals as chains of mutations: from the first parameters on, link by link, a noise index and its deviation.

Such, Madhavan, Conti, Lehman, Stanley, Clune 2017, https://arxiv.org/abs/1712.06567, section 3.1: θⁿ = θⁿ⁻¹ + σ ε(τₙ).
Those that live have most links in common, so a family tree of them is kept. Its root is their last common ancestor
where compaction has reached it, and stands there as a vector; the links that lead to it are kept for seed lists alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.sums import NoiseRows, pieces

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Links:
    """Mutations in their order. index: int64[k], starts in the noise table; sigma: float32[k]"""

    index: Ints
    sigma: Floats

    def then(self, index: Ints, sigma: Floats) -> Links:
        """These links, then more."""
        return Links(np.append(self.index, index), np.append(self.sigma, sigma))


NO_LINKS = Links(np.empty(0, np.int64), np.empty(0, np.float32))


def descended(start: Floats, links: Links, noise: NoiseRows) -> Floats:
    """start + σ₁ε₁ + σ₂ε₂ + …, float32 [size], a new array: one product and one sum a link, each rounded to float32.

    Piece by piece, so that a long vector is read from memory once for all links; that changes no bit.
    Raises ValueError for an index outside the noise table.
    """
    rows = noise.views(links.index, 0, len(start))
    if not rows:
        return np.array(start, np.float32)
    found = np.empty(len(start), np.float32)
    for first, stop in pieces(len(start)):
        before, after, product = start[first:stop], found[first:stop], np.empty(stop - first, np.float32)
        for row, sigma in zip(rows, links.sigma, strict=True):
            np.multiply(row[first:stop], sigma, out=product)
            np.add(before, product, out=after)
            before = after
    return found


@dataclass(frozen=True)
class Tree:
    """Who descends from whom: row 0 is the root, a row's parent stands above it.

    parent: int64[n], rows, the root's is itself; links: the mutation of each row, the root's counts for nothing
    """

    parent: Ints
    links: Links

    def __len__(self) -> int:
        return len(self.parent)

    def path(self, row: int) -> list[int]:
        """The rows from below the root down to ``row``."""
        found = []
        while row:
            found.append(row)
            row = int(self.parent[row])
        return found[::-1]

    def chain(self, rows: Sequence[int]) -> Links:
        """The mutations of rows, in their order."""
        return Links(self.links.index[rows], self.links.sigma[rows])

    def ancestry(self, rows: Iterable[int]) -> Ints:
        """``rows`` and all above them, the root too, ascending."""
        wanted = np.zeros(len(self), np.bool_)
        wanted[0] = True
        for row in rows:
            while not wanted[row]:
                wanted[row] = True
                row = int(self.parent[row])
        return np.flatnonzero(wanted)

    def part(self, rows: Ints) -> Tree:
        """The tree of ``rows`` alone, ascending and with all their ancestors."""
        place = np.zeros(len(self), np.int64)
        place[rows] = np.arange(len(rows))
        return Tree(place[self.parent[rows]], self.chain(rows.tolist()))


ROOT = Tree(np.zeros(1, np.int64), Links(np.zeros(1, np.int64), np.zeros(1, np.float32)))


@dataclass(frozen=True)
class Family:
    """A tree with its root decoded, and what came before the root.

    base: float32[size], the root; prefix: the links from the first parameters to it
    name: int64[n], a number for each row that never changes and is given once; born: how many were given
    """

    base: Floats
    prefix: Links
    tree: Tree
    name: Ints
    born: int

    @classmethod
    def of(cls, first: Floats) -> Family:
        """The first parameters alone."""
        return cls(first, NO_LINKS, ROOT, np.zeros(1, np.int64), 1)

    def rows(self, names: Ints) -> Ints:
        """The row of each name, -1 where it is not in the tree."""
        place = np.minimum(np.searchsorted(self.name, names), len(self.name) - 1)
        return np.where(self.name[place] == names, place, -1)

    def with_children(self, parents: Ints, links: Links) -> tuple[Family, Ints]:
        """With a child of each of ``parents`` (names in the tree), and the children's names."""
        names = self.born + np.arange(len(parents))
        tree = Tree(np.append(self.tree.parent, self.rows(parents)), self.tree.links.then(links.index, links.sigma))
        return replace(self, tree=tree, name=np.append(self.name, names), born=self.born + len(parents)), names

    def compacted(self, living: Ints, noise: NoiseRows) -> Family:
        """Without lines that have died out; the root moves down to the last common ancestor of the ``living`` (names)."""
        rows = self.rows(living)
        kept = self.tree.ancestry(rows.tolist())
        tree, name = self.tree.part(kept), self.name[kept]
        depth = common(tree, np.searchsorted(kept, rows))
        if depth:
            moved = tree.chain(list(range(1, depth + 1)))
            base, prefix = descended(self.base, moved, noise), self.prefix.then(moved.index, moved.sigma)
            tree = Tree(np.maximum(tree.parent[depth:] - depth, 0), Links(tree.links.index[depth:], tree.links.sigma[depth:]))
            return Family(base, prefix, tree, name[depth:], self.born)
        return replace(self, tree=tree, name=name)

    def decoded(self, name: int, noise: NoiseRows) -> Floats:
        """The parameters of one of the tree, float32 [size]."""
        return descended(self.base, self.tree.chain(self.tree.path(self._row(name))), noise)

    def genome(self, name: int) -> Links:
        """All links of one of the tree, from the first parameters on."""
        rest = self.tree.chain(self.tree.path(self._row(name)))
        return self.prefix.then(rest.index, rest.sigma)

    def _row(self, name: int) -> int:
        return int(self.rows(np.array([name]))[0])

    # --- in a state

    def to_arrays(self) -> Arrays:
        return {
            "base": self.base, "prefix_index": self.prefix.index, "prefix_sigma": self.prefix.sigma, "tree_parent": self.tree.parent,
            "tree_index": self.tree.links.index, "tree_sigma": self.tree.links.sigma, "tree_name": self.name, "born": np.array(self.born),
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Family:
        tree = Tree(arrays["tree_parent"], Links(arrays["tree_index"], arrays["tree_sigma"]))
        return cls(arrays["base"], Links(arrays["prefix_index"], arrays["prefix_sigma"]), tree, arrays["tree_name"], int(arrays["born"]))


def common(tree: Tree, living: Ints) -> int:
    """How many rows below the root all of the ``living`` (rows) descend from or are: their last common ancestor's row.

    A line without branches stands in the first rows, for a row stands below its parent.
    """
    children = np.bincount(tree.parent[1:], minlength=len(tree))
    alive = np.zeros(len(tree), np.bool_)
    alive[living] = True
    row = 0
    while children[row] == 1 and not alive[row]:
        row += 1
    return row


# --- on the wire: float32, for parameters are published as such


@dataclass(frozen=True)
class Table:
    """Whose children a publication's slots are: a tree whose root is published beside it.

    parents: rows of those that are mutated; contenders: rows of those that are evaluated again, in the asynchronous schedule
    """

    tree: Tree
    parents: Ints
    contenders: Ints

    def packed(self) -> Floats:
        """Counts, parents, contenders, then for each row below the root its parent, the index in two halves, and σ."""
        index, below = self.tree.links.index[1:], self.tree.parent[1:]
        rows = np.stack([below, index >> 16, index & 0xFFFF, self.tree.links.sigma[1:]], axis=1, dtype=np.float32, casting="same_kind")
        head = [len(self.tree), len(self.parents), len(self.contenders)]
        return np.concatenate([np.array(head, np.float32), self.parents.astype(np.float32), self.contenders.astype(np.float32), rows.ravel()])


HEAD = 3
#: More than a run has: rows are counted in float32, which holds whole numbers up to 2^24.
MOST_ROWS = 2**20
#: Floats that the largest table has.
MOST_FLOATS = HEAD + 6 * MOST_ROWS


def unpacked(values: Floats, places: int) -> Table:
    """The table in ``values``; ``places``: how many noise indices there are. Raises ValueError for anything that cannot be."""
    rows, parents, contenders = whole(values[:HEAD], 0, MOST_ROWS, HEAD).tolist()
    if len(values) != HEAD + parents + contenders + 4 * max(0, rows - 1) or not rows:
        raise ValueError("a table of mutations is not as long as it says")
    named = whole(values[HEAD : HEAD + parents + contenders], 0, rows - 1, parents + contenders)
    each = values[HEAD + parents + contenders :].reshape(-1, 4)
    halves = [whole(each[:, column], 0, 0xFFFF, rows - 1) for column in (1, 2)]
    index, parent, sigma = (halves[0] << 16) + halves[1], whole(each[:, 0], 0, rows, rows - 1), each[:, 3]
    if (parent > np.arange(rows - 1)).any() or (index >= places).any() or not (np.isfinite(sigma) & (sigma >= 0)).all():
        raise ValueError("a table of mutations holds what cannot be")
    links = Links(np.append(0, index), np.append(np.float32(0), sigma))
    return Table(Tree(np.append(0, parent), links), named[:parents], named[parents:])


def whole(values: Floats, low: int, high: int, count: int) -> Ints:
    """``count`` float32 as the integers from ``low`` to ``high`` that they must be. Raises ValueError."""
    if len(values) != count or not ((values >= low) & (values <= high) & (np.floor(values) == values)).all():
        raise ValueError("a table of mutations holds what is no number of its kind")
    return values.astype(np.int64)
