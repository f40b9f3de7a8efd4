"""es-master as it would be if the first answers closed a batch and later ones were dropped: what
most of its kind do.

It is the asynchronous schedule that keeps no older publication open: what is under way when
parameters change comes in vain, and workers leave it. ``python -m
tools.benchmarks.bias.first_arrivals ARGUMENTS``, with ``--schedule async``.
"""

from __future__ import annotations

import sys

from master.collect.async_ledger import AsyncLedger, PriorPublication


def none_kept(self: AsyncLedger, generation: int, max_lag: int) -> list[PriorPublication]:
    """Nothing older than the publication that is open counts."""
    return succeeded(self, generation, 0)


succeeded = AsyncLedger.take_still_open
AsyncLedger.take_still_open = none_kept  # type: ignore[method-assign]


if __name__ == "__main__":
    from master.cli.main import main

    sys.exit(main(sys.argv[1:]))
