"""es-master as it would be if the first answers closed a batch and later ones were dropped: what
most of its kind do.

It is the asynchronous schedule that keeps no older publication open: what is under way when
parameters change comes in vain, and workers leave it. ``python -m
tools.benchmarks.bias.first_arrivals ARGUMENTS``, with ``--schedule async``.
"""

from __future__ import annotations

import sys

from master.collect.publication.closing import AsyncBatch, PriorPublication
from master.collect.publication.tally import Tally


def none_kept(
    self: AsyncBatch, tally: Tally, generation: int, max_lag: int
) -> list[PriorPublication]:
    """Nothing older than the publication that is open counts."""
    return succeeded(self, tally, generation, 0)


succeeded = AsyncBatch.take_still_open
AsyncBatch.take_still_open = none_kept  # type: ignore[method-assign]


if __name__ == "__main__":
    from master.cli.main import main

    sys.exit(main(sys.argv[1:]))
