"""The two pages that es-status is for: the list of runs, and one run with its workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from es_queue.protocol.channel import FAILED, FINISHED, PAUSED, RUNNING, STOPPED, quarantined_in
from master.budget import BUDGETS
from master.status.health import HEALTHY, STALLED, Health, health_of
from master.status.history import History
from master.status.observe import MOST_WORKERS, ORPHANED, Inside, SeenRun
from master.status.page import BAD, GOOD, PLAIN, STRONG, WARNING, Fields, Line, Page, Part, Table, line
from master.wording import (
    bar,
    compact,
    duration,
    finite,
    graph,
    number,
    percent,
    printable,
    score,
    spread,
    whole,
)

RUN_COLUMNS = ("run", "state", "environment", "gen", "steps", "eval", "best", "workers", "updated")
WORKER_COLUMNS = ("host", "pid", "back end", "steps/s", "gen", "block", "late", "print", "hard", "joined", "seen")
STYLES = {RUNNING: GOOD, FINISHED: GOOD, PAUSED: WARNING, STALLED: WARNING, ORPHANED: BAD, FAILED: BAD}
#: What a JSON text stays; everything else of a progress or a worker is a number or null.
#: What a run does when it trains no more.
STAGES = {"closing": ", its last parameters are evaluated", "final": ", it plays its final episodes"}
TEXTS = ("quarantined", "state", "stage", "env", "strategy", "publication", "digest", "answered", "why", "queue", "paused_by", "changed")
WORKER_TEXTS = (
    "host", "rq_name", "backend", "numerics", "block", "refuses", "generation", "python", "noise", "versions", "box2d", "envpool", "packages", "hardened",
)  # fmt: skip
#: Reasons to refuse, and hosts of each, that are shown.
MOST_REFUSALS = 10
MOST_HOSTS = 5
GRAPH_WIDTH = 30
BAR_WIDTH = 12
RECOVERIES = (("recovered", "recovered"), ("reissued", "re-issued"), ("late", "late"), ("duplicate", "duplicates"), ("lost_steps", "lost steps"))


def runs_page(runs: Sequence[SeenRun]) -> Page:
    """All runs, newest first."""
    fares = [health_of(seen) for seen in runs]
    data = {"runs": [run_json(seen, health) for seen, health in zip(runs, fares, strict=True)]}
    if not runs:
        return Page(data, (line("no runs"),))
    rows = tuple(run_row(seen, health) for seen, health in zip(runs, fares, strict=True))
    right = frozenset(("gen", "steps", "eval", "best", "workers", "updated"))
    table = Table(RUN_COLUMNS, rows, ("best", "environment", "updated", "workers", "steps"), right, STYLES)
    lost = [seen for seen, health in zip(runs, fares, strict=True) if health.word == ORPHANED]
    return Page(data, (table, *(one for seen in lost for one in (line(""), line(f"{seen.run} has no master"), ways_out(seen)))))


def run_row(seen: SeenRun, health: Health) -> tuple[str, ...]:
    told = seen.progress.get
    return (
        seen.run, shown_state(seen, health), printable(told("env", "-"), 28), whole(told("generation")), compact(told("env_steps")),
        score(told("eval_mean")), score(told("eval_best")), "-" if seen.on_disk else whole(told("workers")), ago(told("updated")),
    )  # fmt: skip


def shown_state(seen: SeenRun, health: Health) -> str:
    """The state as people read it: how a run fares where that is worse than what is stored."""
    return health.word if health.word in (STALLED, ORPHANED) else printable(seen.state, 12)


def ways_out(seen: SeenRun) -> Fields:
    """The commands for a run that nobody drives."""
    return Fields.of([("go on", seen.resume), ("remove", seen.purge)])


# --- one run


def run_page(seen: SeenRun, inside: Inside, history: History) -> Page:
    """One run; ``code`` says how it fares."""
    health = health_of(seen, inside, history.usual)
    progress, workers = seen.progress, worker_table(inside)
    colour = {HEALTHY: WARNING, STALLED: WARNING, FAILED: BAD, ORPHANED: BAD}.get(health.word, PLAIN)
    parts: list[Part] = [heading(seen, health), *([Fields.of([("why", health.why, colour)])] if health.why else [])]
    parts += [line(""), Fields.of(training_rows(progress, inside, history)), line("")]
    parts.append(Fields.of(control_rows(seen, inside)))
    parts += [line(f"not read: {printable(sentence, 200)}", BAD) for sentence in inside.unread]
    if workers.rows:
        parts += [line(""), workers, *refusals(inside)]
    if health.word == ORPHANED or seen.state in (STOPPED, FAILED):
        parts += [line(""), ways_out(seen)]
    return Page(run_data(seen, inside, history, health), tuple(parts), health.code, health.over)


def heading(seen: SeenRun, health: Health) -> Line:
    state = shown_state(seen, health)
    rest = ", ".join(printable(seen.progress.get(name, "-"), 60) for name in ("env", "strategy"))
    return Line((("run ", PLAIN), (seen.run, STRONG), (": ", PLAIN), (state, STYLES.get(state, PLAIN)), (f", {rest}", PLAIN)))


def training_rows(progress: Mapping[str, str], inside: Inside, history: History) -> list[tuple[str, str]]:
    """Label and text of what was learnt so far; an empty text has nothing to say."""
    told = progress.get
    cut = f" ({percent(told('cut_fraction'))} of episodes cut short)" if (finite(told("cut_fraction")) or 0) > 0 else ""
    mean, best = told("return_mean", told("reward_mean")), told("return_max", told("reward_max"))
    evaluated = finite(told("eval_mean")) is not None
    steps = f"{whole(told('env_steps'))} in {whole(told('episodes'))} episodes, {whole(told('steps_per_second'))} a second"
    top = f", best {score(told('eval_best'))}" if finite(told("eval_best")) is not None else ""
    return [
        ("generation", f"{whole(told('generation'))}{STAGES.get(told('stage', ''), '')}{answered(told('answered'))}"),
        ("budget", budget(progress, inside.config)),
        ("steps", steps if finite(told("env_steps")) is not None else ""),
        ("training", f"{spread(mean, told('return_std'))}, max {score(best)}{cut}" if finite(mean) is not None else ""),
        ("evaluation", f"{score(told('eval_mean'))}{top}{aim(inside.config)}" if evaluated else ""),
        *curve(history),
        ("confirming", score(told("confirm_mean")) if finite(told("confirm_mean")) is not None else ""),
    ]


def answered(done: str | None) -> str:
    """``64/130`` as words."""
    parts = [number(one) for one in (done or "").split("/")]
    return f", {whole(str(parts[0]))} of {whole(str(parts[1]))} slots answered" if len(parts) == 2 and None not in parts else ""


def aim(config: Mapping[str, Any]) -> str:
    target = finite(config.get("target_reward"))
    return "" if target is None else f", target {score(target)}"


def curve(history: History) -> list[tuple[str, str]]:
    """The evaluations so far as a small graph, with its lowest and highest."""
    means = [mean for _, mean in history.evaluations]
    if len(means) < 2:
        return []
    return [("curve", f"{graph(means, GRAPH_WIDTH)} in {len(means):,} evaluations")]


def budgets(progress: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Each limit that the run has, with what is spent and what is left of it."""
    spent = {"generations": progress.get("generation"), "max_steps": progress.get("env_steps"), "max_seconds": progress.get("seconds")}
    found = {}
    for name in BUDGETS:
        limit, used = finite(config.get(name)) or 0.0, finite(spent[name]) or 0.0
        if limit > 0:
            found[name] = {"limit": limit, "spent": used, "left": max(0.0, limit - used)}
    return found


