"""es-status: shows runs, workers and keys, as tables or JSON; it only reads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rich.text import Text

from es_queue.command_line import (
    PASSWORD_FILE_OPTION,
    CommandParser,
    add_options,
    add_runs_folder,
    add_version,
)
from es_queue.errors import EXIT_INTERRUPTED, EsQueueError, NoRunError, UsageError
from es_queue.protocol.keys import RUNS, checked_run_id
from es_queue.run_folder import find_run, read_run_name, refuse_links, runs_folder
from es_queue.text import sanitize
from master.display.log_view import SafeStream
from master.status.curve import Curve
from master.status.figures import finite_or_none
from master.status.keyspace import make_key_page, make_keys_page, validate_key
from master.status.sources import Sources, find_sources, password_warnings
from master.status.texts import (
    Page,
    make_errors_page,
    make_run_page,
    make_runs_page,
    print_page,
    watch_page,
)

EPILOG = """\
Without --redis-url and --run-dir, es-status reads the server in RQ_REDIS_URL
or REDIS_URL, then the servers that the runs in ./runs remember. If a run's
server does not have it, its folder is read. es-status writes nothing.

examples:
  es-status                 all runs
  es-status RUN --watch     one run, redrawn until it ends
  es-status --doctor        problems with Redis, workers and this host, with fixes
  es-status --web           curves and workers in a browser

exit codes:
  0    the list of runs, --errors and --keys; for one run: healthy (training
       or paused)
  10   done: finished or stopped
  11   stalled: it has a master, but no result has counted for a minute (and,
       if it has workers, for ten times the usual wait of a generation)
  12   orphaned: its master is gone; the commands that resume and remove the
       run are shown
  13   failed: it ended with an error
  2    bad usage
  3    Redis; for one run also unreachable: its server does not answer, so
       whether a master leads it is not known
  6    unknown run
  130  interrupted
"""
ALL_KEYS = "all keys"
INTERVAL_LIMITS = (0.2, 3600.0)


def main(argv: list[str] | None = None) -> int:
    try:
        given = parse_command_line(argv)
        for text in password_warnings(given):
            print(
                f"es-status: WARNING: {sanitize(text, 1000)}",
                file=SafeStream(sys.stderr),
                flush=True,
            )
        return show_status(given, SafeStream(sys.stdout))
    except EsQueueError as error:
        print(f"es-status: {sanitize(error, 1000)}", file=SafeStream(sys.stderr))
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


#: Options with their help, as ``add_options`` reads them.
RUN_OPTION = """
run RUN
    show this run and its workers, or the runs of this study; a name, a folder, or a file in it
    [default: a table of all runs]"""
SERVER_OPTION = """
--redis-url URL
    server of the runs; put a password in RQ_REDIS_URL, not here"""
FOLDER_OPTION = """
--run-dir PATH
    folder of a run with a private server"""
PAGE_OPTIONS = """
--errors
    newest reports of RUN's workers, with tracebacks
--keys KEY
    all keys of RUN, or of all runs; with KEY, such as config, its decoded value
--doctor
    check Redis, the workers and this host, and suggest a fix for each problem
"""
SHOW_OPTIONS = """
--watch
    redraw until RUN has ended, or until Ctrl-C
--web ADDRESS:PORT
    serve curves, workers and settings as a web page, and /metrics for Prometheus, until Ctrl-C
    [default: 127.0.0.1:8642, only this host]
--web-host NAME
    host name or address in the Host header of browsers and Prometheus that may reach the page of
    --web; repeatable [default: localhost, loopback addresses, and the ADDRESS of --web]
--every SECONDS
    refresh interval of --watch and --web, 0.2 to 3600 [default: 2]
--json
    print one JSON object; with --watch, one per line
