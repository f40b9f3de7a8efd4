"""What Redis does for a run: open, issue, claim, answer, read, look; and its lease.

Workers append their results to strings that grow, as records of a fixed size
(``es_queue.slots.Shape``). The master reads on from where it stopped: nothing is parsed, and many
results are accepted at once. ``todo`` and claims are hints (rule 1): what a publication owes is
computed by the master, by a mask over its slot table.

A string has at most 256 MB; then the next part begins. A comment at each command states whether it
may be sent twice (rule 14); all of ``Store._command`` may.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import redis
from numpy.typing import NDArray

from es_queue.errors import DecodeError, FencedError, RedisError
from es_queue.protocol import keys
from es_queue.protocol.connection import (
    MAX_FIELD,
    Retry,
    Store,
    is_outage,
    none_on_wrong_type,
    refused_error,
    replies_of,
)
from es_queue.protocol.connection import decode_text as text_of
from es_queue.protocol.messages import WORKER_ID, Block

#: Bytes of one read of results, of a piece of parameters (so that a slow reader costs the server no
#: more), and of a part of a publication's results.
READ, PIECE, PART = 2**23, 2**20, 2**28
#: Most blocks that one script issues, and the longest todo that a look reads. If it is longer, no
#: worker waits for a block.
BLOCKS_PER_SCRIPT, MOST_LOOKED_AT = 8192, 65536
MOST_STAGING_ATTEMPTS, STAGED_SECONDS = 10, 600
#: A server keeps no larger value than 512 MiB (proto-max-bulk-len).
MAX_CHECKPOINT, MAX_ERRORS = 2**29, 200
MAX_RUNS_CHECKED, MAX_REQUESTS_READ = 500, 100
#: A worker holds one block or two. What is beyond these is not a run's.
MOST_HELD, MOST_WORKERS = 100, 20_000
LONGEST_HISTORY = 10_000

#: The fields of a worker's hash that a master reads; the others are for people.
WORKER_FIELDS = ("host", "pid", "name", "rq_name", "numerics", "refuses", "busy", "late")
Records = NDArray[Any]
WorkerInfos = Mapping[str, dict[str, str]]
NO_WORKERS: WorkerInfos = MappingProxyType({})
NONE_REFUSED: Mapping[str, int] = MappingProxyType({})


def script_text(name: str) -> str:
    """A script, after the limits that it shares with this module and, of a master's, the fence."""
    limits = {
        "RUNS": keys.RUNS,
        "RUN_SECONDS": keys.RUN_SECONDS,
        "PART": PART,
        "MOST_LOOKED_AT": MOST_LOOKED_AT,
        "MOST_HELD": MOST_HELD,
        "MOST_WORKERS": MOST_WORKERS,
        "LONGEST_HISTORY": LONGEST_HISTORY,
    }
    lines = [f"local {limit} = {value!r}\n" for limit, value in limits.items()]
    folder = files("es_queue.protocol") / "scripts"
    names = [name] if name == "answer" else ["fence", name]
    return "".join([*lines, *((folder / f"{each}.lua").read_text() for each in names)])


class Look(NamedTuple):
    """Who holds what.

    publication: the stored one, empty if Redis has lost it or a part of it
    todo: blocks that wait; None if there are too many to read
    claims: blocks by living worker; dead: blocks of each worker that died since the last look
    lost: publications whose results are fewer than were read, because Redis came back with older
    data
    """

    publication: str
    todo: tuple[Block, ...] | None
    claims: Mapping[str, tuple[Block, ...]]
    dead: Sequence[tuple[Block, ...]]
    lost: Sequence[str] = ()


@dataclass
class ReadPosition:
    """How far a publication's results were read: bytes of the strings of one part."""

    part: int = 0
    results: int = 0
    moments: int = 0


class WorkerFlags(NamedTuple):
    """What a worker polls.

    state: of the run; has_master: whether a master holds its lease; closed: whether the given
    publication was replaced; leave: why the worker must leave, empty if it may stay
    """

    state: str | None
    has_master: bool = True
    closed: bool = False
    leave: str = ""


