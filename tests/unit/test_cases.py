"""Tests over many cases run all of them, and show each that fails."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TEXT = """
import pytest
from tests.cases import each_case

SEEN = []

@pytest.mark.xfail(False, reason="a mark of its own")
@each_case("factor", [1, 2])
@each_case(("number", "half"), [(2, 1), (3, 1), (4, 2)])
def test_halves(number, half, factor, tmp_path, monkeypatch, capsys):
    assert list(tmp_path.iterdir()) == [] and "CASE" not in __import__("os").environ
    assert capsys.readouterr().out == ""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CASE", "here")
    print("said")
    SEEN.append((number, factor))
    assert number * factor == 2 * half * factor

def test_every_case_ran():
    assert SEEN == [(number, factor) for factor in (1, 2) for number in (2, 3, 4)]
"""


def test_each_case_that_fails_is_named_and_stops_no_other(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEXT)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist")
    out = result.stdout.str()
    assert "[factor=1, number=3, half=1]" in out and "[factor=2, number=3, half=1]" in out
    assert "number=2, half=1] _" not in out and "assert (3 * 1) == ((2 * 1) * 1)" in out
    summary = result.parseoutcomes()
    assert (summary["failed"], summary["passed"]) == (3, 1)  # two cases, and the test of them
