"""The check of mutants finds one that no test catches; its list is current."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tools.mutation_check import BROKEN, ROOT, SURVIVED, Mutant, check_all, misplaced, read_mutants

SUM = Mutant("a sum", "workers/sums.py", "a + b", "a - b", ("tests/test_sums.py::test_a_sum",))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A source tree with one function and tests of it."""
    for name, text in {
        "workers/sums.py": "def add(a, b):\n    return a + b\n",
        "tests/test_sums.py": "from workers.sums import add\n\n\n"
        "def test_a_sum():\n    assert add(2, 2) == 4\n\n\n"
        "def test_nothing():\n    assert add(2, 0) == 2\n\n\n"
        "def test_wrong():\n    assert add(2, 2) == 5\n\n\n"
        "def test_a_wait():\n    while add(2, 2) != 4:\n        pass\n",
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def of_test(name: str) -> Mutant:
    return replace(SUM, tests=(f"tests/test_sums.py::{name}",))


@pytest.mark.slow
def test_a_mutant_is_caught_by_a_test_that_fails_or_hangs_and_by_no_other(small: Path) -> None:
    names = ("test_a_sum", "test_a_wait", "test_nothing", "test_wrong", "test_away")
    mutants = [of_test(name) for name in names]
    found = [caught for _, caught in check_all(small, mutants, jobs=2, limit=20)]
    assert found == ["test_a_sum", "a hang of 20 s", SURVIVED, BROKEN, BROKEN]
    assert "a + b" in (small / "workers" / "sums.py").read_text()


def test_a_mutant_that_changes_nothing_is_an_error(small: Path) -> None:
    wrong = replace(SUM, original="a * b")
    sentence = "a sum: workers/sums.py has 0 times: a * b"
    assert misplaced(small, [SUM, wrong]) == [sentence]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        list(check_all(small, [wrong]))


def test_each_mutant_changes_a_text_that_its_file_has_once() -> None:
    mutants = read_mutants()
    assert misplaced(ROOT, mutants) == []
    assert len({one.name for one in mutants}) == len(mutants)
    for one in mutants:
        assert re.sub(r"\s", "", one.original) != re.sub(r"\s", "", one.mutated), one.name
        for test in one.tests:
            path, _, name = test.partition("[")[0].partition("::")
            assert f"def {name}" in (ROOT / path).read_text("utf-8") or not name, one.name
