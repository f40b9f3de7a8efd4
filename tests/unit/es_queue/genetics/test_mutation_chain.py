"""Chains of mutations: decoded alike whatever was compacted, published exactly, read with every
number checked.
"""

from __future__ import annotations

import numpy as np
import pytest

from es_queue.genetics import (
    Floats,
    Lineage,
    MutationChain,
    apply_mutations,
    decode_parent_table,
)
from es_queue.numerics.arrays import ArrayNoise, Integers
from tests.cases import each_case

SIZE = 9
NOISE = ArrayNoise(np.random.default_rng(0).standard_normal(5_000, dtype=np.float32))
PLACES = len(NOISE.noise) - SIZE + 1
FIRST = np.linspace(-1, 1, SIZE).astype(np.float32)


def evolved(
    generations: int, parents: int = 3, children: int = 6, seed: int = 1, compact: bool = True
) -> tuple[Lineage, Integers]:
    """A family after so many generations of drift, and those of it who live."""
    rng, family, living = np.random.default_rng(seed), Lineage.of(FIRST), np.zeros(1, np.int64)
    for _ in range(generations):
        of = rng.choice(living, children)
        born = MutationChain(
            rng.integers(0, PLACES, children), rng.uniform(0, 0.3, children).astype(np.float32)
        )
        family, names = family.with_children(of, born)
        living = np.append(
            living[:1] if rng.random() < 0.7 else names[:1],
            names[rng.permutation(children)[: parents - 1]],
        )
        family = family.prune(living, NOISE) if compact else family
    return family, living


# --- the family


@each_case("seed", range(2))
def test_compaction_changes_no_bit_of_anybody_and_forgets_no_link(seed: int) -> None:
    (short, living), (whole, same) = evolved(40, seed=seed), evolved(40, seed=seed, compact=False)
    assert living.tolist() == same.tolist()
    assert len(short.tree) < 40 < len(whole.tree) and len(short.prefix.index) > 3
    for name in living.tolist():
        assert short.decode(name, NOISE).tobytes() == whole.decode(name, NOISE).tobytes()
        long, own = whole.chain(name), short.chain(name)
        assert (
            own.index.tolist() == long.index.tolist()
            and own.sigma.tobytes() == long.sigma.tobytes()
        )
        assert apply_mutations(FIRST, own, NOISE).tobytes() == short.decode(name, NOISE).tobytes()


# --- the table on the wire


def packed(**changes: float) -> Floats:
    """A root with one child, who is the only parent, with some of the numbers changed."""
    names = ("rows", "parents", "contenders", "named", "parent", "high", "low", "sigma")
    plain = dict(zip(names, (2, 1, 0, 1, 0, 0, 9, 0.5), strict=True))
    return np.array(list((plain | changes).values()), np.float32)


@each_case(
    "changes",
    [
        {"rows": 0},
        {"rows": np.nan},
        {"rows": 2**21},
        {"parents": 2},
        {"named": 2},
        {"parent": 1},
        {"high": 70_000},
        {"low": PLACES},
        {"sigma": np.nan},
    ],
)
def test_a_table_that_cannot_be_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a table of mutations"):
        decode_parent_table(packed(**changes), PLACES)


@each_case("cut", range(8))
def test_a_table_that_ends_too_early_is_refused(cut: int) -> None:
    with pytest.raises(ValueError, match="a table of mutations"):
        decode_parent_table(packed()[:cut], PLACES)
    with pytest.raises(ValueError, match="a table of mutations"):
        decode_parent_table(np.append(packed(), np.zeros(cut + 1, np.float32)), PLACES)
