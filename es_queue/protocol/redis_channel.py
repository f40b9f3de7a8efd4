"""The channel over Redis. A comment at each command states whether it may be sent twice (rule 14);
all commands of ``_send`` may.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from itertools import chain
from typing import Any

import redis

from es_queue.errors import DecodeError, FencedError
from es_queue.protocol import keys
from es_queue.protocol.channel import (
    NO_WORKERS,
    NONE_REFUSED,
    RUNNING,
    MasterChannel,
    PublishRequest,
    PublishResult,
    ReconcileReport,
    ReconcileRequest,
    RenewResult,
    StreamEntry,
    WorkerChannel,
    WorkerFlags,
    WorkerInfos,
)
from es_queue.protocol.codec import is_count
from es_queue.protocol.connection import is_outage, refused_error
from es_queue.protocol.messages import MAX_ANSWER, MAX_TASK, Block
from es_queue.protocol.retry import Retry
from es_queue.protocol.stream_entries import EntryReader
from es_queue.security import bounded_reads
from es_queue.security.bounded_reads import decode_hash
from es_queue.security.bounded_reads import decode_text as _text

__all__ = ["RedisMasterChannel", "RedisWorkerChannel"]

#: Parameters are fetched so that a slow reader costs the server 1 MiB, not the whole vector.
PIECE = 2**20
STAGED_SECONDS = 600
MAX_CONFIG = 2**20
MAX_CHECKPOINT = 2**31
MAX_ERRORS = 200
MAX_RUNS_CHECKED = 500
MAX_REQUESTS_READ = 100
MAX_CLAIMS_READ = 100


def _flatten(mapping: Mapping[str, Any]) -> list[Any]:
    return [part for pair in mapping.items() for part in pair]


def _with_count(items: Sequence[Any]) -> list[Any]:
    return [len(items), *items]


class _RedisSide:
    """Shared by both sides: a client, the run's keys, and retries."""

    def __init__(self, client: redis.Redis, run: str, retry: Retry | None) -> None:
        self.run = run
        self.keys = keys.RunKeys(run)
        self.retry = retry or Retry()
        self._client: Any = client

    def _send(self, command: str, *arguments: Any, **options: Any) -> Any:
        """Send a command that may be sent twice, until the server responds; returns the reply."""
        return self.retry(partial(getattr(self._client, command), *arguments, **options))

    @property
    def outages(self) -> int:
        return self.retry.outages

    def progress_field(self, name: str) -> str | None:
        return _text(
            self.retry(partial(bounded_reads.read_field, self._client, self.keys.progress, name))
        )  # twice: yes


