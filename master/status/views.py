"""The two pages of es-status: the list of runs, and one run with its workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.text import Text

from es_queue.protocol.keys import FAILED, FINISHED, PAUSED, RUNNING, STOPPED
from es_queue.text import sanitize
from master.display.format import (
    finite_or_none,
    format_bar,
    format_compact,
    format_duration,
    format_evaluation,
    format_graph,
    format_mean_std,
    format_percent,
    format_score,
    format_training_return,
    format_whole,
    parse_number,
)
from master.display.terminal import FittingTable
from master.loop.state import BUDGETS
from master.status.health import HEALTHY, STALLED, Health, assess_health
from master.status.history import History
from master.status.redis_reader import (
    MOST_WORKERS,
    ORPHANED,
    PROGRESS_TEXTS,
    WORKER_TEXTS,
    RunDetails,
    RunSummary,
)
from master.status.render import (
    BAD,
    FAINT,
    GOOD,
    LABEL_WIDTH,
    PLAIN,
    STRONG,
    WARNING,
    Page,
    PagePart,
    page_fields,
    page_fields_if_any,
)

RUN_COLUMNS = ("run", "state", "environment", "gen", "steps", "eval", "best", "workers", "updated")
WORKER_COLUMNS = (
    "host",
    "pid",
    "back end",
    "steps/s",
    "busy",
    "gen",
    "block",
    "late",
    "print",
    "joined",
    "seen",
)
#: Columns of workers that are left out, in this order, if the terminal is too narrow.
EXPENDABLE = ("joined", "late", "gen", "print", "pid", "busy", "block", "back end")
#: Below a table that has finished runs.
TABLE_NOTE = "eval of a finished run: fresh episodes; best: the best evaluation in training"
STYLES = {
    RUNNING: GOOD,
    FINISHED: GOOD,
    PAUSED: WARNING,
    STALLED: WARNING,
    ORPHANED: BAD,
    FAILED: BAD,
}
#: What a run does when it trains no more.
STAGES = {
    "closing": ", its last parameters are evaluated",
    "final": ", it plays its final episodes",
}
#: Reasons to refuse, and hosts of each, that are shown.
MOST_REFUSALS = 10
MOST_HOSTS = 5
GRAPH_WIDTH = 30
BAR_WIDTH = 12
#: How each budget is shown, and its unit.
BUDGET_FORMATS: dict[str, tuple[Callable[[float], str], str]] = {
    "generations": (format_whole, " generations"),
    "max_steps": (format_compact, " steps"),
    "max_seconds": (format_duration, ""),
}
RECOVERY_FIELDS = (
    ("recovered", "recovered"),
    ("reissued", "re-issued"),
    ("late", "late"),
    ("duplicate", "duplicates"),
    ("lost_steps", "lost steps"),
)


def make_runs_page(runs: Sequence[RunSummary]) -> Page:
    rated = [(summary, assess_health(summary)) for summary in runs]
    data = {"runs": [run_fields(summary, health) for summary, health in rated]}
    if not runs:
        return Page(data, (Text("no runs"),))
    rows = [format_run_row(summary, health) for summary, health in rated]
    expendable = ("best", "environment", "updated", "workers", "steps")
    parts: list[PagePart] = [
        FittingTable(RUN_COLUMNS, rows, RUN_COLUMNS[3:], expendable, STYLES),
    ]
    if any(summary.progress.get("eval_episodes") for summary in runs):
        parts += [Text(""), Text(TABLE_NOTE, FAINT)]
    for summary, health in rated:
        if health.state == ORPHANED:
            head = Text(f"{summary.run} has no master")
            parts += [Text(""), head, *command_lines(summary)]
    return Page(data, tuple(parts))


def format_run_row(summary: RunSummary, health: Health) -> tuple[str, ...]:
    get = summary.progress.get
    return (
        summary.run,
        format_state(summary, health),
        sanitize(get("env", "-"), 28),
        format_whole(get("generation")),
        format_compact(get("env_steps")),
        format_score(get("eval_mean")),
        format_score(get("eval_best")),
        "-" if summary.is_on_disk else format_whole(get("workers")),
        format_ago(get("updated")),
    )


def format_state(summary: RunSummary, health: Health) -> str:
    """The state, or its health if that is worse."""
    return health.state if health.state in (STALLED, ORPHANED) else sanitize(summary.state, 12)


def command_lines(summary: RunSummary) -> list[Text]:
    """Commands that can be copied, also from a narrow terminal."""
    commands = (("continue", summary.resume), ("remove", summary.purge))
    return [
        Text.assemble((f"  {label:<{LABEL_WIDTH}}", FAINT), command)
        for label, command in commands
        if command
    ]


# --- one run


def make_run_page(summary: RunSummary, details: RunDetails, history: History) -> Page:
    """One run; ``code``: its health."""
    health = assess_health(summary, details, history.usual_wait_seconds)
    workers = make_worker_table(details)
    colours = {HEALTHY: WARNING, STALLED: WARNING, FAILED: BAD, ORPHANED: BAD}
    parts: list[PagePart] = [make_heading(summary, health)]
    if health.why:
        parts.append(page_fields([("why", health.why, colours.get(health.state, PLAIN))]))
    training = page_fields_if_any(format_training_rows(summary.progress, details, history))
    control = page_fields_if_any(format_control_rows(summary, details))
    parts += [Text(""), training, Text(""), control]
    if workers.row_count:
        parts += [Text(""), workers, *refusal_lines(details)]
    if health.state == ORPHANED or summary.state in (STOPPED, FAILED):
        parts += [Text(""), *command_lines(summary)]
    data = run_page_data(summary, details, history, health)
    return Page(data, tuple(parts), health.code, health.is_over)


def make_heading(summary: RunSummary, health: Health) -> Text:
    state = format_state(summary, health)
    rest = ", ".join(sanitize(summary.progress.get(name, "-"), 60) for name in ("env", "strategy"))
    return Text.assemble(
        "run ",
        (summary.run, STRONG),
        ": ",
        (state, STYLES.get(state, PLAIN)),
        f", {rest}",
    )


def format_training_rows(
    progress: Mapping[str, str], details: RunDetails, history: History
) -> list[tuple[str, str]]:
    get = progress.get
    former = {f"return_{name}": get(f"reward_{name}") for name in ("mean", "max")}
    steps = (
        f"{format_whole(get('env_steps'))} in {format_whole(get('episodes'))} episodes, "
        f"{format_whole(get('steps_per_second'))} per second"
    )
    target = details.config.get("target_reward")
    aim = if_known(target, f", target {format_score(target)}")
    evaluation = f"{format_evaluation_row(progress)}{aim}"
    stage = STAGES.get(get("stage", ""), "")
    curve = format_graph([mean for _, mean in history.evaluations], GRAPH_WIDTH)
    count = f" in {len(history.evaluations):,} evaluations"
    return [
        ("generation", format_whole(get("generation")) + stage + format_answered(get("answered"))),
        ("budget", format_budget(progress, details.config)),
        ("steps", if_known(get("env_steps"), steps)),
        ("training", format_training_return({**former, **progress})),
        ("evaluation", if_known(get("eval_mean"), evaluation)),
        ("curve", curve and curve + count),
        ("confirming", if_known(get("confirm_mean"), format_score(get("confirm_mean")))),
    ]


def format_evaluation_row(progress: Mapping[str, str]) -> str:
    """The newest evaluation and the run's best; of a finished run the final evaluation first."""
    count = progress.get("eval_episodes")
    if progress.get("state") != FINISHED or finite_or_none(count) is None:
        return format_evaluation(progress)
    figures = format_mean_std(progress.get("eval_mean"), progress.get("eval_std"))
    best = progress.get("eval_best")
    before = if_known(best, f"; best in training {format_score(best)}")
    return f"{figures} over {format_whole(count)} fresh episodes{before}"


