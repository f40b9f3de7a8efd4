"""es-master as it would be if the first answers closed a batch and later ones were dropped: what most of its kind do.

It is the asynchronous schedule that keeps no older publication open: what is under way when parameters change comes in
vain, and workers leave it. ``python -m tests.benchmarks.first_arrivals ARGUMENTS``, with ``--schedule async``.
"""

from __future__ import annotations

import sys

from master.window import Older, Window


def none_kept(self: Window, generation: int, max_lag: int) -> list[Older]:
    """Nothing older than the publication that is open counts."""
    return succeeded(self, generation, 0)


succeeded = Window.succeeded
Window.succeeded = none_kept  # type: ignore[method-assign]


if __name__ == "__main__":
    from master.cli import main

    sys.exit(main(sys.argv[1:]))
