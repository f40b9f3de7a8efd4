"""The newest error reports of workers, with their tracebacks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.text import Text

from es_queue.files import read_end
from es_queue.protocol.keys import RunKeys
from es_queue.run_folder import ERROR_REPORTS_FILE
from es_queue.text import sanitize, to_text
from master.display.format import finite_or_none
from master.status.redis_reader import RedisReader, RunDetails, RunSummary
from master.status.render import BAD, FAINT, STRONG, Page, PagePart
from master.status.run_folders import MOST_REPORT_BYTES, RunFolder
from master.status.values import parse_json_object
from master.status.views import format_ago

MOST_REPORTS = 20
LONGEST_REPORT = 64 * 2**10
LONGEST_TRACE = 100
SAME_TRACE = "the same traceback"
#: What a report says in a number or a short text, in the order in which it is shown.
REPORT_FIELDS = ("time", "worker", "environment", "seed", "kind", "slot", "generation", "reason")


def make_errors_page(
    source: RedisReader | RunFolder, summary: RunSummary, details: RunDetails
) -> Page:
    reports = (
        read_kept_reports(source.folder)
        if isinstance(source, RunFolder)
        else read_reports(source, summary.run)
    )
    data: dict[str, Any] = {
        "run": summary.run,
        "errors": details.errors,
        "reports": reports,
    }
    if not reports:
        return Page(data, (Text(f"run {summary.run}: no worker has reported an error"),))
    count = max(details.errors, len(reports))
    head = f"run {summary.run}: {len(reports):,} of {count:,} reports, newest first"
    parts: list[PagePart] = [Text(head, STRONG)]
    former = None
    for report in reports:
        trace = report.get("trace")
        is_repeated = trace is not None and trace == former
        parts += report_parts(report | {"trace": [SAME_TRACE]} if is_repeated else report)
        former = trace
    return Page(data, tuple(parts))


def read_reports(server: RedisReader, run: str) -> list[dict[str, Any]]:
    """The reports, newest first."""
    (entries,) = server.ask([("lrange", RunKeys(run).errors, -MOST_REPORTS, -1)])
    return [parse_report(data) for data in reversed(entries or ())]


def read_kept_reports(folder: Path) -> list[dict[str, Any]]:
    """The reports that a master kept when its run ended, newest first."""
    try:
        lines = read_end(folder / ERROR_REPORTS_FILE, MOST_REPORT_BYTES).splitlines()
    except OSError:
        return []
    return [parse_report(line) for line in reversed(lines[-MOST_REPORTS:])]


def parse_report(data: bytes) -> dict[str, Any]:
    """A report's fields, or ``trouble`` if it has none."""
    if len(data) > LONGEST_REPORT:
        trouble = f"a report of {len(data):,} bytes is larger than {LONGEST_REPORT:,}: not shown"
        return {"trouble": trouble}
    fields = parse_json_object(data)
    if not fields:
        return {"trouble": f"a report that is not a JSON object: {sanitize(to_text(data), 200)}"}
    report: dict[str, Any] = {
        name: to_plain_value(fields[name]) for name in REPORT_FIELDS if name in fields
    }
    if isinstance(fields.get("trace"), str):
        report["trace"] = [
            sanitize(trace_line) for trace_line in fields["trace"].splitlines()[-LONGEST_TRACE:]
        ]
    return report


def to_plain_value(value: object) -> int | float | str | None:
    if value is None or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    ):
        return value
    if isinstance(value, float):
        return finite_or_none(value)
    return sanitize(value if isinstance(value, str) else json.dumps(value))


def report_parts(report: dict[str, Any]) -> list[PagePart]:
    if "trouble" in report:
        return [Text(""), Text(report["trouble"], FAINT)]
    labels = (
        ("worker", "worker"),
        ("environment", ""),
        ("seed", "seed"),
        ("slot", f"{report.get('kind', '')} slot".strip()),
        ("generation", "generation"),
    )
    about = [
        f"{label} {report[name]}".strip() for name, label in labels if report.get(name) is not None
    ]
    head = Text.assemble((f"{format_local_time(report.get('time'))}  ", STRONG), ", ".join(about))
    trace = [Text(f"    {trace_line}", FAINT) for trace_line in report.get("trace", ())]
    return [
        Text(""),
        head,
        Text(f"  {report.get('reason') or 'no reason given'}", BAD),
        *trace,
    ]


def format_local_time(seconds: object) -> str:
    then = finite_or_none(seconds)
    try:
        text = "" if then is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then))
    except (ValueError, OverflowError, OSError):
        text = ""
    return f"{text} ({format_ago(then)})" if text else "at an unknown time"
