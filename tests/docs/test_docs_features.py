"""The table of features names tests that are there."""

from __future__ import annotations

import re

from tests.docs.pages import HOUSE

PAGE = HOUSE / "docs" / "reference" / "features.md"
HELD = re.compile(r"\[(?P<name>[^\]]+)\]\((?P<path>[^)]*/test_\w+\.py)\)(?: \||, )")


def test_every_test_that_the_table_of_features_names_is_there() -> None:
    held = list(HELD.finditer(PAGE.read_text("utf-8")))
    missing = [
        one["name"]
        for one in held
        if f"def test_{one['name'].replace(' ', '_')}("
        not in (PAGE.parent / one["path"]).resolve().read_text("utf-8")
    ]
    assert len(held) > 80 and missing == []


def test_what_is_here_is_held_by_a_test() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith("| ")
    ]
    bare = [
        what for what, here, held in rows if held == "-" and not here.startswith(("no", "later"))
    ]
    assert bare == []
