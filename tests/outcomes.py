"""Which tests ran and which were skipped, over several calls of pytest: ``.ci/run`` compares them
with ``tools/skipped_tests.py``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

#: The file to which each call adds its lines.
OUTCOMES = "ES_QUEUE_TEST_OUTCOMES"


def record_outcome(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Add a line for a test that ran, or for a test or a file that was skipped."""
    path = os.environ.get(OUTCOMES)
    if not path or "PYTEST_XDIST_WORKER" in os.environ or isinstance(report, pytest.SubtestReport):
        return
    if report.skipped:
        place = report.longrepr
        reason = str(place[2] if isinstance(place, tuple) else place).removeprefix("Skipped: ")
    elif getattr(report, "when", "collect") == "call":
        reason = ""
    else:
        return
    with Path(path).open("a") as file:
        file.write(json.dumps([report.nodeid, reason]) + "\n")