def budget(progress: Mapping[str, str], config: Mapping[str, Any]) -> str:
    """What is left of the budgets; the bar is of the one that ends first. Empty where the settings are not known."""
    limits = budgets(progress, config)
    if not config:
        return ""
    if not limits:
        return "none: it trains until it is stopped" if config.get("target_reward") == "none" else "none: it trains until it reaches its target"
    nearest = max(limits.values(), key=lambda one: one["spent"] / one["limit"])
    wording = {
        "generations": lambda one: f"{whole(one['left'])} of {whole(one['limit'])} generations",
        "max_steps": lambda one: f"{compact(one['left'])} of {compact(one['limit'])} steps",
        "max_seconds": lambda one: f"{duration(one['left'])} of {duration(one['limit'])}",
    }
    parts = [wording[name](one) for name, one in limits.items()]
    left = finite(progress.get("eta"))
    about = "" if left is None or left < 0 else f", about {duration(left)}"
    return f"{bar(nearest['spent'], nearest['limit'], BAR_WIDTH)}  {', '.join(parts)} left{about}"


def control_rows(seen: SeenRun, inside: Inside) -> list[tuple[str, str]]:
    """Label and text of who works on the run, and of what went wrong and was mended."""
    told = seen.progress.get
    queue = told("queue", "")
    return [
        ("folder" if seen.on_disk else "redis", printable(seen.server)),
        ("master", printable(seen.holder, 100) if seen.leased else ""),
        ("queue", printable(queue, 60) if queue and queue != "default" else ""),
        ("workers", "" if seen.on_disk else worker_count(inside)),
        ("changed", printable(told("changed", ""), 200)),
        ("requests", "" if not inside.requests else f"{inside.requests:,} that the master has not answered yet"),
        ("refused", ", ".join(f"{printable(reason, 60)} {count:,}" for reason, count in inside.refused.items() if count and reason != "audit")),
        ("recoveries", recoveries(seen.progress)),
        ("audit", audit(seen.progress)),
        ("errors", f"{inside.errors:,} reports of workers; --errors shows them" if inside.errors else ""),
        ("digest", printable(told("digest", ""))),
        ("started", f"{ago(seen.started)}, updated {ago(told('updated'))}"),
    ]


