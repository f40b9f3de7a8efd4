"""The seeds of ``--seeds 1-5``, parsed."""

from __future__ import annotations

from es_queue.errors import UsageError
from es_queue.util.number_ranges import parse_number_ranges

MOST_SEEDS = 100


def parse_seeds(text: str) -> tuple[int, ...]:
    """``1-5`` or ``1,3,7-9`` as seeds, in the order given. Raises UsageError for anything else."""
    try:
        return parse_number_ranges(text, "seed", MOST_SEEDS, 2**63 - 1)
    except ValueError as error:
        label = repr(text) if len(text) <= 60 else repr(text[:60]) + "..."
        raise UsageError(f"seeds is {label} in the command line: {error}") from None
