"""The table as text and as docs/performance.md; everything here is a pure function of the
figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.benchmarks.figures import Row

#: Regeneration keeps the document from this line on.
BY_HAND = "<!-- From here on written by hand; the part above is generated. -->"
COMMAND = "python -m tools.benchmarks"
#: Why a target is missed, by row; a sentence each, shown while it is missed.
CAUSES: dict[str, str] = {
    "cartpole-untrained": (
        "Its episodes last about fifteen steps. A step costs about 75 µs, however few poles still "
        "stand; 29 µs of that is Gymnasium's own step. Seeding an episode takes another 10 µs."
    ),
    "gradient-wide": (
        "Threads pass on the interpreter's lock between calls into numpy. Each product is written "
        "to the cache and read again. A plain read has neither cost."
    ),
}

HEAD = """# Performance

Workers spend almost all CPU time in episodes: a whole run has about 96 % of the speed of bare \
episode loops. The master and the server together use less than 1 % of the CPU.

One command measured all figures on one machine. Where possible, a figure is a ratio, and both \
sides were measured several times, in turn, in the same run. The figure is the median; the next \
column has the least and the greatest. `{command}` measures again and also prints absolute rates \
(`--help` shows how to measure a part). `--json FILE` keeps the figures, and `--report FILE` \
writes this page from them.
"""


def line(row: Row) -> str:
    """A row for a terminal, with what stands beside it below."""
    if row.skipped:
        return f"{row.text}: skipped, {row.skipped}"
    first = (
        f"{row.text}: "
        f"{row.shown()}{f' ({row.spread()}, {row.times} times)' if row.spread() else ''}"
    )
    return "\n".join(
        [
            first + (f", target {row.required()}: {row.verdict}" if row.target is not None else ""),
            *(f"    {name}: {text}" for name, text in row.beside.items()),
        ]
    )


def document(found: dict[str, Any], before: str = "") -> str:
    """The page of some figures, as ``--json`` wrote them; ``before``: the page as it was, whose
    last part is kept.
    """
    rows = [Row.read(one) for one in found["rows"]]
    kept = before.partition(BY_HAND)[2] if BY_HAND in before else "\n"
    parts = [
        HEAD.format(command=COMMAND),
        machine(found["machine"], found["repeats"]),
        table(rows),
        missed(rows),
    ]
    return "\n".join(part for part in parts if part) + f"\n{BY_HAND}{kept}"


def machine(about: dict[str, str], repeats: int) -> str:
    told = ", ".join(
        f"{name} {value}" if name not in ("processor", "date", "system") else value
        for name, value in about.items()
    )
    quick = "**Measured with --quick: these figures mean nothing.** " if "quick" in about else ""
    return f"{quick}Measured with {repeats} repeats on: {told}.\n"


def table(rows: Sequence[Row]) -> str:
    lines = ["| figure | target | median | least to greatest | |", "|---|---|---|---|---|"]
    lines += [
        (
            f"| {row.text} | {row.required()} | {row.shown() or '–'} | {row.spread()} | "
            f"{verdict(row)} |"
        )
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def verdict(row: Row) -> str:
    return (
        f"skipped: {row.skipped}"
        if row.skipped
        else "**missed**"
        if row.met is False
        else row.verdict
    )


def missed(rows: Sequence[Row]) -> str:
    """A sentence of cause for each missed target."""
    found = [row for row in rows if row.met is False]
    if not found:
        return ""
    return "## Missed targets\n\n" + "".join(
        (
            f"- **{row.text}**: {row.shown()}, the target was {row.required()}. "
            f"{CAUSES.get(row.name, '')}"
        ).rstrip()
        + "\n"
        for row in found
    )