def worker_count(inside: Inside) -> str:
    more = " or more" if inside.ever > MOST_WORKERS else ""
    return f"{len(inside.workers):,}{more} living of {inside.ever:,} that ever claimed{', a mixed fleet' if len(prints(inside)) > 1 else ''}"


def prints(inside: Inside) -> set[str]:
    """The numeric fingerprints of the living."""
    return {about["numerics"] for about in inside.workers.values() if about.get("numerics")}


def recoveries(progress: Mapping[str, str]) -> str:
    """``recovered 2, re-issued 3``: what failed and was mended, as far as anything was."""
    counts = [(word, finite(progress.get(name)) or 0.0) for name, word in RECOVERIES]
    return ", ".join(f"{word} {whole(count)}" for word, count in counts if count > 0)


def audit(progress: Mapping[str, str]) -> str:
    """What the audit has compared, what nobody could decide, and who is in quarantine."""
    checked, disputed = (finite(progress.get(name)) for name in ("audited", "audit_disputes"))
    out = ", ".join(f"{name or 'a worker'} on {host}" for host, name in quarantined_in(progress.get("quarantined")))
    parts = [
        "" if checked is None else f"{whole(checked)} results confirmed by a second worker",
        "" if not disputed else f"{whole(disputed)} differences undecided",
        f"in quarantine: {printable(out, 300)}" if out else "",
    ]
    return "; ".join(filter(None, parts))


def worker_table(inside: Inside) -> Table:
    """The living workers, by host and pid; columns in which there is nothing to see are left out."""
    workers = sorted(inside.workers.items(), key=lambda one: (one[1].get("host", ""), finite(one[1].get("pid")) or 0.0))
    rows = [worker_row(about, inside.silence(name)) for name, about in workers]
    idle = {"late"} if not any(finite(about.get("late")) for _, about in workers) else set()
    same = {"print"} if len(prints(inside)) < 2 else set()
    alike = {"hard"} if len({about.get("hardened") == "yes" for _, about in workers}) < 2 else set()
    kept = [place for place, name in enumerate(WORKER_COLUMNS) if name not in idle | same | alike]
    columns = tuple(WORKER_COLUMNS[place] for place in kept)
    expendable = tuple(name for name in ("joined", "late", "gen", "print", "pid", "hard", "block", "back end") if name in columns)
    cut = tuple(tuple(row[place] for place in kept) for row in rows)
    return Table(columns, cut, expendable, frozenset(("pid", "steps/s", "gen", "late", "joined", "seen")), {"refuses": BAD})


