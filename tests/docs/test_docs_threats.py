"""The threat model names a test per cell, and each of them is there."""

from __future__ import annotations

import re

from tests.docs.pages import HOUSE

PAGE = HOUSE / "docs" / "threat_model.md"
HELD = re.compile(r"\[(?P<name>[^\]]+)\]\((?P<path>[^)]*/test_\w+\.py)\)")
#: The credentials that the page must have a section for.
POSITIONS = (
    "Nobody",
    "Viewer",
    "Worker",
    "Scaler",
    "Master",
    "An account on a host",
    "A stranger's file",
    "The network, to the page",
)


def rows() -> list[list[str]]:
    """(can or cannot, what, tests) of every line of the tables."""
    lines = [
        line
        for line in PAGE.read_text("utf-8").splitlines()
        if line.startswith(("| can", "| cannot"))
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_test_that_the_threat_model_names_is_there() -> None:
    held = [one for _, _, cell in rows() for one in HELD.finditer(cell)]
    missing = [
        one["name"]
        for one in held
        if f"def test_{one['name'].replace(' ', '_')}("
        not in (PAGE.parent / one["path"]).resolve().read_text("utf-8")
    ]
    assert len(held) > 40 and missing == []


def test_every_cell_of_the_threat_model_is_held_by_a_test_or_is_a_warning() -> None:
    """Only what a credential can do may be without a test: nothing is promised there."""
    assert [
        what
        for can, what, cell in rows()
        if not HELD.search(cell) and not (can == "can" and cell == "-")
    ] == []


def test_the_threat_model_has_a_section_for_every_credential() -> None:
    titles = re.findall(r"^## (.+)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [name for name in POSITIONS if not any(title.startswith(name) for title in titles)] == []
