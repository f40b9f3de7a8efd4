"""Reads runs from Redis: writes nothing, and trusts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

import redis

from es_queue.command_line import format_command
from es_queue.errors import RedisError, UsageError
from es_queue.protocol.connection import (
    OUTAGE_ERRORS,
    authentication_error,
    client_from_url,
    find_tls_problem,
    first_line,
    redacted_url,
)
from es_queue.protocol.keys import ACTIVE_STATES, RUN_ID, RUNS, RunKeys
from es_queue.run_folder import NamedRun, find_run
from es_queue.text import to_text
from master.display.format import finite_or_none
from master.run.lease import format_host
from master.services.private_server import PrivateServer
from master.status.values import parse_json_object

ORPHANED = "orphaned"

#: The fix for a server that does not respond.
START_SERVER = "start it, or correct RQ_REDIS_URL or --redis-url"
#: More of anything than this is not shown; nothing that es-queue writes comes near.
MOST_RUNS = 200
MOST_WORKERS = 1000
MOST_REASONS = 50
LONGEST_VALUE = 1000
LONGEST_NAME = 200
LONGEST_CONFIG = 2**20
MOST_COMMANDS_AT_ONCE = 5000

#: Fields of progress and of a worker: texts, which stay texts in JSON, and all with the numbers.
PROGRESS_TEXTS = (
    "state",
    "stage",
    "env",
    "strategy",
    "publication",
    "answered",
    "digest",
    "why",
    "queue",
    "paused_by",
    "changed",
)
PROGRESS_FIELDS = (
    *PROGRESS_TEXTS,
    "generation",
    "episodes",
    "env_steps",
    "steps_per_second",
    "reward_mean",
    "reward_max",
    "return_mean",
    "return_std",
    "return_max",
    "cut_fraction",
    "eval_mean",
    "eval_best",
    "confirm_mean",
    "workers",
    "eta",
    "updated",
    "answered_at",
    "training_slots",
    "starting",
    "busy",
    "scale",
    "seconds",
    "seconds_wait",
    "recovered",
    "reissued",
    "late",
    "duplicate",
    "lost_steps",
    "eval_steps",
    "step_limit",
    "recoveries",
    "eval_std",
    "eval_min",
    "eval_episodes",
    "audited",
)
WORKER_TEXTS = (
    "host",
    "rq_name",
    "backend",
    "numerics",
    "block",
    "refuses",
    "generation",
    "python",
    "noise",
    "versions",
    "box2d",
    "envpool",
    "packages",
)
WORKER_FIELDS = (
    *WORKER_TEXTS,
    "pid",
    "steps",
    "steps_per_second",
    "busy",
    "late",
    "blocks",
    "joined",
    "beat_ttl",
    "threads",
)

Texts = dict[str, str]
# What no later answer will mend: the whole look at the server fails.
FATAL_ERRORS = (
    *OUTAGE_ERRORS,
    redis.exceptions.AuthenticationError,
    redis.exceptions.NoPermissionError,
)


@dataclass(frozen=True)
class RunSummary:
    """A run as its keys or its folder describe it. is_leased: whether a master holds it; holder:
    that master's host and pid.

    resume, purge: the commands that continue and remove it; is_on_disk: only its folder is left
    is_configured: whether its configuration still exists
    """

    run: str
    server: str
    resume: str
    started: float | None
    is_leased: bool
    progress: Texts
    purge: str = ""
    holder: str = ""
    is_on_disk: bool = False
    is_configured: bool = True

    @property
    def state(self) -> str:
        """The stored state; ``orphaned`` if it needs a master and has none."""
        stored = self.progress.get("state", "unknown")
        return ORPHANED if stored in ACTIVE_STATES and not self.is_leased else stored


@dataclass(frozen=True)
class RunDetails:
    """Further information about one run.

    workers: the living, by id; ever_claimed: number of workers that ever claimed; errors: reports
    of workers; requests: those that the master has not taken yet; beat_seconds_left: seconds until
    a worker's beat lapses; config: the settings, if they are a JSON object
    """

    workers: dict[str, Texts]
    ever_claimed: int
    errors: int
    refused: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    beat_seconds_left: dict[str, float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def silent_seconds(self, worker: str) -> float | None:
        """Since a worker's last heartbeat; None if its interval is unknown."""
        lasts = finite_or_none(self.workers.get(worker, {}).get("beat_ttl"))
        left = self.beat_seconds_left.get(worker)
        return None if lasts is None or left is None else round(max(0.0, lasts - left), 3)