def worker_row(about: Mapping[str, str], silence: float | None) -> tuple[str, ...]:
    told = about.get
    age = max(1.0, time.time() - (finite(told("joined")) or time.time()))
    speed = finite(told("steps_per_second")) or (finite(told("steps")) or 0.0) / age
    doing = "refuses" if told("refuses") else printable(told("block") or ("-" if told("generation") else "joining"), 24)
    generation = printable((told("generation") or "-").removeprefix("generation "), 12)
    return (
        printable(told("host", "-"), 40), printable(told("pid", "-"), 10), printable(told("backend") or "-", 12), whole(speed), generation,
        doing, whole(told("late")), printable(told("numerics", "")[:8]), "yes" if told("hardened") == "yes" else "no", ago(told("joined")),
        "-" if silence is None else f"{duration(silence)} ago",
    )  # fmt: skip


def refusals(inside: Inside) -> list[Line]:
    """Who cannot join, and why: a line for each reason."""
    hosts: dict[str, list[str]] = {}
    for about in inside.workers.values():
        if "refuses" in about:
            hosts.setdefault(about["refuses"], []).append(printable(about.get("host", "an unknown host"), 60))
    return [line(f"{refusing(one)} cannot join: {printable(reason)}", BAD) for reason, one in list(hosts.items())[:MOST_REFUSALS]]


def refusing(hosts: Sequence[str]) -> str:
    """``2 workers on a, b``; of many hosts the first few."""
    names = sorted(set(hosts))
    more = f" and {len(names) - MOST_HOSTS} more hosts" if len(names) > MOST_HOSTS else ""
    return f"{len(hosts)} worker{'' if len(hosts) == 1 else 's'} on {', '.join(names[:MOST_HOSTS])}{more}"


def ago(moment: object) -> str:
    """How long a time of day is past; another host's clock may be ahead of ours."""
    then = finite(moment)
    return "-" if then is None else f"{duration(max(0.0, time.time() - then))} ago"


# --- for programs


def run_json(seen: SeenRun, health: Health) -> dict[str, Any]:
    """A run as JSON: what is a number is one, whatever else stands there is null."""
    about = {name: printable(value) if name in TEXTS else number(value) for name, value in seen.progress.items()}
    about |= {"state": printable(seen.state), "stored_state": about.get("state"), "health": health.word, "health_why": health.why}
    where = {"redis": printable(seen.server), "started": seen.started, "leased": seen.leased, "on_disk": seen.on_disk}
    return {"run": seen.run, **where, "master": printable(seen.holder, 100) or None, "resume": seen.resume, "purge": seen.purge, **about}


def run_data(seen: SeenRun, inside: Inside, history: History, health: Health) -> dict[str, Any]:
    workers = [{**worker_json(name, about), "seen": inside.silence(name)} for name, about in inside.workers.items()]
    refused = {printable(reason, 100): count for reason, count in inside.refused.items()}
    evaluations = [{"generation": int(generation), "eval_mean": mean} for generation, mean in history.evaluations]
    counts = {
        "ever": inside.ever,
        "refused": refused,
        "errors": inside.errors,
        "requests": inside.requests,
        "unread": list(inside.unread),
    }
    return {**run_json(seen, health), "living": workers, **counts, "budget": budgets(seen.progress, inside.config), "evaluations": evaluations}


def worker_json(worker: str, about: Mapping[str, str]) -> dict[str, Any]:
    figures = {name: printable(value) if name in WORKER_TEXTS else number(value) for name, value in about.items()}
    return {"worker": printable(worker), **figures}
