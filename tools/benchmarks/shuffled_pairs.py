"""``python -m tools.benchmarks.shuffled_pairs SEED [options of es-master]``: a control run of a
model. Each coefficient is applied to the noise of another pair, so steps have the usual lengths but
learn nothing. For docs/large_models.md.
"""

from __future__ import annotations

import sys

import numpy as np

from es_queue.numerics.arrays import Doubles
from es_queue.strategies import model_es
from es_queue.strategies.shaping import utilities
from master.cli.main import main


def shuffle_pairs(seed: int) -> None:
    """Replace the utilities of models' runs in this process, which the master computes."""
    generator = np.random.default_rng([seed])

    def shuffled(shaping: str, fitness: Doubles) -> Doubles:
        found: Doubles = utilities(shaping, fitness)
        order = generator.permutation(len(found))
        found[order] = found[np.roll(order, 1)]
        return found

    model_es.utilities = shuffled  # type: ignore[attr-defined]


if __name__ == "__main__":
    shuffle_pairs(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
