"""SECURITY.md names a test per row of its table, and each of them is there."""

from __future__ import annotations

import re

from tests.docs.pages import HOUSE

PAGE = HOUSE / "SECURITY.md"
HELD = re.compile(r"\[(?P<name>[^\]]+)\]\((?P<path>[^)]*/test_\w+\.py)\)")
CREDENTIALS = {
    "none",
    "viewer",
    "worker",
    "broken host",
    "scaler",
    "master",
    "account on a host",
    "stranger's file",
    "operator's tools",
}


def rows() -> list[list[str]]:
    """(credential, can or cannot, what, tests) of every line of the table."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if len(row) == 4 and row[1] in ("can", "cannot")]


def test_every_test_that_the_table_names_is_there() -> None:
    held = [one for _, _, _, cell in rows() for one in HELD.finditer(cell)]
    missing = [
        one["name"]
        for one in held
        if not (file := PAGE.parent / one["path"]).exists()
        or f"def test_{one['name'].replace(' ', '_')}(" not in file.read_text("utf-8")
    ]
    assert len(held) > 40 and missing == []


def test_every_row_is_held_by_a_test_or_is_a_warning() -> None:
    """Only what a credential can do may be without a test: nothing is promised there."""
    assert [
        what
        for _, can, what, cell in rows()
        if not HELD.search(cell) and not (can == "can" and cell == "-")
    ] == []


def test_the_table_has_rows_for_every_credential() -> None:
    assert {row[0] for row in rows()} == CREDENTIALS
