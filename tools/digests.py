"""The table of digests: ``python -m tools.digests [WORD] [--processes] [--record]``.

Plays each row of ``tests/digests/digests.json`` whose name has WORD, and prints its name, the
expected and the found digest. It ends with 1 if one differs. What this machine cannot compare is
named. ``--processes`` plays the rows that say so with es-master and real workers, too.

``--record`` writes what it finds as expected. It refuses a row that has no power: one whose numbers
are those of another row, or stay the same without a setting that the row is there to show.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from es_queue.errors import EsQueueError, UsageError
from tests.digests import doors

WIDTH = 17
Play = Callable[[doors.Row], doors.Found]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.digests", description=__doc__)
    parser.add_argument("word", nargs="?", default="", help="only rows whose name has this text")
    parser.add_argument("--processes", action="store_true", help="with real workers, too")
    parser.add_argument("--record", action="store_true", help="write what is found as expected")
    given = parser.parse_args()
    table = doors.read_table()
    rows = [row for row in table["rows"] if given.word in row["name"]]
    if given.record:
        return record(table, rows)
    different = skipped = 0
    for row in rows:
        reason = doors.reason_to_skip(row)
        if reason:
            skipped += 1
            print(f"{row['name']:34} skipped: {reason}", flush=True)
            continue
        expected = doors.expected_of(row)
        plays: list[tuple[str, Play]] = [("", doors.play)]
        if given.processes and "processes" in row:
            plays.append((f" ({row['processes']} workers)", by_command))
        for words, play in plays:
            found = attempt(play, row)
            different += found != expected
            print(line(row["name"] + words, expected, found), flush=True)
    print(f"{len(rows)} rows: {different} differ, {skipped} are skipped")
    return 1 if different else 0


def attempt(play: Play, row: doors.Row) -> doors.Found:
    """What is found, or the error in place of a digest."""
    try:
        return play(row)
    except (EsQueueError, AssertionError) as error:
        return {"digest": "-", "trail": type(error).__name__, "error": str(error)}


def by_command(row: doors.Row) -> doors.Found:
    with tempfile.TemporaryDirectory() as folder:
        return doors.play_by_command(row, Path(folder), row["processes"])


def line(name: str, expected: doors.Found, found: doors.Found) -> str:
    verdict = "equal" if found == expected else f"DIFFERS: {expected} {found}"
    texts = (f"{each['digest'][:8]} {each['trail'][:8]}" for each in (expected, found))
    return "  ".join([f"{name:34}", *(f"{text:{WIDTH}}" for text in texts), verdict])


def record(table: dict[str, Any], rows: list[doors.Row]) -> int:
    """Play the rows and write the table. Returns 1 if a row has no power."""
    commit = ["git", "rev-parse", "--short=8", "HEAD"]
    here = subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip()
    if len(rows) == len(table["rows"]):
        versions = doors.versions()
        table["recorded"] = {"commit": here, "arithmetic": doors.arithmetic(), "versions": versions}
    problems = []
    for row in rows:
        missing = [name for name in row.get("needs", ()) if name not in doors.versions()]
        if missing:
            problems.append(f"{row['name']}: {missing[0]} is not installed")
            continue
        if row.get("order") == []:
            row["order"] = doors.record_order(row)
        found = doors.play(row)
        print(f"{row['name']:34}  {found['digest'][:8]} {found['trail'][:8]}", flush=True)
        if "same_as" in row:
            if found != doors.expected_of(row, table["rows"]):
                problems.append(f"{row['name']}: not the same as {row['same_as']}")
            continue
        row["expected"] = found
        if found["vectors"] < 2:
            problems.append(f"{row['name']}: the parameters never change")
        for name in row.get("shows", ()):
            try:
                if doors.play(row, without=name)["trail"] == found["trail"]:
                    problems.append(f"{row['name']}: the same without {name}")
            except UsageError as error:
                problems.append(f"{row['name']}: cannot be without {name}: {error}")
    problems += duplicates(table["rows"])
    doors.write_table(table)
    print(*problems, f"{len(rows)} rows are recorded, {len(problems)} problems", sep="\n")
    return 1 if problems else 0


def duplicates(rows: list[doors.Row]) -> list[str]:
    """Rows with the digest of another that they are not declared to equal."""
    first: dict[str, str] = {}
    found = []
    for row in rows:
        if "expected" not in row:
            continue
        name = first.setdefault(row["expected"]["digest"], row["name"])
        if name != row["name"]:
            found.append(f"{row['name']}: has the digest of {name}")
    return found


if __name__ == "__main__":
    sys.exit(main())
