"""``--attach RUN``: the display of a run that another process drives, from what Redis
says of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from es_queue.config.parsing import config_from_json
from es_queue.config.run_config import RunConfig
from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, EnvironmentFailure, RedisError, UsageError
from es_queue.protocol.channel import FAILED, FINISHED, STOPPED
from es_queue.protocol.connection import redacted_url, tested_client
from es_queue.protocol.control_client import ControlClient
from es_queue.protocol.keys import RunKeys
from es_queue.security.sanitize import sanitize
from master.control.run_server import server_url
from master.display.format import Record, finite_or_none, parse_number
from master.display.log_view import DisplayView, SafeStream
from master.display.reporter import make_view
from master.run.launch import Launch
from master.status.history import is_readable, short_fields
from master.status.redis_reader import RedisReader, RunSummary, to_text
from master.status.run_folders import read_object

POLL_SECONDS = 0.5
#: A server that does not answer is looked for again, for so long.
PATIENCE_SECONDS = 120.0
#: Past generations that a graph can use.
MOST_RECALLED = 500
MOST_READ_AT_ONCE = 100
MOST_FIELDS = 200
ENDED_STATES = (FINISHED, STOPPED, FAILED)
SUMMARY_FIELDS = (
    "generation",
    "workers",
    "episodes",
    "env_steps",
    "steps_per_second",
    "seconds",
    "eval_mean",
    "eval_std",
    "eval_min",
    "eval_episodes",
    "confirm_mean",
)


def attach(run: str, launch: Launch) -> int:
    """Show the run until it ends, nobody reads any more, or Ctrl-C; returns the exit code.

    Raises UsageError for a run that nobody knows, RedisError where its server stays away,
    EnvironmentFailure when it failed.
    """
    url = server_url(run, launch)
    if url is None:
        raise UsageError(
            f"no private server runs for {run}: its master has ended; for a run on a shared "
            "Redis give --redis-url or set RQ_REDIS_URL"
        )
    raw = ControlClient(tested_client(url), run).config()
    if raw is None:
        raise UsageError(
            f"there is no run {run} in Redis at {redacted_url(url)}; es-status lists the runs"
        )
    config = config_from_json(raw)
    out = SafeStream(sys.stdout)
    view = make_view(out, run, config, quiet=launch.quiet, json_lines=launch.json)
    server = RedisReader(
        url, "" if launch.redis_url is None else f" --redis-url {redacted_url(url)}"
    )
    watcher = AttachedView(server, run, config, view, lambda: out.is_silent)
    try:
        view.started(
            {
                "redis": redacted_url(url),
                "seed": str(config.seed),
                "attached": "Ctrl-C ends this display and leaves the run alone",
            }
        )
        return watcher.run(
            launch.run_dir or Path("runs") / run if launch.redis_url is None else None
        )
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        view.close()
        server.close()


class AttachedView:
    """Feeds a view from a run's history and progress, of which nothing is believed, and of each no
    more than fits.
    """

    def __init__(
        self,
        server: RedisReader,
        run: str,
        config: RunConfig,
        view: DisplayView,
        is_unread: Callable[[], bool] = lambda: False,
    ) -> None:
        self._server, self._run, self._config, self._view, self._is_unread = (
            server,
            run,
            config,
            view,
            is_unread,
        )
        self._history = RunKeys(run).history
        self._cursor = ""
        self._has_no_master = False
        self._away_since: float | None = None

    def run(self, run_dir: Path | None, wait: Callable[[float], None] = time.sleep) -> int:
        """Until the run ends. run_dir: the folder of a private run, which says how it ended once
        its server is gone.
        """
        while not self._is_unread():
            try:
                seen = self._poll()
            except RedisError as error:
                ended = None if run_dir is None else read_summary(run_dir)
                if ended is not None:
                    return self._show_end(ended)
                self._note_outage(error)
            else:
                if seen.progress.get("state") in ENDED_STATES:
                    return self._show_end(self._make_summary(seen.progress, run_dir))
                self._show_progress(seen)
            wait(POLL_SECONDS)
        return EXIT_DONE

    def _poll(self) -> RunSummary:
        """Progress now, with the generations that closed since the last look shown. Raises
        RedisError.
        """
        seen = self._server.find_run(self._run)
        if seen is None or not seen.progress:
            raise RedisError(f"run {self._run} is gone from Redis at {self._server.name}")
        if self._away_since is not None:
            self._away_since = None
            self._view.note("Redis answers again")
        self._show_new_generations()
        return seen

    def _note_outage(self, error: RedisError) -> None:
        """The server did not answer: said once, and borne for a while."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._view.note(f"{error}; looking again")
        if time.monotonic() - self._away_since > PATIENCE_SECONDS:
            raise error

    def _show_new_generations(self) -> None:
        """Generations that have closed since the last look; at the first look those that a graph
        can use.
        """
        if not is_readable(self._server, self._history):
            return
        if not self._cursor:
            (entries,) = self._server.ask([("xrevrange", self._history, "+", "-", MOST_RECALLED)])
            entries = list(reversed(entries or []))
            self._view.recall([parse_record(fields) for _, fields in entries])
        else:
            (entries,) = self._server.ask(
                [("xrange", self._history, f"({self._cursor}", "+", MOST_READ_AT_ONCE)]
            )
            for _, fields in entries or ():
                self._view.generation(parse_record(fields))
        self._cursor = to_text(entries[-1][0]) if entries else self._cursor

    def _show_progress(self, seen: RunSummary) -> None:
        progress, is_led = seen.progress, seen.is_leased
        done, _, total = progress.get("answered", "").partition("/")
        waiting = (
            f"paused by {sanitize(progress['paused_by'], 100)}" if progress.get("paused_by") else ""
        )
        if not is_led:
            waiting = "the run has no master"
        if is_led == self._has_no_master:  # said once when it goes, once when it is back
            self._view.note(
                f"run {self._run} has a master again"
                if is_led
                else f"run {self._run} has no master: go on with it by {seen.resume}"
            )
        self._has_no_master = not is_led
        self._view.live(
            {
                "workers": parse_number(progress.get("workers", "")),
                "answered": parse_number(done),
                "slots": parse_number(total),
                "waiting": waiting or None,
            }
        )

    def _make_summary(self, progress: Mapping[str, str], run_dir: Path | None) -> Record:
        stored = None if run_dir is None else read_summary(run_dir)
        if stored is not None and stored.get("state") == progress.get("state"):
            return stored
        record: Record = {
            name: parse_number(progress[name]) for name in SUMMARY_FIELDS if name in progress
        }
        if progress.get("state") != FINISHED:
            record.pop("eval_mean", None)  # the last one under way is no final evaluation
        return {
            **record,
            "run": self._run,
            **{
                name: sanitize(progress[name])
                for name in ("state", "digest", "why")
                if name in progress
            },
        }

    def _show_end(self, summary: Record) -> int:
        self._view.summary(summary)
        if summary.get("state") == FAILED:
            raise EnvironmentFailure(
                f"run {self._run} failed: {sanitize(summary.get('why') or 'es-status shows why')}"
            )
        return EXIT_DONE


def parse_record(fields: Mapping[bytes, bytes]) -> Record:
    """An entry of the history as a record: numbers where there are any, text else; what is too long
    stays out.
    """
    first_fields = list(short_fields(fields or {}).items())[:MOST_FIELDS]
    return {
        sanitize(name, 100): parse_number(value)
        if finite_or_none(value) is not None
        else sanitize(value)
        for name, value in first_fields
    }


def read_summary(run_dir: Path) -> Record | None:
    """What the run's folder says of its end; None while it says nothing."""
    return read_object(run_dir / "summary.json") or None