class MasterStore(Store):
    """The master's side. All of its scripts are fenced and may be sent twice (rules 3, 14)."""

    def __init__(self, client: redis.Redis, run: str, retry: Retry | None = None) -> None:
        super().__init__(client, run, retry)
        self._positions: dict[str, ReadPosition] = {}
        self._scripts = {
            name: self._client.register_script(script_text(name))
            for name in ("open", "issue", "look", "renew", "finish")
        }
        self._answer_script = script_text("answer")

    def _script(
        self, name: str, *arguments: Any, inspect: Callable[[Any], object] = lambda _: None
    ) -> Any:
        """Run a script until the server responds. Before a list or mapping goes its length; a
        function is called for each attempt. ``inspect`` gets each reply before it ends an outage.
        """

        def call() -> Any:
            values = list[Any]()
            for each in arguments:
                if isinstance(each, Mapping):
                    values += [2 * len(each), *chain.from_iterable(each.items())]
                elif isinstance(each, list | tuple):
                    values += [len(each), *each]
                else:
                    values.append(each() if callable(each) else each)
            try:
                reply = self._scripts[name](keys=[self.keys.epoch], args=values)
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

    # --- publish

    def open(
        self,
        token: str,
        publication: str,
        parameters: bytes,
        task: bytes,
        *,
        config: str,
        progress: Mapping[str, str],
        history: Mapping[str, str] | None = None,
        checkpoint: bytes | None = None,
        keep: Sequence[str] = (),
    ) -> str | None:
        """Store the parameters under their own name, then open the publication and close all others
        but ``keep`` (rules 3, 4). Returns the publication that was stored before.

        Raises RedisError if the parameters disappear again and again.
        """
        names = {*keep, publication}
        self._positions = {name: at for name, at in self._positions.items() if name in names}
        header = token, publication, task, config, _storable(checkpoint), time.time()
        lists = progress, history or {}, self.keys.lasting_keys(), keep
        for _ in range(MOST_STAGING_ATTEMPTS):
            # Parameters first, under their own name, for a while only (rule 3).
            place = self.keys.parameters(publication)
            self._command("set", place, parameters, ex=STAGED_SECONDS)
            previous, is_open = self._script("open", *header, *lists)
            if is_open:
                return text_of(previous)
        raise RedisError(
            f"the parameters of publication {publication} disappeared from Redis "
            f"{MOST_STAGING_ATTEMPTS} times before they were published: find out what removes keys "
            "there"
        )

    def issue(
        self,
        token: str,
        publication: str,
        blocks: Iterable[Block],
        task: bytes = b"",
        *,
        front: bool = False,
    ) -> None:
        """Put blocks at the tail of todo, or in ``front``; task: the header of the table that has
        their rows, if it has grown. No effect if another publication is stored.
        """
        entries = [str(block) for block in blocks]
        pieces = [
            entries[start : start + BLOCKS_PER_SCRIPT]
            for start in range(0, len(entries) or 1, BLOCKS_PER_SCRIPT)
        ]
        for piece in reversed(pieces) if front else pieces:
            self._script("issue", token, publication, task, int(front), piece)

    # --- collect

    def read(
        self, publications: Mapping[str, tuple[np.dtype[Any], np.dtype[Any]]]
    ) -> Iterator[tuple[str, Records, Records]]:
        """(publication, results, moments) since the last read, in pieces of some megabytes;
        publications: types of both by name. The moments of a result come with it or before it.
        """
        unread = dict(publications)
        # A record of many observations can be larger than a piece.
        most = max([READ, *(each.itemsize for types in publications.values() for each in types)])
        while unread:
            replies = iter(self.retry(partial(self._read_pieces, unread, most)))
            for name, types in list(unread.items()):
                has_next, *data = next(replies), next(replies), next(replies)
                at = self._position(name)
                rows, episodes = map(partial(_records, most=most), data, types)
                if len(data[1]) == most:
                    rows = rows[:0]  # the rest of the moments first
                at.results += rows.nbytes
                at.moments += episodes.nbytes
                if len(rows) or len(episodes):
                    yield name, rows, episodes
                elif has_next:
                    self._positions[name] = ReadPosition(at.part + 1)
                if not (has_next or most in map(len, data)):
                    del unread[name]

    def _position(self, publication: str) -> ReadPosition:
        return self._positions.setdefault(publication, ReadPosition())

    def _read_pieces(self, publications: Iterable[str], most: int) -> list[Any]:
        """For each publication: whether there is a next part; results, then moments, so that no
        result comes without its moments. most: bytes of each
        """
        pipeline = self._client.pipeline(transaction=False)
        for name in publications:
            at = self._position(name)
            # Whether the part is full is asked first: what was appended before is then read.
            pipeline.exists(self.keys.results(name, at.part + 1))
            results = self.keys.results(name, at.part)
            pipeline.getrange(results, at.results, at.results + most - 1)
            moments = self.keys.moments(name, at.part)
            pipeline.getrange(moments, at.moments, at.moments + most - 1)
        replies: list[Any] = pipeline.execute()
        return replies

    def read_again(self, publications: Iterable[str]) -> None:
        """Read these from their beginning (rule 9)."""
        for name in publications:
            self._positions.pop(name, None)

    def wait(self, seconds: float) -> None:
        """Until a worker has answered, at most so long."""
        # Twice: yes. A bell that was lost with its reply is heard at the next look.
        self._command("blpop", [self.keys.bell], timeout=max(0.001, seconds))

    def look(
        self,
        token: str,
        holder: str,
        lease: float,
        progress: Mapping[str, str],
        refused: Mapping[str, int] = NONE_REFUSED,
        *,
        leaving: Sequence[str] = (),
        grace: bool = False,
        clear: bool = False,
    ) -> Look:
        """Keep the lease, show progress, and see which worker holds which block (rules 8, 10).

        leaving: workers that should leave; grace: nobody counts as dead; clear: empty todo
        """
        watched = {name: self.keys.results(name, at.part) for name, at in self._positions.items()}
        outages = self.retry.outages
        # A worker's user may run this script, but not load it.
        self._command("script_load", self._answer_script)
        stored, whole, _, todo, claims, dead, sizes = self._script(
            "look",
            *(token, holder, int(lease * 1000)),
            # Heartbeats were interrupted, too, if Redis was away since this look began (rule 7).
            lambda: int(grace or self.retry.outages != outages),
            int(clear),
            *(progress, refused, leaving, list(watched.values())),
            inspect=lambda reply: self.retry.record_refusal(str(text_of(reply[2]))[:200]),
        )
        lost = [
            name
            for name, size in zip(watched, sizes, strict=False)
            if size < self._position(name).results
        ]
        return Look(
            (text_of(stored) or "") if whole else "",
            None if isinstance(todo, int) else Block.decode_all(todo),
            {str(text_of(worker)): Block.decode_all(held) for worker, held in claims},
            [Block.decode_all(held) for _, held in dead],
            lost,
        )

    # --- the lease

    def epoch(self) -> str | None:
        """The stored fencing token."""
        return text_of(self._command("get", self.keys.epoch))

    def lease_holder(self) -> tuple[str | None, float]:
        """(the lease's holder, seconds until it expires)."""

        def read() -> tuple[str | None, float]:
            pipeline = self._client.pipeline(transaction=True)
            holder, left = pipeline.get(self.keys.master).pttl(self.keys.master).execute()
            return text_of(holder), max(0, left) / 1000

        return self.retry(read)

    def renew(self, token: str, holder: str, lease: float) -> None:
        """Renew the lease. A higher token takes over the run (rule 11)."""
        self._script("renew", token, holder, int(lease * 1000))

    def finish(
        self,
        token: str,
        progress: Mapping[str, str],
        seconds: int,
        checkpoint: bytes | None,
        refused: Mapping[str, int] = NONE_REFUSED,
    ) -> None:
        """Close the open publications, write the last state and the counts of refused results, let
        all keys expire after ``seconds``.
        """
        lists = progress, refused, self.keys.lasting_keys()
        self._script("finish", token, seconds, _storable(checkpoint), *lists)

    def checkpoint(self) -> bytes | None:
        """The newest state, for a resume (rule 11)."""
        return self._read(self.keys.checkpoint, MAX_CHECKPOINT)

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

        self.retry(prune)  # a run that comes back meanwhile is listed again by its next publish

    # --- workers and people

    def workers(self, known: WorkerInfos = NO_WORKERS) -> dict[str, dict[str, str]]:
        """Information from living workers, by worker id; it is not read again for those in
        ``known``.
        """

        def read() -> tuple[list[str], list[Any]]:
            members = none_on_wrong_type(lambda: self._client.smembers(self.keys.workers)) or ()
            names = sorted(name.decode("ascii", "replace") for name in members)
            names = [name for name in names if WORKER_ID.fullmatch(name)]
            pipeline = self._client.pipeline(transaction=False)
            for name in names:
                if name in known:
                    pipeline.exists(self.keys.worker(name))
                else:
                    pipeline.hmget(self.keys.worker(name), WORKER_FIELDS)
            return names, replies_of(pipeline)

        infos = {}
        for name, reply in zip(*self.retry(read), strict=True):
            if name in known:
                about = known[name] if reply else {}
            else:
                texts = zip(WORKER_FIELDS, map(text_of, reply or ()), strict=False)
                about = {
                    field: text
                    for field, text in texts
                    if text is not None and len(text) <= MAX_FIELD
                }
            if about:
                infos[name] = about
        return infos

    def errors(self) -> list[str]:
        """The newest reports of workers."""
        return [str(text_of(entry)) for entry in self._list(self.keys.errors, -20, -1) or []]

    def requests(self) -> list[bytes]:
        """Requests from other terminals, oldest first, unchecked; a bounded number."""
        entries = self._list(self.keys.commands, 0, MAX_REQUESTS_READ - 1)
        if entries is None:  # a key of another type, which would never be emptied
            self._command("unlink", self.keys.commands)
        return entries or []

    def _list(self, key: str, start: int, stop: int) -> list[bytes] | None:
        """None for a key of another type."""
        read = partial(none_on_wrong_type, partial(self._client.lrange, key, start, stop))
        entries: list[bytes] | None = self.retry(read)
        return entries

    def forget_requests(self, requests: Sequence[bytes]) -> None:
        """Remove requests that were answered."""
        for entry in requests:
            self._command("lrem", self.keys.commands, 0, entry)


