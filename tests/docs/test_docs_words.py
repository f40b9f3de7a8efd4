"""The pages keep to plain words, and what they quote of the program is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, HOUSE, named, pages
from tools.check_words import check_page
from tools.sentences import sentences, source_files

TROUBLESHOOTING = HOUSE / "docs" / "troubleshooting.md"


@pytest.mark.parametrize("page", pages(), ids=named)
def test_a_page_keeps_to_plain_words(page: Path) -> None:
    assert [f"{found.line}: {found.found}" for found in check_page(page)] == []


@pytest.mark.parametrize("page", pages(), ids=named)
def test_a_page_has_one_title(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def test_every_message_that_troubleshooting_quotes_is_in_the_source() -> None:
    quoted = re.findall(r"^### `(.+)`$", TROUBLESHOOTING.read_text("utf-8"), re.MULTILINE)
    known = [sentence.text for path in source_files() for sentence in sentences(path)]
    assert len(quoted) > 12
    assert [quote for quote in quoted if not any(quote in text for text in known)] == []
