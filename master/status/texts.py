"""Pages of es-status for people: the table of runs, one run, its reports; printed or redrawn."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from es_queue.errors import EsQueueError
from es_queue.protocol.keys import FAILED, FINISHED, PAUSED, RUNNING, STOPPED
from es_queue.text import sanitize
from master.display.log_view import SafeStream
from master.display.panel import FittingTable, format_plain, make_console, make_fields
from master.status.curve import Curve
from master.status.figures import (
    FIGURES,
    STEPS_LINE,
    Record,
    Value,
    figure_rows,
    fill,
    finite_or_none,
    format_bar,
    format_compact,
    format_duration,
    format_hosts,
    format_percent,
    format_recoveries,
    format_results,
    format_whole,
)
from master.status.snapshot import (
    DONE,
    HEALTHY,
    MOST_WORKERS,
    ORPHANED,
    STALLED,
    Run,
    read_reports,
)

#: Colours say how a run fares; nothing else is coloured.
GOOD, WARNING, BAD, PLAIN, FAINT, STRONG = "green", "yellow", "red", "", "dim", "bold"
STYLES = {
    **dict.fromkeys((RUNNING, FINISHED), GOOD),
    **dict.fromkeys((PAUSED, STALLED), WARNING),
    **dict.fromkeys((ORPHANED, FAILED), BAD),
}
LABEL_WIDTH, BAR_WIDTH = 12, 12
RUN_COLUMNS = [figure for figure in FIGURES.values() if figure.column]
#: Below a table that has finished runs.
TABLE_NOTES = {
    "eval": "eval of a finished run: fresh episodes",
    "best": "best: the best evaluation in training",
}
#: What a run does when it no longer trains.
STAGES = {
    "closing": ", its last parameters are evaluated",
    "final": ", it plays its final episodes",
}
MOST_REFUSALS = 10
#: How each budget is shown, and its unit.
BUDGET_FORMATS: dict[str, tuple[Callable[[object], str], str]] = {
    "generations": (format_whole, " generations"),
    "max_steps": (format_compact, " steps"),
    "max_seconds": (format_duration, ""),
}
PagePart = Text | Table | FittingTable


@dataclass(frozen=True)
class Page:
    """data: for programs; parts: for people; is_over: whether nothing more will follow"""

    data: Mapping[str, Any]
    parts: tuple[PagePart, ...]
    code: int = 0
    is_over: bool = False


def page_fields(rows: Iterable[tuple[str, str] | tuple[str, str, str]]) -> Table:
    """Rows of (label, text) or (label, text, style), indented; those without a text are omitted."""
    rows = [row for row in rows if row[1]]
    width = max([LABEL_WIDTH, *(len(label) + 2 for label, *_ in rows)])
    return make_fields(((f"  {label}", Text(*text)) for label, *text in rows), width + 2)


# --- all runs


def make_runs_page(runs: Sequence[Run]) -> Page:
    data = {"runs": [run.to_json() for run in runs]}
    if not runs:
        return Page(data, (Text("no runs"),))
    columns = [one for one in RUN_COLUMNS if any(one.name in run.figures for run in runs)]
    headers = ["run", "state", "environment", *(one.column for one in columns), "updated"]
    rows = [
        [
            run.run,
            format_state(run),
            sanitize(run.figures.get("env", "-"), 28),
            *(one.write(run.figures.get(one.name)) for one in columns),
            format_ago(run.figures.get("updated")),
        ]
        for run in runs
    ]
    expendable = ("best", "environment", "updated", "workers", "steps")
    notes = TABLE_NOTES if any(run.number("eval_episodes") for run in runs) else {}
    parts: list[PagePart] = [FittingTable(headers, rows, headers[3:], expendable, STYLES, notes)]
    for run in runs:
        if run.health == ORPHANED:
            parts += [Text(""), Text(f"{run.run} has no master"), *command_lines(run)]
    return Page(data, tuple(parts))


def format_state(run: Run) -> str:
    """The state, or its health if that is worse."""
    return run.health if run.health in (STALLED, ORPHANED) else sanitize(run.state, 12)


def command_lines(run: Run) -> list[Text]:
    """Commands that can be copied, also from a narrow terminal."""
    return [
        Text.assemble((f"  {label:<{LABEL_WIDTH}}", FAINT), command)
        for label, command in (("continue", run.resume), ("remove", run.purge))
    ]


def format_ago(moment: object) -> str:
    """Another host's clock may be ahead of this one's."""
    then = finite_or_none(moment)
    return "-" if then is None else f"{format_duration(max(0.0, time.time() - then))} ago"


# --- one run


def make_run_page(run: Run, curve: Curve) -> Page:
    """One run with its details; ``code``: its health."""
    state = format_state(run)
    about = ", ".join(sanitize(run.figures.get(name, "-"), 60) for name in ("env", "strategy"))
    head = Text.assemble("run ", (run.run, STRONG), ": ", (state, STYLES.get(state, PLAIN)))
    colour = {DONE: PLAIN, HEALTHY: WARNING, STALLED: WARNING}.get(run.health, BAD)
    parts: list[PagePart] = [head.append(f", {about}")]
    if run.health_why:
        parts.append(page_fields([("why", run.health_why, colour)]))
    parts += [Text(""), page_fields(training_rows(run, curve))]
    parts += [Text(""), page_fields(control_rows(run))]
    if run.living:
        parts += [Text(""), make_worker_table(run.living), *refusal_lines(run.living)]
    if run.health == ORPHANED or run.state in (STOPPED, FAILED):
        parts += [Text(""), *command_lines(run)]
    return Page(run.to_json(), tuple(parts), run.code, run.health in (DONE, FAILED))


def shown_texts(run: Run) -> dict[str, Any]:
    """What the page shows, in the words of this terminal."""
    figures = {**run.figures, "target": target_of(run)}
    known = {name: value for name, value in figures.items() if value not in (None, "")}
    texts = {name: FIGURES[name].write(value) for name, value in known.items()}
    rows = worker_rows(run.living)
    hidden = {"print"} if len({row["print"] for row in rows}) < 2 else set()
    return {
        **{name: text for name, text in texts.items() if text != "-"},
        "evaluation": fill("{eval_mean±eval_std}", run.figures),
        "results": results_of(run),
        "budget": format_budget(run)[1],
        "recoveries": format_recoveries(run.figures),
        "living": [{name: row[name] for name in row if name not in hidden} for row in rows],
    }


def target_of(run: Run) -> float | None:
    """The resolved target, or before a master has written one, the setting."""
    return finite_or_none(run.figures.get("target", run.config.get("target_reward")))


def results_of(run: Run) -> str:
    done, _, slots = str(run.figures.get("answered") or "").partition("/")
    return format_results(done, slots, run.number("training_slots"))


def training_rows(run: Run, curve: Curve) -> list[tuple[str, str]]:
    figures = run.figures
    generation = (
        f"{format_whole(figures.get('generation'))}{STAGES.get(str(figures.get('stage')), '')}"
    )
    means = [mean for _, mean in curve.evaluation.points("generation")]
    of_sample = "a sample of " if curve.is_sample else ""
    among = f" in {of_sample}{curve.evaluation.count:,} evaluations"
    return [
        ("generation", ", ".join(filter(None, (generation, results_of(run))))),
        ("budget", "  ".join(filter(None, format_budget(run)))),
        ("steps", fill(STEPS_LINE, figures)),
        *figure_rows({**figures, "aim": target_of(run)}, means, among),
    ]


def format_budget(run: Run) -> tuple[str, str]:
    """A bar of the budget that ends first, and the remaining budgets, or those used by a run that
    has ended. Empty if the settings are unknown.
    """
    if not run.budget:
        is_endless = run.config.get("target_reward") == "none"
        end = "is stopped" if is_endless else "reaches its target"
        return "", f"none: it trains until it {end}" if run.config else ""
    what = "spent" if run.is_over else "left"
    shown = ", ".join(
        "{0} of {1}{unit}".format(*map(form, (budget[what], budget["limit"])), unit=unit)
        for form, unit, budget in ((*BUDGET_FORMATS[name], one) for name, one in run.budget.items())
    )
    nearest = max(run.budget.values(), key=lambda budget: budget["spent"] / budget["limit"])
    eta = run.number("eta")
    about = "" if run.is_over or eta is None or eta < 0 else f", about {format_duration(eta)}"
    bar = format_bar(nearest["spent"], nearest["limit"], BAR_WIDTH)
    return bar, f"{shown} {'used' if run.is_over else 'left'}{about}"


def control_rows(run: Run) -> list[tuple[str, str]]:
    queue, audited = str(run.figures.get("queue") or "default"), run.number("audited")
    mixed = len({worker["numerics"] for worker in run.living if worker.get("numerics")}) > 1
    known = f"{len(run.living):,}{' or more' if run.ever > MOST_WORKERS else ''} living"
    fleet = f"{known} of {run.ever:,} known{', a mixed fleet' if mixed else ''}"
    requests = f"{run.requests:,} that the master has not answered yet"
    errors = f"{run.errors:,} reports of workers; es-status {run.run} --errors shows them"
    equal = f"{format_whole(audited)} results equal to the master's own"
    refused = [f"{sanitize(name, 60)} {count:,}" for name, count in run.refused.items() if count]
    return [
        ("folder" if run.on_disk else "redis", run.redis),
        ("master", run.master or ""),
        ("queue", "" if queue == "default" else sanitize(queue, 60)),
        ("workers", "" if run.on_disk else fleet),
        ("changed", sanitize(run.figures.get("changed") or "", 200)),
        ("requests", requests if run.requests else ""),
        ("refused", ", ".join(refused)),
        ("audit", "" if audited is None else equal),
        ("errors", errors if run.errors else ""),
        ("digest", str(run.figures.get("digest") or "")),
        ("started", f"{format_ago(run.started)}, updated {format_ago(run.figures.get('updated'))}"),
    ]


def make_worker_table(living: Sequence[Record]) -> FittingTable:
    """The living workers; columns without information are left out."""
    rows = worker_rows(living)
    seen = {name: {row[name] for row in rows} for name in rows[0]}
    hidden = {name for name in ("late", "busy") if seen[name] <= {"-", "0"}}
    hidden |= {"print"} if len(seen["print"] - {""}) < 2 else set()
    headers = [name for name in rows[0] if name not in hidden]
    right = ("pid", "steps/s", "busy", "gen", "late", "joined", "seen")
    expendable = ("joined", "late", "gen", "print", "pid", "busy", "block", "back end")
    texts = [[row[name] for name in headers] for row in rows]
    return FittingTable(headers, texts, right, expendable, {"refuses": BAD})


def worker_rows(living: Sequence[Record]) -> list[dict[str, str]]:
    """The text of each column, for each worker, by host and pid."""
    order = [(str(one.get("host", "")), finite_or_none(one.get("pid")) or 0.0) for one in living]
    rows = []
    for _, worker in sorted(zip(order, living, strict=True), key=lambda pair: pair[0]):
        get, now = worker.get, time.time()
        age = max(1.0, now - (finite_or_none(get("joined")) or now))
        since_joined = (finite_or_none(get("steps")) or 0.0) / age
        doing = get("block") or ("-" if get("generation") else "joining")
        generation = str(get("generation") or "-").removeprefix("generation ")
        row = {
            "host": sanitize(get("host", "-"), 40),
            "pid": "-" if get("pid") is None else sanitize(get("pid"), 10),
            "back end": sanitize(get("backend") or "-", 12),
            "steps/s": format_whole(finite_or_none(get("steps_per_second")) or since_joined),
            "busy": format_percent(get("busy")),
            "gen": sanitize(generation, 12),
            "block": "refuses" if get("refuses") else sanitize(doing, 24),
            "late": format_whole(get("late")),
            "print": str(get("numerics") or "")[:8],
            "joined": format_ago(get("joined")),
            "seen": "-" if get("seen") is None else f"{format_duration(get('seen'))} ago",
        }
        rows.append(row)
    return rows


def refusal_lines(living: Sequence[Record]) -> list[Text]:
    """One line per reason, with ``2 workers on a, b``."""
    hosts: dict[Value, list[str]] = {}
    for worker in living:
        if "refuses" in worker:
            host = str(worker.get("host", "an unknown host"))
            hosts.setdefault(worker["refuses"], []).append(host)
    return [
        Text(
            f"{len(found)} worker{'s' * (len(found) != 1)} on {format_hosts(found)} cannot join: "
            f"{reason}",
            BAD,
        )
        for reason, found in list(hosts.items())[:MOST_REFUSALS]
    ]


# --- reports of failed episodes

SAME_TRACE = "the traceback of the report above"


def make_errors_page(run: Run) -> Page:
    reports = read_reports(run)
    data = {"run": run.run, "errors": run.errors, "reports": reports}
    if not reports:
        return Page(data, (Text(f"run {run.run}: no worker has reported an error"),))
    count = max(run.errors, len(reports))
    head = f"run {run.run}: {len(reports):,} of {count:,} reports, newest first"
    parts, former = [Text(head, STRONG)], None
    for report in reports:
        trace = report.get("trace")
        parts += report_lines(report, [SAME_TRACE] if trace and trace == former else trace or [])
        former = trace
    return Page(data, tuple(parts))


def report_lines(report: dict[str, Any], trace: Sequence[str]) -> list[Text]:
    if "trouble" in report:
        return [Text(""), Text(report["trouble"], FAINT)]
    labels = {"worker": "worker ", "environment": "", "seed": "seed "}
    labels |= {"slot": f"{report.get('kind', '')} slot ".lstrip(), "generation": "generation "}
    about = [
        f"{label}{report[name]}" for name, label in labels.items() if report.get(name) is not None
    ]
    return [
        Text(""),
        Text.assemble((f"{format_moment(report.get('time'))}  ", STRONG), ", ".join(about)),
        Text(f"  {report.get('reason') or 'no reason given'}", BAD),
        *(Text(f"    {line}", FAINT) for line in trace),
    ]


def format_moment(seconds: object) -> str:
    with suppress(TypeError, ValueError, OverflowError, OSError):
        moment = time.localtime(finite_or_none(seconds) or math.nan)
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', moment)} ({format_ago(seconds)})"
    return "at an unknown time"


# --- printing


def print_page(page: Page, out: SafeStream, *, as_json: bool) -> None:
    if as_json:
        out.write_line(json.dumps(page.data, allow_nan=False))
    elif not out.is_terminal:
        out.write_line("\n".join(format_plain(page.parts)))
    else:
        console = make_console(out)
        for part in page.parts:
            # A command on a line that the terminal wraps by itself can be copied whole.
            console.print(part, soft_wrap=isinstance(part, Text))


def watch_page(
    query: Callable[[], Page],
    out: SafeStream,
    every: float,
    *,
    as_json: bool,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Show the result of ``query`` every ``every`` seconds until the run is over; returns the last
    page's code.

    The first query must succeed. If a later one fails, the page says so, and the query is repeated.
    Raises KeyboardInterrupt, also for SIGTERM and SIGHUP, so that the terminal is restored.
    """

    def pages() -> Iterator[Page]:
        page = last = query()
        seen = time.monotonic()
        yield page
        while not page.is_over and not out.is_silent:
            wait(every)
            try:
                page = last = query()
                seen = time.monotonic()
            except EsQueueError as error:
                page = with_trouble(last, error, time.monotonic() - seen, every)
            yield page

    page = None
    with signals_as_interrupts():
        if not out.is_terminal or as_json:
            for number, page in enumerate(pages()):
                if number and not as_json:
                    out.write_line("")
                print_page(page, out, as_json=as_json)
            return 0 if page is None else page.code
        # It is redrawn each second, and so fits a terminal that changes its size.
        settings: dict[str, Any] = {"redirect_stdout": False, "redirect_stderr": False}
        try:
            with Live(
                console=make_console(out), screen=True, refresh_per_second=1, **settings
            ) as live:
                for page in pages():
                    live.update(Group(*page.parts), refresh=True)
        finally:  # the last page stays
            if page is not None:
                print_page(page, out, as_json=False)
    return 0 if page is None else page.code


def with_trouble(last: Page, error: EsQueueError, seconds: float, every: float) -> Page:
    reason = sanitize(error)
    age = f"the figures below are {format_duration(seconds)} old; reading again every {every:g} s"
    head = (Text(reason, BAD), Text(age, FAINT), Text(""))
    return replace(last, parts=(*head, *last.parts), data={**last.data, "trouble": reason})


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the watch as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
