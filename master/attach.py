"""``--attach RUN``: the display of a run that another process drives, from what Redis says of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from es_queue.config import RunConfig
from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, EnvironmentFailure, RedisError, UsageError
from es_queue.protocol.channel import FAILED, FINISHED, STOPPED
from es_queue.protocol.connection import client_tried_once, safe_name
from es_queue.protocol.desk import Desk
from es_queue.protocol.keys import RunKeys
from es_queue.settings import config_from_json
from master.console import SafeStream, View
from master.control import url_of
from master.options import Launch
from master.report import chosen_view
from master.status.folders import read_object
from master.status.history import readable, short_fields
from master.status.observe import SeenRun, Server, text
from master.wording import Record, finite, number, printable

LOOK_SECONDS = 0.5
#: A server that does not answer is looked for again, for so long.
PATIENCE_SECONDS = 120.0
#: Past generations that a graph can use.
RECALLED = 500
READ_AT_ONCE = 100
MOST_FIELDS = 200
ENDED = (FINISHED, STOPPED, FAILED)
FIGURES = (
    "generation", "workers", "episodes", "env_steps", "steps_per_second", "seconds", "eval_mean", "eval_std", "eval_min", "eval_episodes",
    "confirm_mean",
)  # fmt: skip


def attach(run: str, launch: Launch) -> int:
    """Show the run until it ends, nobody reads any more, or Ctrl-C; returns the exit code.

    Raises UsageError for a run that nobody knows, RedisError where its server stays away, EnvironmentFailure when it failed.
    """
    url = url_of(run, launch)
    if url is None:
        raise UsageError(f"no private server runs for {run}: its master has ended; for a run on a shared Redis give --redis-url or set RQ_REDIS_URL")
    raw = Desk(client_tried_once(url), run).config()
    if raw is None:
        raise UsageError(f"there is no run {run} in Redis at {safe_name(url)}; es-status lists the runs")
    config = config_from_json(raw)
    out = SafeStream(sys.stdout)
    view = chosen_view(out, run, config, quiet=launch.quiet, json_lines=launch.json)
    server = Server(url, "" if launch.redis_url is None else f" --redis-url {safe_name(url)}")
    watcher = Watcher(server, run, config, view, lambda: out.silent)
    try:
        view.started({"redis": safe_name(url), "seed": str(config.seed), "attached": "Ctrl-C ends this display and leaves the run alone"})
        return watcher.watch(launch.run_dir or Path("runs") / run if launch.redis_url is None else None)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        view.close()
        server.close()


class Watcher:
    """Feeds a view from a run's history and progress, of which nothing is believed, and of each no more than fits."""

    def __init__(self, server: Server, run: str, config: RunConfig, view: View, unread: Callable[[], bool] = lambda: False) -> None:
        self._server, self._run, self._config, self._view, self._unread = server, run, config, view, unread
        self._history = RunKeys(run).history
        self._cursor = ""
        self._unled = False
        self._away: float | None = None

    def watch(self, run_dir: Path | None, wait: Callable[[float], None] = time.sleep) -> int:
        """Until the run ends. run_dir: the folder of a private run, which says how it ended once its server is gone."""
        while not self._unread():
            try:
                seen = self._look()
            except RedisError as error:
                ended = None if run_dir is None else summary_of(run_dir)
                if ended is not None:
                    return self._end(ended)
                self._missed(error)
            else:
                if seen.progress.get("state") in ENDED:
                    return self._end(self._summary(seen.progress, run_dir))
                self._live(seen)
            wait(LOOK_SECONDS)
        return EXIT_DONE

    def _look(self) -> SeenRun:
        """Progress now, with the generations that closed since the last look shown. Raises RedisError."""
        seen = self._server.find(self._run)
        if seen is None or not seen.progress:
            raise RedisError(f"run {self._run} is gone from Redis at {self._server.name}")
        if self._away is not None:
            self._away = None
            self._view.note("Redis answers again")
        self._news()
        return seen

    def _missed(self, error: RedisError) -> None:
        """The server did not answer: said once, and borne for a while."""
        if self._away is None:
            self._away = time.monotonic()
            self._view.note(f"{error}; looking again")
        if time.monotonic() - self._away > PATIENCE_SECONDS:
            raise error

    def _news(self) -> None:
        """Generations that have closed since the last look; at the first look those that a graph can use."""
        if not readable(self._server, self._history):
            return
        if not self._cursor:
            (found,) = self._server.ask([("xrevrange", self._history, "+", "-", RECALLED)])
            found = list(reversed(found or []))
            self._view.recall([record_of(fields) for _, fields in found])
        else:
            (found,) = self._server.ask([("xrange", self._history, f"({self._cursor}", "+", READ_AT_ONCE)])
            for _, fields in found or ():
                self._view.generation(record_of(fields))
        self._cursor = text(found[-1][0]) if found else self._cursor

    def _live(self, seen: SeenRun) -> None:
        progress, led = seen.progress, seen.leased
        done, _, total = progress.get("answered", "").partition("/")
        waiting = f"paused by {printable(progress['paused_by'], 100)}" if progress.get("paused_by") else ""
        if not led:
            waiting = "the run has no master"
        if led == self._unled:  # said once when it goes, once when it is back
            self._view.note(f"run {self._run} has a master again" if led else f"run {self._run} has no master: go on with it by {seen.resume}")
        self._unled = not led
        self._view.live({"workers": number(progress.get("workers", "")), "answered": number(done), "slots": number(total), "waiting": waiting or None})

    def _summary(self, progress: Mapping[str, str], run_dir: Path | None) -> Record:
        found = None if run_dir is None else summary_of(run_dir)
        if found is not None and found.get("state") == progress.get("state"):
            return found
        record: Record = {name: number(progress[name]) for name in FIGURES if name in progress}
        if progress.get("state") != FINISHED:
            record.pop("eval_mean", None)  # the last one under way is no final evaluation
        return {**record, "run": self._run, **{name: printable(progress[name]) for name in ("state", "digest", "why") if name in progress}}

    def _end(self, summary: Record) -> int:
        self._view.summary(summary)
        if summary.get("state") == FAILED:
            raise EnvironmentFailure(f"run {self._run} failed: {printable(summary.get('why') or 'es-status shows why')}")
        return EXIT_DONE


def record_of(fields: Mapping[bytes, bytes]) -> Record:
    """An entry of the history as a record: numbers where there are any, text else; what is too long stays out."""
    few = list(short_fields(fields or {}).items())[:MOST_FIELDS]
    return {printable(name, 100): number(value) if finite(value) is not None else printable(value) for name, value in few}


def summary_of(run_dir: Path) -> Record | None:
    """What the run's folder says of its end; None while it says nothing."""
    return read_object(run_dir / "summary.json") or None
