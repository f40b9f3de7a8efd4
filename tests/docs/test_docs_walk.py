"""The committed transcript of the newcomer's walk is of a walk that went well, and of nobody's
machine in particular.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOLD = (DOCS / "newcomers_walk.txt").read_text("utf-8")


def test_every_step_of_the_script_stands_in_the_transcript_and_none_failed() -> None:
    steps = re.findall(
        r'^step "(.+)"', (DOCS / "newcomers_walk.sh").read_text("utf-8"), re.MULTILINE
    )
    assert len(steps) >= 6 and steps == re.findall(r"^== (.+?)  \[", TOLD, re.MULTILINE)
    assert [
        line
        for line in TOLD.splitlines()
        if "(ended with" in line or "(not within its time" in line or line.startswith("error")
    ] == []
    assert "(it has joined)" in TOLD and TOLD.count(" over 100 fresh episodes") == 2


def test_the_transcript_names_no_folder_outside_of_its_own() -> None:
    assert re.findall(r"(?<![\w~./-])/(?:tmp|home|work|root|var)/\S*", TOLD) == []
