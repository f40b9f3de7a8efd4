"""What Redis says of runs, read without writing a byte, and without believing any of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import redis

from es_queue.commands import shown_command
from es_queue.errors import RedisError, UsageError
from es_queue.protocol import bounded
from es_queue.protocol.channel import NEEDS_A_MASTER
from es_queue.protocol.connection import (
    OUTAGES,
    ReplyTooLarge,
    client_from_url,
    limited,
    not_let_in,
    safe_name,
    trouble,
)
from es_queue.protocol.keys import RUN_ID, RUNS, RunKeys
from master.household.embedded import EmbeddedServer
from master.lease import host_of
from master.wording import finite

ORPHANED = "orphaned"

#: More of anything than this is not shown; nothing that es-queue writes comes near.
MOST_RUNS = 200
MOST_WORKERS = 1000
MOST_REASONS = 50
LONGEST_VALUE = 1000
LONGEST_NAME = 200
LONGEST_CONFIG = 2**20
PIECE_BYTES = 2**20
ASKED_AT_ONCE = 5000
#: Bytes of fields that one look reads: a thousand workers say 0.8 MB of themselves.
MOST_FIELD_BYTES = 2 * 2**20
#: Bytes in Redis of each key. A larger key is not one that es-queue wrote, and is not read.
MOST_KEY_BYTES = {
    "workers": 4 * 2**20,
    "refused": 2**16,
    "config": LONGEST_CONFIG,
    "errors": 16 * 2**20,
    "history": 64 * 2**20,
}
MOST_RUNS_BYTES = 4 * 2**20

PROGRESS = (
    "state", "stage", "env", "strategy", "publication", "generation", "answered", "episodes", "env_steps", "steps_per_second",
    "reward_mean", "reward_max", "return_mean", "return_std", "return_max", "cut_fraction", "eval_mean", "eval_best",
    "confirm_mean", "workers", "eta", "digest", "updated", "why", "answered_at", "seconds", "seconds_wait", "queue", "paused_by",
    "changed", "recovered", "reissued", "late", "duplicate", "lost_steps", "eval_steps", "step_limit", "recoveries",
    "eval_std", "eval_min", "eval_episodes", "audited", "audit_disputes", "quarantined",
)  # fmt: skip
ABOUT_WORKER = (
    "host", "pid", "rq_name", "backend", "numerics", "block", "steps", "steps_per_second", "late", "blocks", "refuses",
    "generation", "joined", "python", "beat_ttl", "noise", "threads", "versions", "box2d", "envpool", "packages", "hardened",
)  # fmt: skip

Texts = dict[str, str]
# What no later answer will mend: the whole look at the server fails.
FATAL = (*OUTAGES, redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)


@dataclass(frozen=True)
class SeenRun:
    """A run as its keys, or its folder, tell it. leased: some master holds it; holder: that master's host and pid.

    resume, purge: the commands that would go on with it and remove it; on_disk: nothing but its folder is left;
    configured: whether its configuration is still there.
    """

    run: str
    server: str
    resume: str
    started: float | None
    leased: bool
    progress: Texts
    purge: str = ""
    holder: str = ""
    on_disk: bool = False
    configured: bool = True

    @property
    def state(self) -> str:
        """The stored state; ``orphaned`` where it wants a master and has none."""
        stored = self.progress.get("state", "unknown")
        return ORPHANED if stored in NEEDS_A_MASTER and not self.leased else stored


@dataclass(frozen=True)
class Inside:
    """The rest of what is known of one run.

    workers: the living, by id; ever: how many ever claimed; errors: reports of workers; requests: those that the
    master has not taken yet; left: seconds until a worker's beat lapses; config: the settings, as far as they are
    a JSON object; unread: a sentence for each key that is too large to be read.
    """

    workers: dict[str, Texts]
    ever: int
    errors: int
    refused: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    left: dict[str, float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def silence(self, worker: str) -> float | None:
        """Seconds since a worker was last heard of; None where it does not say how long a beat lasts."""
        lasts = finite(self.workers.get(worker, {}).get("beat_ttl"))
        left = self.left.get(worker)
        return None if lasts is None or left is None else round(max(0.0, lasts - left), 3)


class Server:
    """One server, looked at by read-only commands. ``way`` are the flags by which es-master finds it again.

    folder: the run folder of a private server. Every method raises RedisError in one sentence, which never holds
    the password.
    """

    def __init__(self, url: str, way: str, folder: Path | None = None) -> None:
        self._client: Any = limited(client_from_url(url))
        self.name = safe_name(url)
        self.folder = folder
        self._way = way

    def runs(self) -> list[SeenRun]:
        """The newest runs, newest first."""
        size = bounded.key_sizes(self.ask, [RUNS]).get(RUNS)
        if size is not None and not size.fits(MOST_RUNS_BYTES):
            raise RedisError(
                f"the list of runs at {self.name} is too large: {too_large(RUNS, size, MOST_RUNS_BYTES)}; name one run, or remove {RUNS}"
            )
        (listed,) = self.ask([("zrevrange", RUNS, 0, MOST_RUNS - 1, True)])
        found = [(text(member), finite(score)) for member, score in listed or ()]
        return self._seen([(run, started) for run, started in found if RUN_ID.fullmatch(run)])

    def find(self, run: str) -> SeenRun | None:
        """One run, listed or not; None where the server knows nothing of it."""
        (started,) = self.ask([("zscore", RUNS, run)])
        (seen,) = self._seen([(run, finite(started))])
        return seen if seen.progress or started is not None else None

    def inside(self, run: str) -> Inside:
        """Workers, refusals, settings, and the numbers of errors and requests of a run."""
        own = RunKeys(run)
        ever, errors, reasons, requests = self.ask(
            [
                ("scard", own.workers),
                ("llen", own.errors),
                ("hlen", own.refused),
                ("llen", own.commands),
            ]
        )
        sizes = self._sizes(own)
        fitting = {what for what, size in sizes.items() if size.fits(MOST_KEY_BYTES[what])}
        unread = [
            too_large(what, size, MOST_KEY_BYTES[what])
            for what, size in sizes.items()
            if what not in fitting
        ]
        names = self._names(own.workers) if ever and "workers" in fitting else []
        hashes, left_out = self._hashes([own.worker(name) for name in names], ABOUT_WORKER)
        if left_out:
            unread.append(
                f"workers: {left_out:,} are not shown, because all of them say more than es-status reads ({MOST_FIELD_BYTES:,} bytes)"
            )
        living = {name: about for name, about in zip(names, hashes, strict=True) if about}
        beats = zip(living, self.ask(("pttl", own.worker(name)) for name in living), strict=True)
        left = {name: milliseconds / 1000 for name, milliseconds in beats if milliseconds is not None and milliseconds >= 0}
        refused = (
            self._refused(own.refused)
            if "refused" in fitting and 0 < (reasons or 0) <= MOST_REASONS
            else {}
        )
        config = json_object(self.string(own.config, LONGEST_CONFIG))
        return Inside(
            living, ever or 0, errors or 0, refused, requests or 0, left, config, tuple(unread)
        )

    def _sizes(self, own: RunKeys) -> dict[str, bounded.KeySize]:
        """The sizes of the run's keys that have a bound, by the names of MOST_KEY_BYTES."""
        names = {getattr(own, what): what for what in MOST_KEY_BYTES}
        return {names[key]: size for key, size in bounded.key_sizes(self.ask, list(names)).items()}

    def fits(self, key: str, most_bytes: int) -> bool:
        """Whether a key is there and no larger than that."""
        size = bounded.key_sizes(self.ask, [key]).get(key)
        return size is not None and size.fits(most_bytes)

    def string(self, key: str, longest: int) -> bytes | None:
        """A string's bytes; None where it is missing, of another type, or longer than ``longest``."""
        (length,) = self.ask([("strlen", key)])
        if not length or length > longest:
            return None
        pieces = range(0, min(length, longest), PIECE_BYTES)  # it may have grown meanwhile
        values = [
            self.ask([("getrange", key, start, min(start + PIECE_BYTES, longest) - 1)])[0]
            for start in pieces
        ]
        return b"".join(values) if all(isinstance(value, bytes) for value in values) else None

    def scan(self, pattern: str, steps: int, most: int) -> tuple[list[str], bool, int]:
        """Names of keys that match a pattern, in order; whether these are all; how many others are
        no text, or too long.

        Looks at most at 1000 keys a step.
        """
        cursor, found, odd = 0, set[str](), 0
        for _ in range(steps):
            answer = self.ask([("scan", cursor, pattern, 1000)])[0]
            if answer is None:
                return sorted(found)[:most], False, odd
            cursor = int(answer[0])
            sane = [name for name in map(key_name, answer[1]) if name]
            odd += len(answer[1]) - len(sane)
            found.update(sane)
            if cursor == 0 or len(found) + odd > most:
                break
        return sorted(found)[:most], cursor == 0 and len(found) <= most, odd

    def close(self) -> None:
        self._client.close()

    def _seen(self, runs: Sequence[tuple[str, float | None]]) -> list[SeenRun]:
        own = [RunKeys(run) for run, _ in runs]
        leases = self.ask(("exists", one.master) for one in own)
        configs = self.ask(("exists", one.config) for one in own)
        holders = self.ask(("getrange", one.master, 0, LONGEST_NAME - 1) for one in own)
        hashes, _ = self._hashes([one.progress for one in own], PROGRESS)
        command = shown_command("es-master")
        return [
            SeenRun(
                run, self.name, f"{command} --resume {run}{self._way}", started, bool(lease), progress,
                f"{command} --purge {run}{self._way}", host_of(text(holder or b"")), configured=bool(config),
            )
            for (run, started), lease, config, holder, progress in zip(runs, leases, configs, holders, hashes, strict=True)
        ]  # fmt: skip

    def _names(self, key: str) -> list[str]:
        """Members of a set, in order; not more than fit a screen, none that could not be a worker's id."""
        members = [text(member) for member in bounded.set_members(self.ask, key, MOST_WORKERS)]
        return sorted(name for name in set(members) if len(name) <= LONGEST_NAME)

    def _refused(self, key: str) -> dict[str, int]:
        (reasons,) = self.ask([("hkeys", key)])
        names = [text(one) for one in reasons or () if len(one) <= LONGEST_NAME]
        (counts,), _ = self._hashes([key], names)
        return {name: int(number) for name, count in counts.items() if (number := finite(count)) is not None}

    def _hashes(self, names: Sequence[str], fields: Sequence[str]) -> tuple[list[Texts], int]:
        """The short fields of each hash, and how many hashes were left out because those before
        them are so large."""
        found, left_out = bounded.hash_fields(
            self.ask, names, fields, LONGEST_VALUE, MOST_FIELD_BYTES
        )
        return [{name: text(value) for name, value in one.items()} for one in found], left_out

    def ask(self, questions: Iterable[tuple[Any, ...]]) -> list[Any]:
        """The answers to commands of redis-py, in order; None where a key is of another type than it should be."""
        waiting, answers = list(questions), []
        for start in range(0, len(waiting), ASKED_AT_ONCE):
            answers += self._answers(waiting[start : start + ASKED_AT_ONCE])
        return answers

    def _answers(self, questions: Sequence[tuple[Any, ...]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command, *arguments in questions:
            getattr(pipeline, command)(*arguments)
        try:
            answers = pipeline.execute(raise_on_error=False)
        except ReplyTooLarge as error:
            if len(questions) > 1:
                raise self._sentence(error) from None
            return [None]
        except (redis.exceptions.RedisError, OSError) as error:
            raise self._sentence(error) from None
        for one in answers:
            if isinstance(one, FATAL):
                raise self._sentence(one)
        return [None if isinstance(one, Exception) else one for one in answers]

    def _sentence(self, error: Exception) -> RedisError:
        reason = str(error).strip().split("\n")[0][:200] or type(error).__name__
        if isinstance(error, redis.exceptions.NoPermissionError):
            return RedisError(f"Redis at {self.name} lets this user read too little ({reason}); it needs +@read on es:*")
        if isinstance(error, redis.exceptions.AuthenticationError):
            return not_let_in(self.name, error)
        if found := trouble(self._client, error):
            return RedisError(f"Redis at {self.name} cannot be used: {found}")
        return RedisError(f"Redis at {self.name} cannot be read ({reason})")


def too_large(what: str, size: bounded.KeySize, most: int) -> str:
    """Why a key is not read."""
    return f"{what}: {size}, more than es-status reads ({most:,} bytes)"


def key_name(data: bytes) -> str:
    """A key's name; empty for one that is no text, or too long."""
    try:
        return data.decode("utf-8") if len(data) <= LONGEST_NAME else ""
    except UnicodeDecodeError:
        return ""


def text(data: object) -> str:
    """Bytes as text, whatever they are."""
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


def json_object(data: bytes | None) -> dict[str, Any]:
    """The JSON object that bytes hold; empty for anything else."""
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def named_server(url: str, given_by_flag: bool) -> Server:
    """The server of a URL. es-master needs the flag again, unless the environment names it or it holds a secret."""
    try:
        shown = safe_name(url)
    except ValueError:  # the server's own complaint about the URL is the better one
        shown = url
    secret = shown != url or "?" in url
    return Server(url, f" --redis-url {quote(shown)}" if given_by_flag and not secret else "")


def private_server(run_dir: Path) -> Server:
    """The private server of a run's folder. Raises RedisError where none runs."""
    if not run_dir.is_dir():
        raise UsageError(f"run-dir {run_dir} is no folder")
    server = EmbeddedServer(run_dir / "redis")
    url = server.url
    if not server.socket_path.is_socket():
        raise RedisError(f"no private server runs in {run_dir}: its master has ended, or the run used a Redis that was named to it (give --redis-url)")
    return Server(url, way_to(run_dir), run_dir)


def way_to(run_dir: Path) -> str:
    """The flag by which es-master finds a run's folder; none is needed for one of ./runs."""
    return "" if run_dir.parent == Path("runs") else f" --run-dir {quote(str(run_dir))}"
