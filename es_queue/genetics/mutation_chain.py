"""Individuals as chains of mutations: the first parameters, then a noise index and a deviation per
link.

Such et al. 2017, https://arxiv.org/abs/1712.06567, section 3.1: θⁿ = θⁿ⁻¹ + σ ε(τₙ). Most links are
shared, so a family tree is kept. Its root is the last common ancestor, stored as a vector; the
links that lead to the root are kept only for seed lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.numerics.arrays import Floats, Integers
from es_queue.numerics.ordered_sums import NoiseRows, column_pieces

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
    """start + σ₁ε₁ + σ₂ε₂ + …, float32 [size], a new array: one product and one sum per link, each
    rounded to float32.

    It works piece by piece, so a long vector is read from memory once for all links. That changes
    no bit. Raises ValueError for an index outside the noise table.
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

    def path(self, row: int) -> list[int]:
        """The rows from below the root down to ``row``."""
        rows = []
        while row:
            rows.append(row)
            row = int(self.parent[row])
        return rows[::-1]

    def chain(self, rows: Sequence[int]) -> MutationChain:
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
        return replace(
            self,
            tree=tree,
            names=np.append(self.names, names),
            next_name=self.next_name + len(parents),
        ), names

    def prune(self, living: Integers, noise: NoiseRows) -> Lineage:
        """The tree without extinct lines; the root moves down to the last common ancestor of the
        ``living`` (names).
        """
        rows = self.rows(living)
        kept = self.tree.ancestors(rows.tolist())
        tree, name = self.tree.subtree(kept), self.names[kept]
        depth = common_ancestor_depth(tree, np.searchsorted(kept, rows))
        if depth:
            moved = tree.chain(list(range(1, depth + 1)))
            base = apply_mutations(self.base, moved, noise)
            prefix = self.prefix.append(moved.index, moved.sigma)
            tree = MutationTree(
                np.maximum(tree.parent[depth:] - depth, 0),
                MutationChain(tree.mutations.index[depth:], tree.mutations.sigma[depth:]),
            )
            return Lineage(base, prefix, tree, name[depth:], self.next_name)
        return replace(self, tree=tree, names=name)

    def decode(self, name: int, noise: NoiseRows) -> Floats:
        return apply_mutations(self.base, self.tree.chain(self.tree.path(self._row(name))), noise)

    def chain(self, name: int) -> MutationChain:
        rest = self.tree.chain(self.tree.path(self._row(name)))
        return self.prefix.append(rest.index, rest.sigma)

    def _row(self, name: int) -> int:
        return int(self.rows(np.array([name]))[0])

    # --- in a state

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
        return cls(
            arrays["base"],
            MutationChain(arrays["prefix_index"], arrays["prefix_sigma"]),
            tree,
            arrays["tree_name"],
            int(arrays["born"]),
        )


def common_ancestor_depth(tree: MutationTree, living: Integers) -> int:
    """The row of the last common ancestor of ``living`` (rows): the number of rows below the root
    on which all depend.

    A line without branches is in the first rows, because each row comes after its parent.
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
class ParentTable:
    """The parents of a publication's slots: a tree whose root is published beside it.

    parents: rows that are mutated; elite_candidates: rows to evaluate again, in the asynchronous
    schedule
    """

    tree: MutationTree
    parents: Integers
    elite_candidates: Integers

    def encode(self) -> Floats:
        """Counts, parents, contenders, then for each row below the root its parent, the index in
        two halves, and σ.
        """
        index, below = self.tree.mutations.index[1:], self.tree.parent[1:]
        rows = np.stack(
            [below, index >> 16, index & 0xFFFF, self.tree.mutations.sigma[1:]],
            axis=1,
            dtype=np.float32,
            casting="same_kind",
        )
        header = [len(self.tree), len(self.parents), len(self.elite_candidates)]
        return np.concatenate(
            [
                np.array(header, np.float32),
                self.parents.astype(np.float32),
                self.elite_candidates.astype(np.float32),
                rows.ravel(),
            ]
        )


HEADER_FLOATS = 3
#: More than a run has: rows are counted in float32, which holds whole numbers up to 2^24.
MAX_ROWS = 2**20
#: Floats that the largest table has.
MAX_TABLE_FLOATS = HEADER_FLOATS + 6 * MAX_ROWS


def decode_parent_table(values: Floats, index_count: int) -> ParentTable:
    """The table in ``values``; ``index_count``: number of noise indices. Raises ValueError if
    invalid.
    """
    header, rest = values[:HEADER_FLOATS], values[HEADER_FLOATS:]
    rows, parents, elite_candidates = whole_numbers(header, 0, MAX_ROWS, HEADER_FLOATS).tolist()
    count = parents + elite_candidates
    if len(rest) != count + 4 * max(0, rows - 1) or not rows:
        raise ValueError("a table of mutations does not have its stated length")
    named = whole_numbers(rest[:count], 0, rows - 1, count)
    each = rest[count:].reshape(-1, 4)
    halves = [whole_numbers(each[:, column], 0, 0xFFFF, rows - 1) for column in (1, 2)]
    index, parent = (halves[0] << 16) + halves[1], whole_numbers(each[:, 0], 0, rows, rows - 1)
    sigma = each[:, 3]
    if (
        (parent > np.arange(rows - 1)).any()
        or (index >= index_count).any()
        or not (np.isfinite(sigma) & (sigma >= 0)).all()
    ):
        raise ValueError("a table of mutations contains impossible values")
    mutations = MutationChain(np.append(0, index), np.append(np.float32(0), sigma))
    return ParentTable(
        MutationTree(np.append(0, parent), mutations), named[:parents], named[parents:]
    )


def whole_numbers(values: Floats, low: int, high: int, count: int) -> Integers:
    """``count`` float32 as integers from ``low`` to ``high``. Raises ValueError."""
    if (
        len(values) != count
        or not ((values >= low) & (values <= high) & (np.floor(values) == values)).all()
    ):
        raise ValueError("a table of mutations contains a number of the wrong type")
    return values.astype(np.int64)
