"""``--seeds 1-5``: one run per seed over the same workers, and what they reached together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from es_queue.errors import UsageError

if TYPE_CHECKING:
    from master.options import Launch

MOST_SEEDS = 100
PART = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", re.ASCII)


def parse_seeds(text: str) -> tuple[int, ...]:
    """``1-5`` or ``1,3,7-9`` as seeds, in the order given. Raises UsageError for anything else."""
    seeds: list[int] = []
    for part in text.split(","):
        match = PART.fullmatch(part.strip())
        if match is None:
            raise _refusal(text, "use whole numbers and ranges with commas between, such as 1-5 or 1,3,7-9")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last >= 2**63:
            raise _refusal(text, f"a seed is at most {2**63 - 1}")
        if last < first:
            raise _refusal(text, f"write the range from low to high, {last}-{first}")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise _refusal(text, f"use at most {MOST_SEEDS} seeds")
        seeds += range(first, last + 1)
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise _refusal(text, f"give each seed once, {seed} is there twice")
    return tuple(seeds)


def _refusal(text: str, fix: str) -> UsageError:
    shown = repr(text) if len(text) <= 60 else repr(text[:60]) + "..."
    return UsageError(f"seeds is {shown} in the command line: {fix}")


def study(values: dict[str, Any], launch: Launch) -> int:
    """Run ``launch.seeds`` under the settings ``values``; returns the exit code.

    0 when all have finished, 130 when somebody stopped them, else the code of the first that failed. Raises
    UsageError, EnvironmentFailure, RedisError or RunFolderError for what fails before the first run is started.
    """
    from master.study.begin import begin

    return begin(values, launch)


def study_resume(launch: Launch, changes: dict[str, Any]) -> int:
    """Go on with the study ``launch.resume`` under ``changes``; codes and errors as for ``study``.

    Seeds that have finished are kept, unless ``changes`` gives them something to go on for.
    """
    from master.study.begin import resume

    return resume(launch, changes)
