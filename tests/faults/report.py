"""``python -m tests.faults.report [--full] [--only TEXT] [--write]``: play every fault and print
the table.

``--full`` injects as often as the page says; ``--write`` puts the table into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
import traceback
from pathlib import Path

import tests.conftest  # noqa: F401 - it says what the workers may import
from tests.faults.scenario import SCENARIOS, Row, Scenario, arena, load

HEAD = (
    "fault",
    "injected",
    "noticed",
    "slots lost for good",
    "median s",
    "worst s",
    "digest",
    "remark",
)
BEGIN, END = "<!-- table: written by python -m tests.faults.report -->", "<!-- end of the table -->"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def played(one: Scenario, count: int) -> Row:
    """The row of one scenario; what fails is a row that says so."""
    if one.needs and shutil.which(one.needs) is None:
        return Row(one.name, remark=f"not played: {one.needs} is not here")
    try:
        with arena() as place:
            row = one.play(place, count)
    except Exception as error:
        traceback.print_exc()
        return Row(
            one.name,
            remark=(
                f"**failed**: {type(error).__name__}: "
                f"{str(error).splitlines()[0][:200] if str(error) else ''}"
            ),
        )
    row.fault = one.name
    return row


def table(rows: list[Row]) -> str:
    lines = [HEAD, ("---",) * len(HEAD), *(tuple(row.cells()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(text: str, rows: list[Row], names: list[str]) -> str:
    """The page with these rows in its table; lines of other scenarios that there still are stay as
    they were.
    """
    when = time.strftime("%Y-%m-%d", time.gmtime())
    about = (
        f"Last written {when} on {os.cpu_count()} shared cores ({platform.machine()}, Python "
        f"{platform.python_version()})."
    )
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    lines = {
        line.split(" | ")[0].removeprefix("| "): line
        for line in old.splitlines()
        if line.startswith("| ")
    }
    lines |= {row.fault: f"| {' | '.join(row.cells())} |" for row in rows}
    body = "\n".join([*table([]).splitlines(), *(lines[name] for name in names if name in lines)])
    return f"{before}{BEGIN}\n\n{about}\n\n{body}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.report", description=__doc__)
    parser.add_argument("--full", action="store_true", help="inject as often as the page says")
    parser.add_argument("--only", default="", help="only scenarios whose name has this text")
    parser.add_argument(
        "--write", action="store_true", help=f"put the rows into the table of {PAGE.name}"
    )
    given = parser.parse_args()
    load()
    rows: list[Row] = []
    for one in SCENARIOS.values():
        if given.only in one.name:
            rows.append(played(one, one.full if given.full else max(1, one.quick)))
            print(" | ".join(rows[-1].cells()), flush=True)
    print("\n" + table(rows))
    if given.write:
        PAGE.write_text(written(PAGE.read_text(), rows, list(SCENARIOS)))
    return 0 if all(row.is_sound or row.remark.startswith("not played") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