class RedisReader:
    """One server, read by read-only commands.

    url_flag: the flag by which es-master finds it again; folder: the run folder of a private
    server. Every method raises RedisError in one sentence, which never contains the password.
    """

    def __init__(self, url: str, url_flag: str, folder: Path | None = None) -> None:
        self.client: Any = client_from_url(url)
        self.url = url
        self.name = redacted_url(url)
        self.folder = folder
        self._url_flag = url_flag

    def list_runs(self) -> list[RunSummary]:
        """The newest runs, newest first."""
        (listed,) = self.ask([("zrevrange", RUNS, 0, MOST_RUNS - 1, True)])
        entries = [(to_text(member), finite_or_none(score)) for member, score in listed or ()]
        return self._summarize(
            [(run, started) for run, started in entries if RUN_ID.fullmatch(run)]
        )

    def find_run(self, run: str) -> RunSummary | None:
        """One run, listed or not; None if the server does not know it."""
        (started,) = self.ask([("zscore", RUNS, run)])
        (seen,) = self._summarize([(run, finite_or_none(started))])
        return seen if seen.progress or started is not None else None

    def read_details(self, run: str) -> RunDetails:
        run_keys = RunKeys(run)
        ever, errors, refused, requests = self.ask(
            [
                ("smembers", run_keys.workers),
                ("llen", run_keys.errors),
                ("hgetall", run_keys.refused),
                ("llen", run_keys.commands),
            ]
        )
        names = sorted(name for name in map(to_text, ever or ()) if len(name) <= LONGEST_NAME)[
            :MOST_WORKERS
        ]
        hashes = read_texts(self.ask, [run_keys.worker(name) for name in names], WORKER_FIELDS)
        workers = {name: about for name, about in zip(names, hashes, strict=True) if about}
        return RunDetails(
            workers,
            len(ever or ()),
            errors or 0,
            read_refusals(refused or {}),
            requests or 0,
            self.seconds_left({name: run_keys.worker(name) for name in workers}),
            parse_json_object(self.read_string(run_keys.config, LONGEST_CONFIG)),
        )

    def seconds_left(self, keys: Mapping[str, str]) -> dict[str, float]:
        """Seconds until each key expires, by name; without those that never do."""
        left = zip(keys, self.ask(("pttl", key) for key in keys.values()), strict=True)
        known = {name: answer for name, answer in left if answer is not None}
        return {name: answer / 1000 for name, answer in known.items() if answer >= 0}

    def read_string(self, key: str, longest: int) -> bytes | None:
        """A string's bytes; None if it is missing, of another type, or longer than ``longest``."""
        (value,) = self.ask([("getrange", key, 0, longest)])  # a byte more than there may be
        return value if isinstance(value, bytes) and 0 < len(value) <= longest else None

    def scan(self, pattern: str, steps: int, most: int) -> tuple[list[str], bool, int]:
        """Names of keys that match a pattern, in order; whether these are all; the number of names
        that are not text, or too long.

        It reads at most 1000 keys per step.
        """
        cursor, names, odd = 0, set[str](), 0
        for _ in range(steps):
            answer = self.ask([("scan", cursor, pattern, 1000)])[0]
            if answer is None:
                return sorted(names)[:most], False, odd
            cursor = int(answer[0])
            sane = [name for name in map(key_name, answer[1]) if name]
            odd += len(answer[1]) - len(sane)
            names.update(sane)
            if cursor == 0 or len(names) + odd > most:
                break
        return sorted(names)[:most], cursor == 0 and len(names) <= most, odd

    def close(self) -> None:
        self.client.close()

    def _summarize(self, runs: Sequence[tuple[str, float | None]]) -> list[RunSummary]:
        all_keys = [RunKeys(run) for run, _ in runs]
        leases = self.ask(("exists", run_keys.master) for run_keys in all_keys)
        configs = self.ask(("exists", run_keys.config) for run_keys in all_keys)
        holders = self.ask(
            ("getrange", run_keys.master, 0, LONGEST_NAME - 1) for run_keys in all_keys
        )
        progress_keys = [run_keys.progress for run_keys in all_keys]
        hashes = read_texts(self.ask, progress_keys, PROGRESS_FIELDS)
        command = format_command("es-master")
        named = [] if self.folder is None else find_run(self.folder).members
        words = [
            next((member.word for member in named if member.run == run), run) for run, _ in runs
        ]
        return [
            RunSummary(
                run,
                self.name,
                f"{command} --resume {word}{self._url_flag}",
                started,
                bool(lease),
                progress,
                f"{command} --purge {word}{self._url_flag}",
                format_host(to_text(holder or b"")),
                is_configured=bool(config),
            )
            for (run, started), word, lease, config, holder, progress in zip(
                runs, words, leases, configs, holders, hashes, strict=True
            )
        ]

    def ask(self, questions: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Replies to commands of redis-py, in order; None if a key has another type."""
        waiting, answers = list(questions), []
        for start in range(0, len(waiting), MOST_COMMANDS_AT_ONCE):
            answers += self._execute(waiting[start : start + MOST_COMMANDS_AT_ONCE])
        return answers

    def _execute(self, questions: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            answers = send_all(self.client, questions)
        except (redis.exceptions.RedisError, OSError) as error:
            raise self.to_redis_error(error) from None
        for answer in answers:
            if isinstance(answer, FATAL_ERRORS):
                raise self.to_redis_error(answer)
        return [None if isinstance(answer, Exception) else answer for answer in answers]

    def to_redis_error(self, error: Exception) -> RedisError:
        reason = first_line(error)
        if isinstance(error, redis.exceptions.NoPermissionError):
            return RedisError(
                f"Redis at {self.name} grants this user too few rights to read ({reason}); it "
                "needs +@read on es:*"
            )
        if isinstance(error, redis.exceptions.AuthenticationError):
            return authentication_error(self.name, error)
        if advice := find_tls_problem(self.client, error):
            return RedisError(f"Redis at {self.name} cannot be used: {advice}")
        return RedisError(f"Redis at {self.name} cannot be read ({reason}); {START_SERVER}")


def send_all(client: Any, questions: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The replies to commands of redis-py, errors among them."""
    pipeline = client.pipeline(transaction=False)
    for command, *arguments in questions:
        getattr(pipeline, command)(*arguments)
    return list(pipeline.execute(raise_on_error=False))


def read_texts(
    ask: Callable[[Iterable[tuple[Any, ...]]], list[Any]],
    names: Sequence[str],
    fields: Sequence[str],
) -> list[Texts]:
    """The short fields of each hash."""
    return [
        {
            field: to_text(value)
            for field, value in zip(fields, values or (), strict=False)
            if value is not None and len(value) <= LONGEST_VALUE
        }
        for values in ask(("hmget", name, fields) for name in names)
    ]


def read_refusals(counts: Mapping[bytes, bytes]) -> dict[str, int]:
    return {
        to_text(reason): int(number)
        for reason, count in islice(counts.items(), MOST_REASONS)
        if len(reason) <= LONGEST_NAME
        and len(count) <= LONGEST_VALUE
        and (number := finite_or_none(to_text(count))) is not None
    }


def key_name(data: bytes) -> str:
    """A key's name; empty for one that is not text, or too long."""
    try:
        return data.decode("utf-8") if len(data) <= LONGEST_NAME else ""
    except UnicodeDecodeError:
        return ""


def make_named_reader(url: str, given_by_flag: bool) -> RedisReader:
    """The server of a URL. es-master needs the flag again, unless the environment names the server
    or the URL has a secret.
    """
    try:
        label = redacted_url(url)
    except ValueError:  # the server's own complaint about the URL is the better one
        label = url
    secret = label != url or "?" in url
    return RedisReader(url, f" --redis-url {quote(label)}" if given_by_flag and not secret else "")


def make_private_reader(run_dir: Path) -> RedisReader:
    """The private server of a run's folder. Raises RedisError if none runs."""
    if not run_dir.is_dir():
        raise UsageError(f"run-dir {run_dir} is not a folder")
    folder = NamedRun("", run_dir).server_folder
    url = PrivateServer(folder).running_url
    if url is None:
        raise RedisError(
            f"no private server runs in {run_dir}: its master has ended, is still starting, "
            "or uses another Redis (give --redis-url)"
        )
    return RedisReader(url, "", folder.parent)
