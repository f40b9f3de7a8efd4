"""Reports of workers: what es-status makes of them, whatever they are."""

from __future__ import annotations

import json
from pathlib import Path

from master.status.errors import (
    LONGEST_REPORT,
    make_errors_page,
    parse_report,
    report_parts,
)
from master.status.redis_reader import RunDetails, RunSummary
from master.status.render import Page, format_plain
from master.status.run_folders import RunFolder

REPORT = {
    "time": 1000.5,
    "worker": "h-1-abcdef",
    "environment": "Walker\x1b",
    "seed": 7,
    "kind": "train",
    "slot": 3,
    "generation": 2,
    "reason": "ValueError: \x9b2J no",
    "trace": "Traceback\n  File x\r\n\x1b[31mValueError",
    "unknown": "left out",
}


def lines(report: dict[str, object]) -> str:
    return "\n".join(format_plain(Page({}, tuple(report_parts(report)))))


def test_a_report_is_shown_with_its_episode_its_reason_and_its_trace_line_by_line() -> None:
    report = parse_report(json.dumps(REPORT).encode())
    assert (
        report["trace"] == ["Traceback", "  File x", "\\x1b[31mValueError"]
        and "unknown" not in report
    )
    text = lines(report)
    assert (
        "worker h-1-abcdef, Walker\\x1b, seed 7, train slot 3, generation 2" in text
        and "ValueError: \\x9b2J no" in text
    )
    assert "\n    \\x1b[31mValueError" in text


def test_a_report_that_is_too_large_is_named_and_not_shown() -> None:
    assert "not shown" in parse_report(b" " * (LONGEST_REPORT + 1))["trouble"]


def test_the_reports_of_a_run_of_which_its_folder_is_left_are_those_that_it_keeps(
    tmp_path: Path,
) -> None:
    summary, details = RunSummary("r", "folder", "", None, False, {}), RunDetails({}, 0, 0)
    assert make_errors_page(RunFolder(tmp_path), summary, details).data["reports"] == []
    kept = [json.dumps(REPORT | {"slot": slot}) for slot in range(3)]
    (tmp_path / "errors.jsonl").write_text("\n".join([*kept, "torn"]))
    page = make_errors_page(RunFolder(tmp_path), summary, details)
    assert [report.get("slot") for report in page.data["reports"]] == [None, 2, 1, 0]
    text = "\n".join(format_plain(page))
    assert "4 of 4 reports" in text
    assert (text.count("File x"), text.count("the same traceback")) == (1, 2)