class RedisMasterChannel(_RedisSide, MasterChannel):
    """The master's side over one client. All five scripts may be sent twice."""

    def __init__(self, client: redis.Redis, run: str, retry: Retry | None = None) -> None:
        super().__init__(client, run, retry)
        self._entries = EntryReader(client, self.retry)
        folder = files("es_queue.protocol") / "scripts"
        fence = (folder / "fence.lua").read_text()
        names = ("publish", "extend", "reconcile", "renew", "finish")
        self._scripts = {
            name: self._client.register_script(fence + (folder / f"{name}.lua").read_text())
            for name in names
        }

    def _named(self, *suffixes: str) -> list[str]:
        """The keys of a script: two that every script has, then those of the run's ``suffixes``."""
        return [getattr(self.keys, suffix) for suffix in ("epoch", "progress", *suffixes)]

    def _script(
        self,
        name: str,
        names: Sequence[str],
        arguments: Sequence[Any],
        inspect: Callable[[Any], object] = lambda _: None,
    ) -> Any:
        """Run one of the five scripts until the server responds; ``inspect`` gets each reply before
        it ends an outage.
        """

        def call() -> Any:
            try:
                reply = self._scripts[name](keys=names, args=arguments)
                inspect(reply)
                return reply
            except redis.exceptions.ResponseError as error:
                if str(error).startswith("FENCED"):
                    raise FencedError(
                        f"another master holds run {self.run} now; this one has stopped"
                    ) from None
                if is_outage(error):
                    raise
                wrong = self._wrong_keys() if "WRONGTYPE" in str(error) else ""
                raise refused_error(error, f"to {name}{wrong}") from None

        return self.retry(call)

    def _wrong_keys(self) -> str:
        """The run's keys that are not of their type, in words."""
        wrong = [
            f"{key} is a {kind.decode()}"
            for name, expected in keys.RUN_LIFETIME_KEYS.items()
            if (kind := self._client.type(key := getattr(self.keys, name)))
            not in (expected, b"none")
        ]
        return f" ({', '.join(wrong)})" if wrong else ""

    def ended_outages(self) -> list[float]:
        return self.retry.pop_ended_outages()

    def record_failure(self, error: Exception) -> None:
        if is_outage(error):
            self.retry.record_failure(error)

    def epoch(self) -> str | None:
        return _text(self._send("get", self.keys.epoch))

    def lease_holder(self) -> tuple[str | None, float]:
        def read() -> tuple[str | None, float]:
            pipeline = self._client.pipeline(transaction=True)
            holder, left = pipeline.get(self.keys.master).pttl(self.keys.master).execute()
            return _text(holder), max(0, left) / 1000

        return self.retry(read)  # twice: yes

    def stage(self, publication: str, parameters: bytes) -> None:
        self._send("set", self.keys.parameters(publication), parameters, ex=STAGED_SECONDS)

    def publish(self, token: str, request: PublishRequest) -> PublishResult:
        run_keys = self.keys
        names = [
            *self._named("task", "iteration", "todo", "config", "history", "checkpoint"),
            run_keys.attempts,
            run_keys.results(request.publication),
            run_keys.parameters(request.publication),
            keys.RUNS,
        ]
        generation = request.publication.partition(".")[0]
        arguments = [
            *(token, request.publication, generation, request.task, request.config),
            *(request.checkpoint or b"", run_keys.prefix, self.run, time.time(), keys.RUN_SECONDS),
            *_with_count(_flatten(request.progress)),
            *_with_count(_flatten(request.history or {})),
            *_with_count([str(block) for block in request.blocks]),
            *_with_count(run_keys.lasting_keys()),
            *_with_count(request.keep),
        ]
        previous, succeeded = self._script("publish", names, arguments)
        return PublishResult(_text(previous), bool(succeeded))

    def extend(
        self,
        token: str,
        publication: str,
        blocks: Iterable[Block],
        *,
        new: bool = False,
    ) -> bool:
        arguments = [token, publication, *_with_count([str(block) for block in blocks]), int(new)]
        return bool(self._script("extend", self._named("todo"), arguments))

    def reconcile(self, token: str, request: ReconcileRequest) -> ReconcileReport | None:
        arguments = [
            *(token, request.publication, self.keys.prefix, request.block_size),
            int(request.grace),
            *_with_count(list(chain.from_iterable(request.ranges))),
            *_with_count(list(chain.from_iterable(sorted(request.suspects)))),
            *_with_count(request.give_way),
            int(request.only is None),
            *_with_count(list(chain.from_iterable(request.only or ()))),
        ]
        reply = self._script("reconcile", self._named("todo", "workers", "attempts"), arguments)
        if reply is None:
            return None
        count, todo, claims, dead, unclaimed = reply
        held = {str(_text(worker)): Block.decode_all(entries) for worker, entries, _ in claims}
        late = {str(_text(worker)): count for worker, _, count in claims if count}
        ended = [(str(_text(worker)), Block.decode_all(entries)) for worker, entries in dead]
        left = tuple(
            (str(_text(kind)), start, stop)
            for kind, start, stop in zip(*[iter(unclaimed)] * 3, strict=True)
        )
        return ReconcileReport(count, todo, held, ended, late, left)

    def renew(
        self,
        token: str,
        holder: str,
        lease: float,
        progress: Mapping[str, str],
        refused: Mapping[str, int],
    ) -> RenewResult:
        arguments = [
            *(token, holder, int(lease * 1000), self.keys.prefix),
            *_with_count(_flatten(progress)),
            *_with_count(_flatten(refused)),
        ]
        names = self._named("task", "master", "refused")
        publication, is_complete, _ = self._script(
            "renew",
            names,
            arguments,
            lambda reply: self.retry.record_refusal(str(_text(reply[2]))[:200]),
        )
        return RenewResult(_text(publication), bool(is_complete))

    def finish(
        self,
        token: str,
        progress: Mapping[str, str],
        seconds: int,
        checkpoint: bytes | None,
        refused: Mapping[str, int] = NONE_REFUSED,
    ) -> None:
        names = self._named("todo", "workers", "master", "checkpoint", "attempts", "refused")
        arguments = [
            *(token, self.keys.prefix, seconds, checkpoint or b""),
            *_with_count(_flatten(progress)),
            *_with_count(_flatten(refused)),
            *_with_count(self.keys.lasting_keys()),
        ]
        self._script("finish", names, arguments)
        self._send("delete", self.keys.master)  # finish is fenced, the lease fences nobody

    def collect_each(
        self, cursors: Mapping[str, str], count: int, wait: float, largest: int = MAX_ANSWER
    ) -> dict[str, list[StreamEntry]]:
        names = {self.keys.results(publication).encode(): publication for publication in cursors}
        places = {self.keys.results(publication): cursor for publication, cursor in cursors.items()}
        batches = self._entries.read(places, count, wait, largest)
        return {names[name]: entries for name, entries in batches.items()}

    @property
    def is_cut(self) -> bool:
        return self._entries.is_cut

    def discard(self, publication: str, ids: Sequence[str]) -> None:
        if ids:
            self._send("xdel", self.keys.results(publication), *ids)

    def stored_run(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        def read() -> list[bytes]:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.getrange(self.keys.config, 0, MAX_CONFIG)  # a byte more than there may be
            pipeline.getrange(self.keys.task, 0, MAX_TASK)
            values: list[bytes] = pipeline.getrange(
                self.keys.checkpoint, 0, MAX_CHECKPOINT
            ).execute()
            return values

        config, task, checkpoint = (value or None for value in self.retry(read))  # twice: yes
        return config, task, checkpoint

    def workers(self, known: WorkerInfos = NO_WORKERS) -> dict[str, dict[str, str]]:
        def read() -> dict[str, dict[str, str]]:
            names = bounded_reads.read_worker_ids(self._client, self.keys.workers)
            unknown = [name for name in names if name not in known]
            places = [self.keys.worker(name) for name in unknown]
            hashes = bounded_reads.read_hashes(self._client, places, bounded_reads.WORKER_FIELDS)
            abouts = dict(zip(unknown, hashes, strict=True))
            present = bounded_reads.existing_names(
                self._client, {name: self.keys.worker(name) for name in names if name in known}
            )
            infos = {
                name: known[name] if name in present else decode_hash(abouts.get(name, {}))
                for name in names
            }
            return {name: about for name, about in infos.items() if about}

        return self.retry(read)  # twice: yes

    def deaths(self) -> dict[tuple[str, int], int]:
        deaths: dict[tuple[str, int], int] = {}
        for name, count in self.retry(
            lambda: bounded_reads.read_counts(self._client, self.keys.attempts)
        ).items():  # twice: yes
            kind, _, rest = name.decode("ascii", "replace").partition(" ")
            slot, _, what = rest.partition(" ")
            if what == "deaths" and is_count(slot) and is_count(count.decode("ascii", "replace")):
                deaths[(kind, int(slot))] = int(count)
        return deaths

    def errors(self) -> list[str]:
        entries = self.retry(
            lambda: bounded_reads.read_list(self._client, self.keys.errors, -20, -1)
        )  # twice: yes
        return [str(_text(entry)) for entry in entries or []]

    def forget_gone_runs(self) -> None:
        """Remove runs whose keys have expired from the list of runs, at most the oldest few
        hundred.
        """

        def prune() -> None:
            names = self._client.zrange(keys.RUNS, 0, MAX_RUNS_CHECKED - 1)
            there = self._client.pipeline(transaction=False)
            for name in names:
                there.exists(keys.config_of(name))
            gone = [name for name, exists in zip(names, there.execute(), strict=True) if not exists]
            if gone:
                self._client.zrem(keys.RUNS, *gone)

        self.retry(
            prune
        )  # twice: yes; a run that comes back meanwhile is listed again by its next publish

    def requests(self) -> list[bytes]:
        entries = self.retry(
            lambda: bounded_reads.read_list(
                self._client, self.keys.commands, 0, MAX_REQUESTS_READ - 1
            )
        )  # twice: yes
        if entries is None:  # not a person's: it would stay for ever
            self._send("unlink", self.keys.commands)
        return entries or []

    def forget_requests(self, requests: Sequence[bytes]) -> None:
        for entry in requests:
            self._send("lrem", self.keys.commands, 0, entry)

    def other_workers(self, run: str) -> int | None:
        other = keys.RunKeys(run)

        def read() -> list[Any]:
            replies: list[Any] = (
                self._client.pipeline(transaction=False)
                .hmget(other.progress, "state", "workers")
                .exists(other.master)
                .execute()
            )
            return replies

        (state, workers), has_master = self.retry(read)  # twice: yes
        if state != RUNNING.encode() or not has_master:
            return None
        workers = _text(workers) or ""
        return int(workers) if is_count(workers) else 0


class RedisWorkerChannel(_RedisSide, WorkerChannel):
    """A worker's side over one client; the heartbeat thread has a channel of its own."""

    def __init__(
        self,
        client: redis.Redis,
        run: str,
        worker: str,
        rq_name: str = "",
        retry: Retry | None = None,
    ) -> None:
        super().__init__(client, run, retry)
        self.worker = worker
        self._rq_name = rq_name
        self._claims_key = self.keys.claims(worker)
        self._held: list[bytes] | None = None  # as the last answer's reply has it, until used
        self._worker_key = self.keys.worker(worker)

    def config(self) -> bytes | None:
        return self._send("getrange", self.keys.config, 0, MAX_CONFIG) or None

    def task(self) -> bytes | None:
        return self._send("getrange", self.keys.task, 0, MAX_TASK) or None

    def parameters(self, publication: str, size: int) -> bytes | None:
        """Raises DecodeError for a reply that is no piece of them."""
        name, pieces = self.keys.parameters(publication), []
        for start in range(0, size, PIECE):
            count = min(size - start, PIECE)
            piece = self._send("getrange", name, start, start + count - 1)
            if not isinstance(piece, bytes) or len(piece) > count:
                raise DecodeError(
                    f"the reply to GETRANGE is not a string of at most {count:,} bytes"
                )
            if len(piece) < count:
                return None
            pieces.append(piece)
        return b"".join(pieces)

    def arrive(self, about: Mapping[str, str], ttl: float) -> None:
        self.retry(partial(self._write, about, ttl, register=True))  # twice: yes

    def _write(self, about: Mapping[str, str], ttl: float, *, register: bool) -> None:
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hset(self._worker_key, mapping=dict(about))
        pipeline.pexpire(self._worker_key, int(ttl * 1000))
        if register:
            # A worker that slept through the run's end must not leave a set that stays for ever.
            pipeline.sadd(self.keys.workers, self.worker)
            pipeline.expire(self.keys.workers, keys.RUN_SECONDS)
        pipeline.execute()

    def beat(self, about: Mapping[str, str], ttl: float) -> None:
        def live() -> list[Any]:
            replies: list[Any] = (
                self._client.pipeline(transaction=False)
                .pexpire(self._worker_key, int(ttl * 1000))
                .exists(self.keys.master)
                .execute()
            )
            return replies

        alive, has_master = self.retry(live)  # twice: yes
        if not alive:
            if self._send("exists", self.keys.config):  # a beat must not bring a purged run back
                self.arrive(about, ttl)
            return
        # The set may be gone, for others may let it expire; that of a run that has ended must not
        # come back.
        # Out of memory, say: what people read may be old, the beat above counted.
        with suppress(redis.exceptions.RedisError):
            self._write(about, ttl, register=bool(has_master))  # twice: yes, but not worth it

    def poll_flags(self, publication: str = "") -> WorkerFlags:
        def read() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False).hmget(
                self.keys.progress, "state", "give_way", "publication"
            )
            pipeline.exists(self.keys.master).exists(self.keys.parameters(publication))
            if self._rq_name:
                pipeline.hexists(keys.rq_worker(self._rq_name), "shutdown_requested_date")
                pipeline.exists(keys.RQ_SUSPENDED)
            replies: list[Any] = pipeline.execute()
            return replies

        replies = self.retry(read)  # twice: yes
        (state, give_way, newest), has_master, has_parameters, *orders = replies
        shutdown, suspended = orders or (False, False)
        asked_to_leave = self.worker.encode() in (give_way or b"").split(b" ")
        is_replaced = _text(newest) not in (None, publication)  # one that is lost opens again
        closed = bool(publication) and not has_parameters and is_replaced
        return WorkerFlags(
            _text(state),
            asked_to_leave,
            bool(shutdown),
            bool(suspended),
            bool(has_master),
            closed,
        )

    def held_blocks(self) -> list[Block]:
        held, self._held = self._held, None
        if held is None:
            held = self._send("lrange", self._claims_key, 0, MAX_CLAIMS_READ - 1)
        blocks = []
        for entry in held:
            try:
                blocks.append(Block.decode(entry))
            except DecodeError:
                self._send("lrem", self._claims_key, 0, entry)
        return blocks

    def _first_held(self) -> Block | None:
        return next(iter(self.held_blocks()), None)

    def claim(self, wait: float) -> Block | None:
        self._held = None
        try:
            # Twice: NO. A wait of 0 would be for ever. How long an entry is nobody can know before:
            # no more than the server lets any client send (proto-max-bulk-len in
            # docker/redis.conf).
            entry = self._client.blmove(
                self.keys.todo, self._claims_key, max(wait, 0.001), "LEFT", "RIGHT"
            )
        except redis.exceptions.RedisError as error:
            if not is_outage(error):
                raise refused_error(error) from None
            self.retry.record_failure(error)
            time.sleep(wait)
            return self._first_held()  # the move may have happened: the claims list knows
        if entry is None:
            return self._first_held()
        try:
            return Block.decode(entry)
        except DecodeError:
            self._send("lrem", self._claims_key, 0, entry)
            return None

    def answer(self, block: Block, payload: bytes) -> bool:
        def push() -> Any:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.xadd(
                self.keys.results(block.publication), {"answer": payload}, nomkstream=True
            )
            pipeline.lrem(self._claims_key, 0, str(block))
            return pipeline.lrange(self._claims_key, 0, MAX_CLAIMS_READ - 1).execute()

        self._held = None
        # Twice: yes, the first answer of a slot counts.
        entry, _, self._held = self.retry(push)
        return entry is not None

    def drop(self, block: Block) -> None:
        self._held = None
        self._send("lrem", self._claims_key, 0, str(block))

    def give_back(self, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        self._held = None
        pipeline = self._client.pipeline(transaction=True)
        for block in reversed(blocks):
            pipeline.lrem(self._claims_key, 0, str(block))
            pipeline.lpush(self.keys.todo, str(block))
        pipeline.expire(self.keys.todo, keys.RUN_SECONDS)  # the run may have finished a moment ago
        with suppress(redis.exceptions.RedisError):
            pipeline.execute()  # twice: NO; reconcile returns the blocks when the reply was lost

    def report(self, text: str) -> None:
        if not self._send("exists", self.keys.config):
            return
        pipeline = self._client.pipeline(transaction=True).rpush(self.keys.errors, text)
        pipeline.ltrim(self.keys.errors, -MAX_ERRORS, -1).expire(self.keys.errors, keys.RUN_SECONDS)
        with suppress(redis.exceptions.RedisError):
            pipeline.execute()  # twice: NO

    def depart(self) -> None:
        with suppress(redis.exceptions.RedisError):
            # twice: yes, and not worth waiting for: the beat lapses by itself
            self._client.delete(self._worker_key)
