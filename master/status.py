"""es-status: runs and their workers as tables or JSON, read from Redis alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

import es_queue
from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, EsQueueError, RedisError, UsageError
from es_queue.protocol.connection import url_from_environment
from es_queue.protocol.keys import checked_run_id
from master.console import SafeStream
from master.observe import (
    MOST_WORKERS,
    ORPHANED,
    Inside,
    SeenRun,
    Server,
    named_server,
    private_server,
    private_servers,
)
from master.wording import compact, duration, finite, percent, printable, score, spread, whole

EPILOG = """\
Without --redis-url and --run-dir, RQ_REDIS_URL and REDIS_URL are looked at,
then the private servers of the runs in ./runs.

exit codes: 0 done, 2 bad usage, 3 Redis
"""
RUN_COLUMNS = ("run", "state", "environment", "gen", "steps", "eval", "best", "workers", "updated")
WORKER_COLUMNS = ("worker", "host", "pid", "gen", "block", "steps", "steps/s", "late", "numerics", "joined")
#: A table in a pipe is for programs: wide enough that nothing is cut.
PIPE_WIDTH = 400
STYLES = {"running": "green", "finished": "green", ORPHANED: "red", "failed": "red"}
TEXTS = ("state", "stage", "env", "strategy", "publication", "digest", "answered", "why")
WORKER_TEXTS = ("host", "rq_name", "backend", "numerics", "block", "refuses", "generation")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; es-status --help explains all options")


def main(argv: list[str] | None = None) -> int:
    """The command; see ``es-status --help``. Returns the exit code."""
    try:
        show(parse(argv), SafeStream(sys.stdout))
    except EsQueueError as error:
        print(f"es-status: {printable(error, 1000)}", file=SafeStream(sys.stderr))
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line. Raises UsageError; --help and --version print and end the process."""
    parser = _Parser(
        prog="es-status", description="Show runs and their workers.", epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("run", nargs="?", metavar="RUN", help="show this run and its workers [default: a table of all runs]")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--redis-url", metavar="URL", help="server of the runs; put a password in RQ_REDIS_URL rather than here")
    where.add_argument("--run-dir", metavar="PATH", type=Path, help="folder of a run with a private server")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--version", action="version", version=f"es-queue {es_queue.__version__}", help="show the version and end")
    given = parser.parse_args(argv)
    if given.run is not None:
        checked_run_id(given.run)
    return given


def show(given: argparse.Namespace, out: SafeStream) -> None:
    """Print what was asked for. Raises UsageError for an unknown run, RedisError where nothing can be read."""
    servers = chosen_servers(given)
    try:
        if given.run is None:
            show_runs(all_runs(servers), out, as_json=given.json)
        else:
            server, seen = found_run(servers, given.run)
            show_run(seen, server.inside(given.run), out, as_json=given.json)
    finally:
        for server in servers:
            server.close()


def chosen_servers(given: argparse.Namespace) -> list[Server]:
    """The named server, else the environment's, else the private ones of ./runs."""
    if given.redis_url is not None:
        return [named_server(given.redis_url, given_by_flag=True)]
    if given.run_dir is not None:
        return [private_server(given.run_dir)]
    if url := url_from_environment():
        return [named_server(url, given_by_flag=False)]
    servers = private_servers(Path("runs"))
    if not servers:
        raise RedisError("no Redis is named and no private server runs in ./runs: give --redis-url or --run-dir, or set RQ_REDIS_URL")
    return servers


def all_runs(servers: list[Server]) -> list[SeenRun]:
    """The runs of all servers, newest first. One of several that does not answer hides no other."""
    found: list[SeenRun] = []
    troubles: list[RedisError] = []
    for server in servers:
        try:
            found += server.runs()
        except RedisError as error:
            troubles.append(error)
    if len(troubles) == len(servers):
        raise troubles[0]
    return sorted(found, key=lambda seen: -(seen.started or 0.0))


def found_run(servers: list[Server], run: str) -> tuple[Server, SeenRun]:
    """The server that knows the run, and the run."""
    others: list[str] = []
    troubles: list[RedisError] = []
    for server in servers:
        try:
            if (seen := server.find(run)) is not None:
                return server, seen
            others += [one.run for one in server.runs()]
        except RedisError as error:
            troubles.append(error)
    if len(troubles) == len(servers):
        raise troubles[0]
    known = f"there are {', '.join(others[:10])}" if others else "there are no runs"
    raise UsageError(f"there is no run {run} at {', '.join(server.name for server in servers[:3])}; {known}")


# --- for programs


def run_json(seen: SeenRun) -> dict[str, Any]:
    """A run as JSON: what is a number is one, whatever else stands there is null."""
    about = {name: printable(value) if name in TEXTS else number(value) for name, value in seen.progress.items()}
    about |= {"state": printable(seen.state), "stored_state": about.get("state")}
    return {"run": seen.run, "redis": seen.server, "started": seen.started, "leased": seen.leased, **about}


def worker_json(worker: str, about: dict[str, str]) -> dict[str, Any]:
    figures = {name: printable(value) if name in WORKER_TEXTS else number(value) for name, value in about.items()}
    return {"worker": printable(worker), **figures}


def number(text: str) -> int | float | None:
    """The number that a text is, None where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else finite(text)


def show_json(found: dict[str, Any], out: SafeStream) -> None:
    out.line(json.dumps(found, allow_nan=False))


# --- for people


def show_runs(runs: list[SeenRun], out: SafeStream, *, as_json: bool) -> None:
    if as_json:
        show_json({"runs": [run_json(seen) for seen in runs]}, out)
        return
    if not runs:
        out.line("no runs")
        return
    show_table(RUN_COLUMNS, [run_row(seen) for seen in runs], out, expendable=("best", "environment", "updated", "workers", "steps"))
    for seen in runs:
        if seen.state == ORPHANED:
            out.line(f"{seen.run} has no master; go on with it: {seen.resume}")


def run_row(seen: SeenRun) -> list[str]:
    told = seen.progress.get
    return [
        seen.run, printable(seen.state, 12), printable(told("env", "-"), 28), whole(told("generation")), compact(told("env_steps")),
        score(told("eval_mean")), score(told("eval_best")), whole(told("workers")), ago(told("updated")),
    ]  # fmt: skip


def show_run(seen: SeenRun, inside: Inside, out: SafeStream, *, as_json: bool) -> None:
    if as_json:
        workers = [worker_json(name, about) for name, about in inside.workers.items()]
        refused = {printable(reason, 100): count for reason, count in inside.refused.items()}
        show_json({**run_json(seen), "living": workers, "ever": inside.ever, "refused": refused, "errors": inside.errors}, out)
        return
    told = seen.progress.get
    out.line(f"run {seen.run}: {printable(seen.state)}, {printable(told('env', '-'))}, {printable(told('strategy', '-'))}")
    for label, line in run_lines(seen, inside):
        if line:
            out.line(f"  {label:<12}{line}")
    if inside.workers:
        rows = [worker_row(about) for about in inside.workers.values()]
        show_table(WORKER_COLUMNS, rows, out, expendable=("pid", "joined", "block", "late", "host"))
    for about in inside.workers.values():
        if "refuses" in about:
            out.line(f"{printable(about.get('host', 'a worker'), 60)} cannot join: {printable(about['refuses'])}")


def run_lines(seen: SeenRun, inside: Inside) -> list[tuple[str, str]]:
    """Label and text of a run's figures; an empty text has nothing to say."""
    told = seen.progress.get
    cut = f" ({percent(told('cut_fraction'))} of episodes cut short)" if (finite(told("cut_fraction")) or 0) > 0 else ""
    mean = told("return_mean", told("reward_mean"))
    best = told("return_max", told("reward_max"))
    evaluated = finite(told("eval_mean")) is not None
    steps = f"{whole(told('env_steps'))} in {whole(told('episodes'))} episodes, {whole(told('steps_per_second'))} a second"
    count = f"{len(inside.workers):,}{' or more' if inside.ever > MOST_WORKERS else ''} living of {inside.ever:,} that ever claimed"
    return [
        ("redis", seen.server),
        ("resume", seen.resume if seen.state == ORPHANED else ""),
        ("why", printable(told("why", ""))),
        ("generation", f"{whole(told('generation'))}{', answered ' + printable(told('answered'), 40) if told('answered') else ''}"),
        ("steps", steps if finite(told("env_steps")) is not None else ""),
        ("training", f"{spread(mean, told('return_std'))}, max {score(best)}{cut}" if finite(mean) is not None else ""),
        ("evaluation", f"{score(told('eval_mean'))}, best {score(told('eval_best'))}" if evaluated else ""),
        ("confirming", score(told("confirm_mean")) if finite(told("confirm_mean")) is not None else ""),
        ("time left", duration(told("eta")) if finite(told("eta")) is not None else ""),
        ("workers", count),
        ("refused", ", ".join(f"{printable(reason, 60)} {number:,}" for reason, number in inside.refused.items() if number)),
        ("errors", f"{inside.errors:,} reports of workers" if inside.errors else ""),
        ("digest", printable(told("digest", ""))),
        ("started", ago(seen.started)),
        ("updated", ago(told("updated"))),
    ]  # fmt: skip


def worker_row(about: dict[str, str]) -> list[str]:
    told = about.get
    age = max(1.0, time.time() - (finite(told("joined")) or time.time()))
    speed = finite(told("steps_per_second")) or (finite(told("steps")) or 0.0) / age
    return [
        printable(told("rq_name") or "-", 40), printable(told("host", "-"), 40), printable(told("pid", "-"), 10),
        "refuses" if told("refuses") else printable((told("generation") or "joining").removeprefix("generation "), 12),
        printable(told("block", ""), 24), compact(told("steps")), whole(speed), whole(told("late")),
        printable(told("numerics", "")[:8]), ago(told("joined")),
    ]  # fmt: skip


def ago(moment: object) -> str:
    """How long a time of day is past; another host's clock may be ahead of ours."""
    then = finite(moment)
    return "-" if then is None else f"{duration(max(0.0, time.time() - then))} ago"


def show_table(columns: tuple[str, ...], rows: list[list[str]], out: SafeStream, expendable: tuple[str, ...]) -> None:
    """A table as wide as the terminal, without the expendable columns that do not fit; in a pipe it is whole."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    console = Console(file=cast(TextIO, out), markup=False, highlight=False, force_terminal=terminal, width=None if terminal else PIPE_WIDTH)
    named = max([len(columns[0]), *(len(row[0]) for row in rows)])
    kept = kept_columns(columns, rows, console.width, expendable)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for position in kept:
        table.add_column(columns[position], no_wrap=True, min_width=min(console.width, named) if position == 0 else None)
    for row in rows:
        table.add_row(*(Text(row[position], STYLES.get(row[position], "")) for position in kept))
    console.print(table)


def kept_columns(columns: tuple[str, ...], rows: list[list[str]], width: int, expendable: tuple[str, ...]) -> list[int]:
    """Places of the columns to show: expendable ones go, in their order, until the rest fits the width."""
    widths = [2 + max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    kept = list(range(len(columns)))
    for name in expendable:
        if sum(widths[position] for position in kept) - 2 <= width:
            break
        kept.remove(columns.index(name))
    return kept


if __name__ == "__main__":
    sys.exit(main())
