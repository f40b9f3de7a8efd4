"""What chains of mutations cost: a child of a kept parent, and a whole individual of a network of
4.4 million parameters.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from es_queue.genetics import ROOT, MutationChain, ParentCache, ParentTable, apply_mutations
from es_queue.numerics.noise_table import LARGEST_DEFAULT, NoiseTable
from es_queue.policies.mlp import MlpPolicy
from tools.benchmarks.figures import Row
from tools.benchmarks.micro.arithmetic import in_turn, ratios, seconds, spread
from tools.benchmarks.runs import Bench

#: The network whose ten seeds a predecessor took 2.27 s to decode has 4,434,944 weights and those
#: of its outputs.
SHAPE, OUTPUTS = (17_280, 256), 18
LINKS = 10


def measured(bench: Bench) -> list[Row]:
    policy = MlpPolicy(SHAPE[0], OUTPUTS, SHAPE[1:], "relu")
    table, rng, size = (
        NoiseTable.open(2**24 if bench.quick else LARGEST_DEFAULT),
        np.random.default_rng(1),
        policy.size,
    )
    chain = MutationChain(
        rng.integers(0, table.size - size, LINKS), np.full(LINKS, 0.002, np.float32)
    )
    first = rng.standard_normal(size).astype(np.float32)
    product, total, row, sigma = (
        np.empty(size, np.float32),
        np.empty(size, np.float32),
        table.row(int(chain.index[0]), size),
        np.float32(0.002),
    )
    cache = ParentCache(table)
    cache.open(first, ParentTable(ROOT, np.zeros(1, np.int64), np.empty(0, np.int64)))

    def axpy() -> None:
        np.multiply(row, sigma, out=product)
        np.add(first, product, out=total)

    found = in_turn(
        {
            "child": lambda: cache.child(0, int(chain.index[0]), 0.002),
            "axpy": axpy,
            "chain": lambda: apply_mutations(first, chain, table),
        },
        3 * bench.repeats,
    )
    starts = {
        init: seconds(partial(policy.initial, 1, init)) for init in ("zero", "normal", "orthogonal")
    }
    beside = {
        "first parameters, once a seed list": ", ".join(
            f"{init} {1000 * took:.0f} ms" for init, took in starts.items()
        )
    }
    values = {
        name: tuple(spread(found[name])[which] for which in ("least", "median", "greatest"))
        for name in found
    }
    ratio = ratios(found, "child", "axpy")
    return [
        Row(
            "genome-decode",
            f"{LINKS} mutations of {size:,} parameters decoded",
            tuple(1000 * one for one in values["chain"]),
            " ms",
            200.0,
            "<",
            beside,
            repeats=3 * bench.repeats,
        ),
        Row(
            "genome-child",
            f"child of a kept parent, {size:,} parameters ÷ one axpy",
            (ratio["least"], ratio["median"], ratio["greatest"]),
            "",
            1.5,
            "≤",
            {"child": f"{1000 * values['child'][1]:.1f} ms"},
            repeats=3 * bench.repeats,
        ),
    ]
