"""SECURITY.md names the tests that hold what it promises."""

from __future__ import annotations

from tests.docs.pages import HOUSE, LINK

CREDENTIALS = {
    *("none", "viewer", "worker", "broken host", "scaler", "master", "account on a host"),
    *("stranger's file", "operator's tools"),
}


def test_what_a_credential_cannot_do_is_held_by_a_test() -> None:
    lines = (HOUSE / "SECURITY.md").read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in cells if len(row) == 4 and row[1] in ("can", "cannot")]
    bare = [what for _, can, what, held in rows if can == "cannot" and not LINK.search(held)]
    assert {row[0] for row in rows} == CREDENTIALS and bare == []
