"""No page of the project leads nowhere: files, and headings in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import LINK, anchors, named, pages, prose


def broken(page: Path) -> list[str]:
    """The targets in a page that are not there."""
    found = ["()"] * prose(page).count("]()")
    for target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(there)
        ):
            found.append(target)
    return found


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_link_between_files_leads_somewhere(page: Path) -> None:
    assert broken(page) == []
