"""What every call of pytest skipped is found, with its reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.outcomes import OUTCOMES
from tools.skipped_tests import ROOT, format_skips, never_run

CONFTEST = "from tests.outcomes import record_outcome\n\n" + "\n\n".join(
    f"def {hook}(report):\n    record_outcome(report)"
    for hook in ("pytest_runtest_logreport", "pytest_collectreport")
)
TESTS = """
import os
import pytest

def test_runs(): pass

@pytest.mark.skipif("PACKAGE" not in os.environ, reason="package is not installed")
def test_needs_a_package(): pass

@pytest.mark.parametrize("case", ["a b", "c"])
def test_never(case): pytest.skip("nobody has it")
"""


def run(folder: Path, *arguments: str, **more: str) -> None:
    inherited = {name: os.environ[name] for name in os.environ if "XDIST" not in name}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), OUTCOMES: str(folder / "outcomes"), **more},
        capture_output=True,
        check=True,
    )


def skips(folder: Path) -> dict[str, str]:
    return never_run((folder / "outcomes").read_text().splitlines())


def test_what_one_step_skips_and_another_runs_is_no_skip(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.importorskip('no_such')\n")
    run(tmp_path, "-n", "1")
    assert len(skips(tmp_path)) == 4
    (tmp_path / "again").write_text("\n".join(skips(tmp_path)))
    run(tmp_path, "@again", PACKAGE="1")
    never = [f"test_a.py::test_never[{case}]" for case in ("a b", "c")]
    assert sorted(skips(tmp_path)) == [*never, "test_whole.py"]


def test_a_skip_that_nothing_permits_is_an_error_with_the_tests_names() -> None:
    skipped = {"a.py::test_b": "x is not installed", "a.py::test_a": "x is not installed", "c": "y"}
    assert format_skips(skipped, ["y"]) == (
        [
            "ERROR: never run, 2: x is not installed",
            "  a.py::test_a",
            "  a.py::test_b",
            "skipped, 1: y",
            "  c",
        ],
        2,
    )
