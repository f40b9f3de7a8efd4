"""The check of mutations finds a test that passes without its feature; its list is current."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tools.mutation_check import MUTATIONS, ROOT, Mutation, check_all, check_mutation

SUM = Mutation("sums", "workers/sums.py", "a + b", "a - b", "tests/test_sums.py::test_a_sum")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A source tree with one function and a test of it."""
    for name, text in {
        "workers/sums.py": "def add(a, b):\n    return a + b\n",
        "tests/test_sums.py": "from workers.sums import add\n\n\n"
        "def test_a_sum():\n    assert add(2, 2) == 4\n\n\n"
        "def test_nothing():\n    assert add(2, 0) == 2\n",
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['.']\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_test_that_passes_without_its_feature_is_found(small: Path) -> None:
    weak = replace(SUM, test="tests/test_sums.py::test_nothing")
    absent = replace(SUM, test="tests/test_sums.py::test_away")
    outcomes = [outcome for _, outcome in check_all(small, [SUM, weak, absent])]
    assert outcomes == ["failed", "passed", "not run"]
    assert "a + b" in (small / "workers" / "sums.py").read_text()


def test_a_mutation_that_changes_nothing_is_an_error(small: Path) -> None:
    with pytest.raises(ValueError, match=r"^workers/sums.py does not hold once: a \* b$"):
        check_mutation(small, replace(SUM, original="a * b"))


def test_each_mutation_is_of_a_feature_whose_row_names_its_test() -> None:
    lines = (ROOT / "docs" / "reference" / "features.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    for mutation in MUTATIONS:
        path, name = mutation.test.split("::test_")
        link = f"[{name.replace('_', ' ')}](../../{path})"
        assert any(row.startswith(f"| {mutation.feature} |") and link in row for row in rows), link
        assert (ROOT / mutation.path).read_text("utf-8").count(mutation.original) == 1, mutation
        assert re.sub(r"\s", "", mutation.original) != re.sub(r"\s", "", mutation.mutated)
