"""``--attach RUN``: the display of a run that another process drives, from what Redis says of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis

from es_queue.config import RunConfig
from es_queue.errors import EXIT_DONE, EXIT_INTERRUPTED, EnvironmentFailure, RedisError, UsageError
from es_queue.protocol.again import Again
from es_queue.protocol.channel import FAILED, FINISHED, STOPPED
from es_queue.protocol.connection import client_from_url, safe_name
from es_queue.protocol.desk import Desk
from es_queue.protocol.keys import RunKeys
from es_queue.settings import config_from_json
from master.console import SafeStream, View
from master.control import url_of
from master.options import Launch
from master.report import chosen_view
from master.wording import Record, Value, finite, printable

LOOK_SECONDS = 0.5
#: Past generations that a graph can use.
RECALLED = 500
READ_AT_ONCE = 100
LONGEST_VALUE = 1000
MOST_FIELDS = 200
MAX_SUMMARY = 2**20
ENDED = (FINISHED, STOPPED, FAILED)
FIELDS = (
    "state", "why", "generation", "answered", "workers", "paused_by", "episodes", "env_steps", "steps_per_second", "seconds", "digest",
    "eval_mean", "eval_std", "eval_min", "eval_episodes", "confirm_mean",
)  # fmt: skip


def attach(run: str, launch: Launch) -> int:
    """Show the run until it ends or Ctrl-C; returns the exit code. Raises UsageError for a run that nobody knows,
    RedisError where its server stays away, EnvironmentFailure when it failed."""
    url = url_of(run, launch)
    if url is None:
        raise UsageError(f"no private server runs for {run}: its master has ended; for a run on a shared Redis give --redis-url or set RQ_REDIS_URL")
    raw = Desk(client_from_url(url), run).config()
    if raw is None:
        raise UsageError(f"there is no run {run} in Redis at {safe_name(url)}; es-status lists the runs")
    config = config_from_json(raw)
    out = SafeStream(sys.stdout)
    view = chosen_view(out, run, config, quiet=launch.quiet, json_lines=launch.json)
    watcher = Watcher(client_from_url(url), run, config, view)
    try:
        view.started({"redis": safe_name(url), "seed": str(config.seed), "attached": "Ctrl-C ends this display and leaves the run alone"})
        return watcher.watch(launch.run_dir or Path("runs") / run if launch.redis_url is None else None)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        view.close()


class Watcher:
    """Feeds a view from a run's history and progress, of which nothing is believed."""

    def __init__(self, client: redis.Redis, run: str, config: RunConfig, view: View, again: Again | None = None) -> None:
        self._client: Any = client
        self._run, self._config, self._view = run, config, view
        self._keys = RunKeys(run)
        self._again = again or Again()
        self._cursor = ""
        self._unled = False

    def watch(self, run_dir: Path | None, wait: Callable[[float], None] = time.sleep) -> int:
        """Until the run ends. run_dir: the folder of a private run, which says how it ended once its server is gone."""
        self._recall()
        while True:
            try:
                progress, led = self._progress()
                self._news()
            except RedisError:
                ended = None if run_dir is None else summary_of(run_dir)
                if ended is None:
                    raise
                return self._end(ended)
            if progress.get("state") in ENDED:
                return self._end(self._summary(progress, run_dir))
            self._live(progress, led)
            wait(LOOK_SECONDS)

    def _recall(self) -> None:
        """What the run has done so far, oldest first."""
        entries = self._again(lambda: self._client.xrevrange(self._keys.history, count=RECALLED))  # twice: yes
        entries.reverse()
        self._cursor = entries[-1][0].decode() if entries else "0-0"
        self._view.recall([plain(fields) for _, fields in entries])

    def _news(self) -> None:
        """Generations that have closed since the last look."""
        entries = self._again(lambda: self._client.xrange(self._keys.history, min=f"({self._cursor}", count=READ_AT_ONCE))  # twice: yes
        for name, fields in entries:
            self._cursor = name.decode()
            self._view.generation(plain(fields))

    def _progress(self) -> tuple[dict[str, str], bool]:
        """(what people read of the run, whether it has a master)."""

        def read() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False).hmget(self._keys.progress, FIELDS)
            found: list[Any] = pipeline.exists(self._keys.master).execute()
            return found

        values, led = self._again(read)  # twice: yes
        told = {name: value[:LONGEST_VALUE].decode("utf-8", "replace") for name, value in zip(FIELDS, values, strict=True) if value is not None}
        if not told:
            raise RedisError(f"run {self._run} is gone from Redis")
        return told, bool(led)

    def _live(self, progress: Mapping[str, str], led: bool) -> None:
        done, _, total = progress.get("answered", "").partition("/")
        waiting = f"paused by {progress['paused_by']}" if progress.get("paused_by") else ""
        if not led:
            waiting = "the run has no master"
        if led == self._unled:  # said once when it goes, once when it is back
            self._view.note(f"run {self._run} has a master again" if led else f"run {self._run} has no master: go on with it by es-master --resume {self._run}")
        self._unled = not led
        self._view.live({"workers": number(progress.get("workers", "")), "answered": number(done), "slots": number(total), "waiting": waiting or None})

    def _summary(self, progress: Mapping[str, str], run_dir: Path | None) -> Record:
        found = None if run_dir is None else summary_of(run_dir)
        if found is not None and found.get("state") == progress.get("state"):
            return found
        record: Record = {name: number(progress[name]) for name in FIELDS if name in progress and name not in ("state", "why", "digest")}
        if progress.get("state") != FINISHED:
            record.pop("eval_mean", None)  # the last one under way is no final evaluation
        return {**record, "run": self._run, "state": progress.get("state"), "digest": progress.get("digest"), "why": progress.get("why")}

    def _end(self, summary: Record) -> int:
        self._view.summary(summary)
        if summary.get("state") == FAILED:
            raise EnvironmentFailure(f"run {self._run} failed: {printable(summary.get('why') or 'es-status shows why')}")
        return EXIT_DONE


def plain(fields: Mapping[bytes, bytes]) -> Record:
    """An entry of the history as a record: numbers where there are any, text else; what is too long stays out."""
    few = list(fields.items())[:MOST_FIELDS]
    texts = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in few if max(len(name), len(value)) <= LONGEST_VALUE}
    return {printable(name, 100): number(value) if finite(value) is not None else printable(value, LONGEST_VALUE) for name, value in texts.items()}


def number(text: str) -> Value:
    """The number that a text is, None where it is none."""
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    return finite(text)


def summary_of(run_dir: Path) -> Record | None:
    """What the run's folder says of its end; None while it says nothing."""
    path = run_dir / "summary.json"
    try:
        found = json.loads(path.read_text("utf-8")) if path.stat().st_size <= MAX_SUMMARY else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