"""


def parse_command_line(argv: list[str] | None) -> argparse.Namespace:
    """The command line. Raises UsageError; --help and --version print and end the process."""
    parser = CommandParser("es-status", "Show runs and their workers.", epilog=EPILOG)
    add_options(parser, RUN_OPTION, run={"nargs": "?"})
    where = parser.add_mutually_exclusive_group()
    add_options(where, SERVER_OPTION)
    add_options(parser, PASSWORD_FILE_OPTION.format(""))
    add_options(where, FOLDER_OPTION, run_dir={"type": Path})
    what = parser.add_mutually_exclusive_group()
    add_options(what, PAGE_OPTIONS, keys={"nargs": "?", "const": ALL_KEYS})
    web, web_host = {"nargs": "?", "const": ""}, {"action": "append"}
    add_options(parser, SHOW_OPTIONS, web=web, web_host=web_host)
    add_runs_folder(parser)
    add_version(parser)
    return validate_args(parser.parse_words(argv))


def validate_args(given: argparse.Namespace) -> argparse.Namespace:
    """Checks combinations of flags. Raises UsageError."""
    run, run_folder, keys = given.run, None, given.keys
    if run is not None:
        named = find_run(run, given.runs_dir)
        run, folder = checked_run_id(named.run), named.folder
        is_listed = given.web is not None and folder.parent == runs_folder(given.runs_dir)
        run_folder = folder if read_run_name(folder) and not is_listed else None
        refuse_links(folder)
    if given.errors and run is None:
        raise UsageError("--errors shows the reports of one run: es-status RUN --errors")
    if keys not in (None, ALL_KEYS):
        keys = validate_key(keys, run)
    if given.watch and given.doctor:
        raise UsageError("--watch and --doctor cannot be combined: the doctor checks once")
    others = ("watch", "json", "doctor", "errors", "keys")
    if given.web is not None and (more := [name for name in others if getattr(given, name)]):
        raise UsageError(f"--web shows everything on its page, so leave --{more[0]} out")
    if given.web_host and given.web is None:
        raise UsageError("--web-host names hosts for the page of --web: add --web")
    if given.every is not None and not given.watch and given.web is None:
        raise UsageError(
            "--every is the refresh interval of --watch and --web: add one of them, or leave "
            "--every out"
        )
    every = 2.0 if given.every is None else finite_or_none(given.every)
    if every is None or not INTERVAL_LIMITS[0] <= every <= INTERVAL_LIMITS[1]:
        raise UsageError(
            f"--every is {sanitize(given.every, 60)!r}: use a number of seconds from "
            f"{INTERVAL_LIMITS[0]:g} to {INTERVAL_LIMITS[1]:g}"
        )
    checked = {"run": run, "run_folder": run_folder, "every": every, "keys": keys}
    return argparse.Namespace(**vars(given) | checked)


def show_status(given: argparse.Namespace, out: SafeStream) -> int:
    """Show the requested page; returns the exit code. Raises UsageError for an unknown run,
    RedisError if nothing can be read.
    """
    if given.doctor:
        # start-up: only what is asked for
        from master.status.doctor import run_doctor

        return run_doctor(given, out)
    if given.web is not None:
        # start-up: only what is asked for
        from master.status.web import serve

        return serve(given, out, SafeStream(sys.stderr))
    query = make_query(given)
    if given.watch:
        return watch_page(query, out, given.every, as_json=given.json)
    page = query()
    print_page(page, out, as_json=given.json)
    return page.code


def make_query(given: argparse.Namespace) -> Callable[[], Page]:
    """Reads once and returns the requested page; it keeps a run's curve."""
    curve = Curve(is_brief=not given.watch)

    def query() -> Page:
        # Each time: a private server may have ended since, or begun.
        with find_sources(given) as sources:
            if given.keys is not None:
                return choose_keys_page(sources, given.run, given.keys)
            if given.run is None:
                return make_runs_page(sources.list_runs())
            try:
                run = sources.find_run(given.run)
            except NoRunError:
                if study := sources.find_study(given.run):
                    return make_runs_page(study)
                raise
            if given.errors:
                return make_errors_page(run.source.read_details(run))
            return make_run_page(run.source.read_details(run, curve), curve)

    return query


def choose_keys_page(sources: Sources, run: str | None, key: str) -> Page:
    """All keys, or one. Raises UsageError for an unknown run or key."""
    servers, _ = sources.ask_servers(lambda server: (server, server.ask([("exists", RUNS)]))[0])
    page = make_keys_page(servers, run) if key == ALL_KEYS else make_key_page(servers, key)
    is_missing = page is None or (key == ALL_KEYS and not page.data["keys"])
    if run is not None and is_missing and sources.find_run(run).on_disk:
        sentence = f"the keys of {run} stay with its server, which has ended"
        return Page({"keys": [], "notes": []}, (Text(sentence),))
    if page is None:
        raise UsageError(f"there is no key {sanitize(key)}; es-status --keys lists the keys")
    return page


if __name__ == "__main__":
    sys.exit(main())