def if_known(value: object, text: str) -> str:
    return "" if finite_or_none(value) is None else text


def format_answered(done: str | None) -> str:
    parts = [parse_number(part) for part in (done or "").split("/")]
    return (
        f", {format_whole(str(parts[0]))} of {format_whole(str(parts[1]))} results"
        if len(parts) == 2 and None not in parts
        else ""
    )


def remaining_budgets(
    progress: Mapping[str, str], config: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    spent = {
        "generations": progress.get("generation"),
        "max_steps": progress.get("env_steps"),
        "max_seconds": progress.get("seconds"),
    }
    remaining = {}
    for name in BUDGETS:
        limit, used = finite_or_none(config.get(name)) or 0.0, finite_or_none(spent[name]) or 0.0
        if limit > 0:
            remaining[name] = {"limit": limit, "spent": used, "left": max(0.0, limit - used)}
    return remaining


def format_budget(progress: Mapping[str, str], config: Mapping[str, Any]) -> str:
    """The remaining budgets, or those used by a run that has ended. The bar shows the one that ends
    first. Empty if the settings are unknown.
    """
    limits = remaining_budgets(progress, config)
    is_over = progress.get("state") in (FINISHED, STOPPED, FAILED)
    if not config:
        return ""
    if not limits:
        return (
            "none: it trains until it is stopped"
            if config.get("target_reward") == "none"
            else "none: it trains until it reaches its target"
        )
    nearest = max(limits.values(), key=lambda limit: limit["spent"] / limit["limit"])
    parts = []
    for name, limit in limits.items():
        form, unit = BUDGET_FORMATS[name]
        parts.append(
            f"{form(limit['spent' if is_over else 'left'])} of {form(limit['limit'])}{unit}"
        )
    bar = f"{format_bar(nearest['spent'], nearest['limit'], BAR_WIDTH)}  {', '.join(parts)}"
    if is_over:
        return f"{bar} used"
    left = finite_or_none(progress.get("eta"))
    about = "" if left is None or left < 0 else f", about {format_duration(left)}"
    return f"{bar} left{about}"


def format_control_rows(summary: RunSummary, details: RunDetails) -> list[tuple[str, str]]:
    get = summary.progress.get
    queue = get("queue", "default")
    refused = list(details.refused.items())
    reasons = [f"{sanitize(name, 60)} {count:,}" for name, count in refused if count]
    requests = f"{details.requests:,} that the master has not answered yet"
    errors = f"{details.errors:,} reports of workers; es-status {summary.run} --errors shows them"
    return [
        ("folder" if summary.is_on_disk else "redis", sanitize(summary.server)),
        ("master", sanitize(summary.holder, 100) if summary.is_leased else ""),
        ("queue", "" if queue == "default" else sanitize(queue, 60)),
        ("workers", "" if summary.is_on_disk else format_worker_count(details)),
        ("changed", sanitize(get("changed", ""), 200)),
        ("requests", requests if details.requests else ""),
        ("refused", ", ".join(reasons)),
        ("recoveries", format_recoveries(summary.progress)),
        ("audit", format_audit(summary.progress)),
        ("errors", errors if details.errors else ""),
        ("digest", sanitize(get("digest", ""))),
        ("started", f"{format_ago(summary.started)}, updated {format_ago(get('updated'))}"),
    ]


def format_worker_count(details: RunDetails) -> str:
    more = " or more" if details.ever_claimed > MOST_WORKERS else ""
    return (
        f"{len(details.workers):,}{more} living of {details.ever_claimed:,} "
        f"known{', a mixed fleet' if len(fingerprints(details)) > 1 else ''}"
    )


def fingerprints(details: RunDetails) -> set[str]:
    return {about["numerics"] for about in details.workers.values() if about.get("numerics")}


def format_recoveries(progress: Mapping[str, str]) -> str:
    """``recovered 2, re-issued 3``"""
    counts = [(word, finite_or_none(progress.get(name)) or 0.0) for name, word in RECOVERY_FIELDS]
    return ", ".join(f"{word} {format_whole(count)}" for word, count in counts if count > 0)


def format_audit(progress: Mapping[str, str]) -> str:
    checked = finite_or_none(progress.get("audited"))
    return "" if checked is None else f"{format_whole(checked)} results equal to the master's own"


def make_worker_table(details: RunDetails) -> FittingTable:
    """The living workers, by host and pid; columns without information are left out."""
    workers = sorted(
        details.workers.items(),
        key=lambda worker: (worker[1].get("host", ""), finite_or_none(worker[1].get("pid")) or 0.0),
    )
    hidden = set()
    if not any(finite_or_none(about.get("late")) for _, about in workers):
        hidden.add("late")
    if not any(about.get("busy") for _, about in workers):
        hidden.add("busy")
    if len(fingerprints(details)) < 2:
        hidden.add("print")
    kept = [place for place, name in enumerate(WORKER_COLUMNS) if name not in hidden]
    rows = [format_worker_row(about, details.silent_seconds(name)) for name, about in workers]
    return FittingTable(
        [WORKER_COLUMNS[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        ("pid", "steps/s", "busy", "gen", "late", "joined", "seen"),
        [name for name in EXPENDABLE if name not in hidden],
        {"refuses": BAD},
    )


def format_worker_row(about: Mapping[str, str], silence: float | None) -> tuple[str, ...]:
    get = about.get
    age = max(1.0, time.time() - (finite_or_none(get("joined")) or time.time()))
    speed = finite_or_none(get("steps_per_second")) or (finite_or_none(get("steps")) or 0.0) / age
    doing = (
        "refuses"
        if get("refuses")
        else sanitize(get("block") or ("-" if get("generation") else "joining"), 24)
    )
    generation = sanitize((get("generation") or "-").removeprefix("generation "), 12)
    return (
        sanitize(get("host", "-"), 40),
        sanitize(get("pid", "-"), 10),
        sanitize(get("backend") or "-", 12),
        format_whole(speed),
        format_percent(get("busy") or None),
        generation,
        doing,
        format_whole(get("late")),
        sanitize(get("numerics", "")[:8]),
        format_ago(get("joined")),
        "-" if silence is None else f"{format_duration(silence)} ago",
    )


def refusal_lines(details: RunDetails) -> list[Text]:
    """One line per reason."""
    hosts: dict[str, list[str]] = {}
    for about in details.workers.values():
        if "refuses" in about:
            host = sanitize(about.get("host", "an unknown host"), 60)
            hosts.setdefault(about["refuses"], []).append(host)
    return [
        Text(f"{format_refusing(reason_hosts)} cannot join: {sanitize(reason)}", BAD)
        for reason, reason_hosts in list(hosts.items())[:MOST_REFUSALS]
    ]


def format_refusing(hosts: Sequence[str]) -> str:
    """``2 workers on a, b``; only the first few of many hosts."""
    names = sorted(set(hosts))
    more = f" and {len(names) - MOST_HOSTS} more hosts" if len(names) > MOST_HOSTS else ""
    plural = "" if len(hosts) == 1 else "s"
    return f"{len(hosts)} worker{plural} on {', '.join(names[:MOST_HOSTS])}{more}"


def format_ago(moment: object) -> str:
    """Another host's clock may be ahead of this one's."""
    then = finite_or_none(moment)
    return "-" if then is None else f"{format_duration(max(0.0, time.time() - then))} ago"


# --- for programs


def run_fields(summary: RunSummary, health: Health) -> dict[str, Any]:
    """A run as JSON: a field that should be a number is one, or null."""
    about = to_json_fields(summary.progress, PROGRESS_TEXTS)
    return {
        "run": summary.run,
        "redis": sanitize(summary.server),
        "started": summary.started,
        "leased": summary.is_leased,
        "on_disk": summary.is_on_disk,
        "master": sanitize(summary.holder, 100) or None,
        "resume": summary.resume,
        "purge": summary.purge,
        **about,
        "state": sanitize(summary.state),
        "stored_state": about.get("state"),
        "health": health.state,
        "health_why": health.why,
    }


def run_page_data(
    summary: RunSummary, details: RunDetails, history: History, health: Health
) -> dict[str, Any]:
    return {
        **run_fields(summary, health),
        "living": [
            {
                "worker": sanitize(name),
                **to_json_fields(about, WORKER_TEXTS),
                "seen": details.silent_seconds(name),
            }
            for name, about in details.workers.items()
        ],
        "ever": details.ever_claimed,
        "refused": {sanitize(reason, 100): count for reason, count in details.refused.items()},
        "errors": details.errors,
        "requests": details.requests,
        "budget": remaining_budgets(summary.progress, details.config),
        "evaluations": [
            {"generation": int(generation), "eval_mean": mean}
            for generation, mean in history.evaluations
        ],
    }


def to_json_fields(hash_fields: Mapping[str, str], text_fields: Sequence[str]) -> dict[str, Any]:
    return {
        name: sanitize(value) if name in text_fields else parse_number(value)
        for name, value in hash_fields.items()
    }