class WorkerStore(Store):
    """A worker's side, under its own id, new each time (rules 5 to 7, 13). The heartbeat thread has
    a store of its own.
    """

    def __init__(
        self,
        client: redis.Redis,
        run: str,
        worker: str,
        rq_name: str = "",
        retry: Retry | None = None,
        queues_before: Sequence[str] = (),
    ) -> None:
        """``queues_before``: RQ queues whose jobs this worker must run first."""
        super().__init__(client, run, retry)
        self.worker = worker
        self._rq_name, self._queues_before = rq_name, queues_before
        self._claims_key, self._worker_key = self.keys.claims(worker), self.keys.worker(worker)
        self._held: list[bytes] | None = None  # as the last answer's reply has it, until used
        self._answer_script = self._client.register_script(script_text("answer"))

    def parameters(self, publication: str, size: int) -> bytes | None:
        """Raises DecodeError for a reply that is no piece of them."""
        name, pieces = self.keys.parameters(publication), []
        for start in range(0, size, PIECE):
            count = min(size - start, PIECE)
            piece = self._command("getrange", name, start, start + count - 1)
            if len(_piece(piece, count)) < count:
                return None
            pieces.append(piece)
        return b"".join(pieces)

    # --- its life

    def arrive(self, about: Mapping[str, str], ttl: float) -> None:
        """The first beat, before the first claim (rule 7)."""
        self.retry(partial(self._write, about, ttl, register=True))

    def _write(self, about: Mapping[str, str], ttl: float, *, register: bool) -> None:
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hset(self._worker_key, mapping=dict(about))
        pipeline.pexpire(self._worker_key, int(ttl * 1000))
        if register:
            # A worker that was frozen while the run ended must not leave a set that never expires.
            pipeline.sadd(self.keys.workers, self.worker)
            pipeline.expire(self.keys.workers, keys.RUN_SECONDS)
        pipeline.execute()

    def beat(self, about: Mapping[str, str], ttl: float) -> None:
        """Heartbeat. Works when the server is out of memory, unless the key is gone."""

        def live() -> Any:
            pipeline = self._client.pipeline(transaction=False)
            pipeline.pexpire(self._worker_key, int(ttl * 1000)).exists(self.keys.master)
            return pipeline.execute()

        alive, has_master = self.retry(live)
        if not alive:
            if self._command("exists", self.keys.config):  # no beat brings a purged run back
                self.arrive(about, ttl)
            return
        # The set may have expired. It is made again only while there is a master: that of an ended
        # run must not come back. If this fails (the server is out of memory), only what people read
        # is old; the beat above has counted.
        with suppress(redis.exceptions.RedisError):
            self._write(about, ttl, register=bool(has_master))  # not worth sending again

    def poll_flags(self, publication: str = "") -> WorkerFlags:
        """The leave flags, and whether ``publication`` has closed, in one round trip."""

        def read() -> Any:
            pipeline = self._client.pipeline(transaction=False)
            pipeline.hmget(self.keys.progress, "state", "give_way", "publication")
            pipeline.exists(self.keys.master).exists(self.keys.parameters(publication))
            if self._rq_name:
                pipeline.hexists(keys.rq_worker(self._rq_name), "shutdown_requested_date")
                pipeline.exists(keys.RQ_SUSPENDED)
                for queue in self._queues_before:
                    pipeline.llen(keys.rq_queue(queue))
            return pipeline.execute()

        (state, give_way, newest), has_master, has_parameters, *orders = self.retry(read)
        shutdown, suspended, *jobs = orders or (False, False)
        reasons = {
            "its RQ worker is stopping": shutdown,
            "RQ is suspended": suspended,
            "jobs wait on a queue that its RQ worker serves first": any(jobs),
            keys.GIVE_WAY: self.worker.encode() in (give_way or b"").split(b" "),
        }
        is_replaced = text_of(newest) not in (None, publication)  # if lost, it opens again
        return WorkerFlags(
            text_of(state),
            bool(has_master),
            closed=bool(publication) and not has_parameters and is_replaced,
            leave=next((reason for reason, holds in reasons.items() if holds), ""),
        )

    def report(self, reason: str, **more: object) -> None:
        """Add to the run's errors; nothing is written for a run that is gone."""
        if not self._command("exists", self.keys.config):
            return
        text = report_text(self.worker, reason, more)
        pipeline = self._client.pipeline(transaction=True).rpush(self.keys.errors, text)
        pipeline.ltrim(self.keys.errors, -MAX_ERRORS, -1).expire(self.keys.errors, keys.RUN_SECONDS)
        with suppress(redis.exceptions.RedisError):
            pipeline.execute()  # never sent again: the report would be there twice

    def depart(self) -> None:
        """Remove the worker's heartbeat."""
        with suppress(redis.exceptions.RedisError):
            # not worth waiting for: the beat lapses by itself
            self._client.delete(self._worker_key)

    # --- its blocks

    def held_blocks(self) -> list[Block]:
        """The worker's claims (rule 5); entries that are not blocks are dropped."""
        held, self._held = self._held, None
        if held is None:
            held = self._command("lrange", self._claims_key, 0, MOST_HELD - 1)
        return [block for block in map(self._decode, held) if block]

    def _decode(self, entry: bytes) -> Block | None:
        try:
            return Block.decode(entry)
        except DecodeError:
            self._command("lrem", self._claims_key, 0, entry)
            return None

    def claim(self, wait: float) -> Block | None:
        """Move a block from todo to the worker's claims, waiting up to ``wait`` seconds. Never sent
        twice (rule 5).
        """
        self._held = None
        try:
            # Twice: NO. A wait of 0 has no end. The length of an entry is not known before:
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
            entry = None  # the move may have happened: then the block is in the claims
        return next(iter(self.held_blocks()), None) if entry is None else self._decode(entry)

    def answer(self, block: Block, results: bytes, moments: bytes) -> bool:
        """Append the block's results and drop its claim, at once (rule 6). False if the publication
        has closed.
        """
        self._held = None
        arguments: list[str | bytes] = [str(block), results, moments]
        # Twice: yes, the first result of a slot counts.
        is_open, self._held = self.retry(lambda: self._append(arguments))
        return bool(is_open)

    def _append(self, arguments: Sequence[str | bytes]) -> Any:
        try:
            return self._answer_script(keys=[self._claims_key], args=arguments)
        except redis.exceptions.NoPermissionError as error:
            # The server has lost its scripts, and a worker's user may load none: the master does,
            # at its next look.
            if "script" not in str(error):
                raise
            raise redis.exceptions.BusyLoadingError("a script is not loaded yet") from None

    def drop(self, block: Block) -> None:
        """Forget a claim whose publication has closed."""
        self._held = None
        self._command("lrem", self._claims_key, 0, str(block))

    def release(self, blocks: Sequence[Block]) -> None:
        """Return unfinished blocks to the head of todo, atomically (rule 13)."""
        if not blocks:
            return
        self._held = None
        pipeline = self._client.pipeline(transaction=True)
        for block in reversed(blocks):
            pipeline.lrem(self._claims_key, 0, str(block))
            pipeline.lpush(self.keys.todo, str(block))
        pipeline.expire(self.keys.todo, keys.RUN_SECONDS)  # the run may have finished a moment ago
        with suppress(redis.exceptions.RedisError):
            pipeline.execute()  # never sent again; the master finds lost blocks


def report_text(worker: str, reason: str, more: Mapping[str, object]) -> str:
    return json.dumps({"time": round(time.time(), 3), "worker": worker, "reason": reason, **more})


def _piece(reply: Any, most: int) -> bytes:
    """A reply of at most so many bytes. Raises DecodeError for any other."""
    if not isinstance(reply, bytes) or len(reply) > most:
        raise DecodeError(f"the reply to GETRANGE is not a string of at most {most:,} bytes")
    return reply


def _storable(checkpoint: bytes | None) -> bytes:
    """Nothing for a checkpoint that is too large for Redis: the run's folder has it."""
    return checkpoint if checkpoint and len(checkpoint) <= MAX_CHECKPOINT else b""


def _records(reply: Any, dtype: np.dtype[Any], most: int) -> Records:
    """The whole records in a piece of a string; the rest is read again. Raises DecodeError."""
    data = _piece(reply, most)
    return np.frombuffer(data, dtype, len(data) // dtype.itemsize)
