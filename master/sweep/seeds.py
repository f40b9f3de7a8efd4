"""The seeds of ``--seeds 1-5``, parsed."""

from __future__ import annotations

import re

from es_queue.errors import UsageError

MOST_SEEDS = 100
SEED_RANGE = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", re.ASCII)


def parse_seeds(text: str) -> tuple[int, ...]:
    """``1-5`` or ``1,3,7-9`` as seeds, in the order given. Raises UsageError for anything else."""
    seeds: list[int] = []
    for part in text.split(","):
        match = SEED_RANGE.fullmatch(part.strip())
        if match is None:
            raise _seeds_error(
                text, "use whole numbers and ranges, separated by commas, such as 1-5 or 1,3,7-9"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last >= 2**63:
            raise _seeds_error(text, f"a seed is at most {2**63 - 1}")
        if last < first:
            raise _seeds_error(text, f"write the range from low to high, {last}-{first}")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise _seeds_error(text, f"use at most {MOST_SEEDS} seeds")
        seeds += range(first, last + 1)
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise _seeds_error(text, f"give each seed once; {seed} is listed twice")
    return tuple(seeds)


def _seeds_error(text: str, fix: str) -> UsageError:
    label = repr(text) if len(text) <= 60 else repr(text[:60]) + "..."
    return UsageError(f"seeds is {label} in the command line: {fix}")
