"""The committed transcript of the newcomer's walk shows a successful walk and no private path."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
TRANSCRIPT = (DOCS / "newcomers_walk.txt").read_text("utf-8")


def test_the_transcript_has_every_step_of_the_script_and_no_failure() -> None:
    steps = re.findall(
        r'^step "(.+)"', (DOCS / "newcomers_walk.sh").read_text("utf-8"), re.MULTILINE
    )
    assert len(steps) >= 6 and steps == re.findall(r"^== (.+?)  \[", TRANSCRIPT, re.MULTILINE)
    assert [
        line
        for line in TRANSCRIPT.splitlines()
        if "(ended with" in line or "(not within its time" in line or line.startswith("error")
    ] == []
    assert TRANSCRIPT.count(" over 100 fresh episodes") == 2


def test_the_transcript_shows_what_the_tutorial_promises() -> None:
    digest = re.search(r"digest +([0-9a-f]{32})", (DOCS / "tutorial.md").read_text("utf-8"))
    assert digest is not None and digest[0] in TRANSCRIPT, "the same digest as the tutorial's"
    assert "(it has joined)" in TRANSCRIPT and "2 living" in TRANSCRIPT, "a second worker"
    assert "filmed in first.gif" in TRANSCRIPT and "first.png: 1 run" in TRANSCRIPT
    evaluations = [float(mean) for mean in re.findall(r"evaluation +(-?[\d.]+) ±", TRANSCRIPT)]
    assert evaluations[0] >= 475 and evaluations[-1] >= -5, "both passed their thresholds"


def test_the_tutorial_gives_the_time_of_the_transcript() -> None:
    took = re.findall(r"^== done  \[(\d+:\d+)\]", TRANSCRIPT, re.MULTILINE)[0]
    assert f"took {took} minutes" in (DOCS / "tutorial.md").read_text("utf-8")


def test_the_transcript_names_no_folder_outside_of_its_own() -> None:
    assert re.findall(r"(?<![\w~./-])/(?:tmp|home|work|root|var)/\S*", TRANSCRIPT) == []
