"""What workers reported of episodes that failed: the newest reports with their tracebacks."""

from __future__ import annotations

import json
import time
from typing import Any

from es_queue.protocol import bounded
from es_queue.protocol.connection import MAX_REPLY
from es_queue.protocol.keys import RunKeys
from master.status.observe import (
    MOST_KEY_BYTES,
    Inside,
    SeenRun,
    Server,
    json_object,
    text,
    too_large,
)
from master.status.page import BAD, FAINT, STRONG, Line, Page, Part, line
from master.status.runs import ago
from master.wording import finite, printable

MOST_REPORTS = 20
LONGEST_REPORT = 64 * 2**10
LONGEST_TRACE = 100
#: What a report says in a number or a short text, in the order in which it is shown.
FIELDS = ("time", "worker", "environment", "seed", "slot", "generation", "reason")


def errors_page(server: Server | None, seen: SeenRun, inside: Inside) -> Page:
    """The newest reports of a run, newest first. A run of which only its folder is left has none."""
    reports, trouble = ([], "reports stay with the server, which has ended") if server is None else read_reports(server, seen.run)
    data: dict[str, Any] = {"run": seen.run, "errors": inside.errors, "trouble": trouble or None, "reports": reports}
    if trouble:
        return Page(data, (line(trouble),))
    if not reports:
        return Page(data, (line(f"run {seen.run}: no worker has reported an error"),))
    head = f"run {seen.run}: {len(reports):,} of {inside.errors:,} reports, newest first"
    return Page(data, (line(head, STRONG), *(part for one in reports for part in shown(one))))


def read_reports(server: Server, run: str) -> tuple[list[dict[str, Any]], str]:
    """The reports, newest first, each checked and escaped; and why none could be read."""
    key = RunKeys(run).errors
    size = bounded.key_sizes(server.ask, [key]).get(key)
    if size is None or size.type != "list" or not size.count:
        return [], ""
    if not size.fits(MOST_KEY_BYTES["errors"]):  # the master keeps 200 reports, which take less
        return (
            [],
            f"the reports of {run} are not read; {too_large('errors', size, MOST_KEY_BYTES['errors'])}",
        )
    (found,) = server.ask([("lrange", key, -MOST_REPORTS, -1)])
    if found is None:
        return (
            [],
            f"the newest {MOST_REPORTS} reports of {run} take more than es-status reads ({MAX_REPLY:,} bytes)",
        )
    return [report_of(data) for data in reversed(found)], ""


def report_of(data: bytes) -> dict[str, Any]:
    """A report's fields; ``trouble`` says why there are none."""
    if len(data) > LONGEST_REPORT:
        return {"trouble": f"a report of {len(data):,} bytes is larger than {LONGEST_REPORT:,}: not shown"}
    found = json_object(data)
    if not found:
        return {"trouble": f"a report that is no JSON object: {printable(text(data), 200)}"}
    report: dict[str, Any] = {name: plain(found[name]) for name in FIELDS if name in found}
    if isinstance(found.get("trace"), str):
        report["trace"] = [printable(one) for one in found["trace"].splitlines()[-LONGEST_TRACE:]]
    return report


def plain(value: object) -> int | float | str | None:
    """A number as it is, anything else as escaped text."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63):
        return value
    if isinstance(value, float):
        return finite(value)
    return printable(value if isinstance(value, str) else json.dumps(value))


def shown(report: dict[str, Any]) -> list[Part]:
    """One report for people: when, who, which episode; the reason; the traceback line by line."""
    if "trouble" in report:
        return [line(""), line(report["trouble"], FAINT)]
    labels = (("worker", "worker"), ("environment", ""), ("seed", "seed"), ("slot", "slot"), ("generation", "generation"))
    about = [f"{label} {report[name]}".strip() for name, label in labels if report.get(name) is not None]
    head: Line = Line(((f"{moment(report.get('time'))}  ", STRONG), (", ".join(about), "")))
    trace = [line(f"    {one}", FAINT) for one in report.get("trace", ())]
    return [line(""), head, line(f"  {report.get('reason') or 'no reason given'}", BAD), *trace]


def moment(seconds: object) -> str:
    """A time of day on this host's clock, with how long that is past."""
    then = finite(seconds)
    try:
        told = "" if then is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then))
    except (ValueError, OverflowError, OSError):
        told = ""
    return f"{told} ({ago(then)})" if told else "at an unknown time"
