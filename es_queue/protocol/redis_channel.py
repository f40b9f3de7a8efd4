"""The channel over Redis. Beside each command stands whether it may be sent twice (rule 14)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

import redis

from es_queue.errors import DecodeError, FencedError
from es_queue.protocol import bounded, keys
from es_queue.protocol.again import Again
from es_queue.protocol.bounded import text as _text
from es_queue.protocol.bounded import texts
from es_queue.protocol.channel import (
    NOBODY,
    RUNNING,
    Abouts,
    Entry,
    MasterChannel,
    Opened,
    Orders,
    Owed,
    Publish,
    Reconciled,
    Stored,
    WorkerChannel,
)
from es_queue.protocol.codec import is_count
from es_queue.protocol.connection import is_outage, refusal
from es_queue.protocol.entries import EntryReader
from es_queue.protocol.messages import MAX_ANSWER, MAX_TASK, Block

__all__ = ["RedisMasterChannel", "RedisWorkerChannel"]

PIECE = 2**20  # parameters are fetched so that a slow reader costs the server 1 MiB, not the whole vector
STAGED_SECONDS = 600
MAX_CONFIG = 2**20
MAX_CHECKPOINT = 2**31
ERRORS_KEPT = 200
RUNS_LOOKED_AT = 500
REQUESTS_READ = 100
CLAIMS_READ = 100


def _flat(mapping: Mapping[str, Any]) -> list[Any]:
    return [part for pair in mapping.items() for part in pair]


def _counted(items: Sequence[Any]) -> list[Any]:
    return [len(items), *items]


class RedisMasterChannel(MasterChannel):
    """The master's side over one client. All five scripts may be sent twice."""

    def __init__(self, client: redis.Redis, run: str, again: Again | None = None) -> None:
        self.run = run
        self.keys = keys.RunKeys(run)
        self.again = again or Again()
        self._client: Any = client
        self._entries = EntryReader(client, self.again)
        folder = files("es_queue.protocol") / "scripts"
        fence = (folder / "fence.lua").read_text()
        names = ("publish", "extend", "reconcile", "renew", "finish")
        self._scripts = {name: self._client.register_script(fence + (folder / f"{name}.lua").read_text()) for name in names}

    def _script(self, name: str, names: Sequence[str], arguments: Sequence[Any], look: Callable[[Any], object] = lambda _: None) -> Any:
        """Run one of the five until the server has answered; ``look`` sees each answer before it ends an outage."""

        def call() -> Any:
            try:
                found = self._scripts[name](keys=names, args=arguments)
                look(found)
                return found
            except redis.exceptions.ResponseError as error:
                if str(error).startswith("FENCED"):
                    raise FencedError(f"another master holds run {self.run} now; this one has stopped") from None
                if is_outage(error):
                    raise
                raise refusal(error, f"to {name}") from None

        return self.again(call)

    @property
    def outages(self) -> int:
        return self.again.outages

    def ended_outages(self) -> list[float]:
        return self.again.ended()

    def missed(self, error: Exception) -> None:
        if is_outage(error):
            self.again.failed(error)

    def epoch(self) -> str | None:
        return _text(self.again(lambda: self._client.get(self.keys.epoch)))  # twice: yes

    def lease_holder(self) -> tuple[str | None, float]:
        def read() -> tuple[str | None, float]:
            holder, left = self._client.pipeline(transaction=True).get(self.keys.master).pttl(self.keys.master).execute()
            return _text(holder), max(0, left) / 1000

        return self.again(read)  # twice: yes

    def shown(self, name: str) -> str | None:
        return _text(self.again(partial(bounded.field, self._client, self.keys.progress, name)))  # twice: yes

    def stage(self, publication: str, parameters: bytes) -> None:
        self.again(lambda: self._client.set(self.keys.parameters(publication), parameters, ex=STAGED_SECONDS))  # twice: yes

    def publish(self, token: str, what: Publish) -> Opened:
        own = self.keys
        names = [own.epoch, own.progress, own.task, own.iteration, own.todo, own.config, own.history, own.checkpoint, own.attempts]
        names += [own.results(what.publication), own.parameters(what.publication), keys.RUNS]
        generation = what.publication.partition(".")[0]
        arguments: list[Any] = [token, what.publication, generation, what.task, what.config]
        arguments += [what.checkpoint or b"", own.prefix, self.run]
        arguments += [time.time(), keys.RUN_SECONDS, *_counted(_flat(what.progress)), *_counted(_flat(what.history or {}))]
        arguments += [*_counted([str(block) for block in what.blocks]), *_counted(own.lasting()), *_counted(what.keep)]
        before, done = self._script("publish", names, arguments)
        return Opened(_text(before), bool(done))

    def extend(self, token: str, publication: str, blocks: Iterable[Block], *, new: bool = False, to: str = "") -> bool:
        arguments = [token, publication, *_counted([str(block) for block in blocks]), int(new)]
        place = [self.keys.claims(to), self.keys.worker(to)] if to else [self.keys.todo]
        return bool(self._script("extend", [self.keys.epoch, self.keys.progress, *place], arguments))

    def reconcile(self, token: str, owed: Owed) -> Reconciled | None:
        own = self.keys
        ranges = [part for one in owed.ranges for part in one]
        suspects = [part for one in sorted(owed.suspect) for part in one]
        arguments = [token, owed.publication, own.prefix, owed.block, int(owed.grace)]
        arguments += [*_counted(ranges), *_counted(suspects), *_counted(list(owed.give_way)), *_counted(list(owed.dismissed))]
        arguments += [int(owed.only is None), *_counted([part for one in owed.only or () for part in one])]
        found = self._script("reconcile", [own.epoch, own.progress, own.todo, own.workers, own.attempts], arguments)
        if found is None:
            return None
        count, todo, claims, dead, nobody = found
        held = {str(_text(worker)): Block.decode_all(entries) for worker, entries, _ in claims}
        late = {str(_text(worker)): count for worker, _, count in claims if count}
        ended = [(str(_text(worker)), Block.decode_all(entries)) for worker, entries in dead]
        left = tuple((str(_text(kind)), start, stop) for kind, start, stop in zip(*[iter(nobody)] * 3, strict=True))
        return Reconciled(count, todo, held, ended, late, left)

    def renew(self, token: str, holder: str, lease: float, progress: Mapping[str, str], refused: Mapping[str, int]) -> Stored:
        own = self.keys
        arguments = [token, holder, int(lease * 1000), own.prefix, *_counted(_flat(progress)), *_counted(_flat(refused))]
        names = [own.epoch, own.progress, own.task, own.master, own.refused]
        publication, whole, _ = self._script("renew", names, arguments, lambda found: self.again.refused(str(_text(found[2]))[:200]))
        return Stored(_text(publication), bool(whole))

    def finish(self, token: str, progress: Mapping[str, str], seconds: int, checkpoint: bytes | None) -> None:
        own = self.keys
        names = [own.epoch, own.progress, own.todo, own.workers, own.master, own.checkpoint, own.attempts]
        arguments = [token, own.prefix, seconds, checkpoint or b"", *_counted(_flat(progress)), *_counted(own.lasting())]
        self._script("finish", names, arguments)
        self.again(lambda: self._client.delete(own.master))  # twice: yes; finish is fenced, the lease fences nobody

    def collect_each(
        self, cursors: Mapping[str, str], count: int, wait: float, largest: int = MAX_ANSWER
    ) -> dict[str, list[Entry]]:
        names = {self.keys.results(one).encode(): one for one in cursors}
        places = {self.keys.results(one): cursor for one, cursor in cursors.items()}
        found = self._entries.read(places, count, wait, largest)
        return {names[name]: entries for name, entries in found.items()}

    @property
    def is_cut(self) -> bool:
        return self._entries.is_cut

    def discard(self, publication: str, ids: Sequence[str]) -> None:
        if ids:
            self.again(lambda: self._client.xdel(self.keys.results(publication), *ids))  # twice: yes

    def stored(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        def read() -> list[bytes]:
            pipeline = self._client.pipeline(transaction=True).getrange(self.keys.config, 0, MAX_CONFIG)  # a byte more than there may be
            found: list[bytes] = pipeline.getrange(self.keys.task, 0, MAX_TASK).getrange(self.keys.checkpoint, 0, MAX_CHECKPOINT).execute()
            return found

        config, task, checkpoint = (one or None for one in self.again(read))  # twice: yes
        return config, task, checkpoint

    def workers(self, known: Abouts = NOBODY) -> dict[str, dict[str, str]]:
        def read() -> dict[str, dict[str, str]]:
            names = bounded.workers(self._client, self.keys.workers)
            strange = [name for name in names if name not in known]
            abouts = dict(zip(strange, bounded.hashes(self._client, [self.keys.worker(name) for name in strange], bounded.WORKER_FIELDS), strict=True))
            there = bounded.present(self._client, {name: self.keys.worker(name) for name in names if name in known})
            found = {name: known[name] if name in there else texts(abouts.get(name, {})) for name in names}
            return {name: about for name, about in found.items() if about}

        return self.again(read)  # twice: yes

    def deaths(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for name, count in self.again(lambda: bounded.counts(self._client, self.keys.attempts)).items():  # twice: yes
            kind, _, rest = name.decode("ascii", "replace").partition(" ")
            slot, _, what = rest.partition(" ")
            if what == "deaths" and is_count(slot) and is_count(count.decode("ascii", "replace")):
                found[(kind, int(slot))] = int(count)
        return found

    def errors(self) -> list[str]:
        found = self.again(lambda: bounded.elements(self._client, self.keys.errors, -20, -1))  # twice: yes
        return [str(_text(one)) for one in found or []]

    def forget_gone_runs(self) -> None:
        """Take runs whose keys have expired out of the list of runs, the oldest few hundred at most."""

        def prune() -> None:
            names = self._client.zrange(keys.RUNS, 0, RUNS_LOOKED_AT - 1)
            there = self._client.pipeline(transaction=False)
            for name in names:
                there.exists(keys.config_of(name))
            gone = [name for name, exists in zip(names, there.execute(), strict=True) if not exists]
            if gone:
                self._client.zrem(keys.RUNS, *gone)

        self.again(prune)  # twice: yes; a run that comes back meanwhile is listed again by its next publish

    def requests(self) -> list[bytes]:
        found = self.again(lambda: bounded.elements(self._client, self.keys.commands, 0, REQUESTS_READ - 1))  # twice: yes
        if found is None:  # not a person's: it would stay for ever
            self.again(lambda: self._client.unlink(self.keys.commands))  # twice: yes
        return found or []

    def forget_requests(self, requests: Sequence[bytes]) -> None:
        for one in requests:
            self.again(partial(self._client.lrem, self.keys.commands, 0, one))  # twice: yes

    def other_workers(self, run: str) -> int | None:
        other = keys.RunKeys(run)

        def read() -> list[Any]:
            found: list[Any] = self._client.pipeline(transaction=False).hmget(other.progress, "state", "workers").exists(other.master).execute()
            return found

        (state, workers), led = self.again(read)  # twice: yes
        if state != RUNNING.encode() or not led:
            return None
        workers = _text(workers) or ""
        return int(workers) if is_count(workers) else 0


class RedisWorkerChannel(WorkerChannel):
    """A worker's side over one client; the life thread has a channel of its own."""

    def __init__(self, client: redis.Redis, run: str, worker: str, rq_name: str = "", again: Again | None = None) -> None:
        self.run, self.worker = run, worker
        self.keys = keys.RunKeys(run)
        self.again = again or Again()
        self._rq_name = rq_name
        self._client: Any = client
        self._mine = self.keys.claims(worker)
        self._life = self.keys.worker(worker)

    @property
    def outages(self) -> int:
        return self.again.outages

    def config(self) -> bytes | None:
        found: bytes = self.again(lambda: self._client.getrange(self.keys.config, 0, MAX_CONFIG))  # twice: yes
        return found or None

    def shown(self, name: str) -> str | None:
        return _text(self.again(partial(bounded.field, self._client, self.keys.progress, name)))  # twice: yes

    def task(self) -> bytes | None:
        found: bytes = self.again(lambda: self._client.getrange(self.keys.task, 0, MAX_TASK))  # twice: yes
        return found or None

    def parameters(self, publication: str, size: int) -> bytes | None:
        name, pieces = self.keys.parameters(publication), []
        for start in range(0, size, PIECE):
            piece = partial(self._client.getrange, name, start, min(size, start + PIECE) - 1)
            pieces.append(self.again(piece))  # twice: yes
        found = b"".join(pieces)
        return found if len(found) == size else None

    def arrive(self, about: Mapping[str, str], ttl: float) -> None:
        def write() -> None:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hset(self._life, mapping=dict(about)).pexpire(self._life, int(ttl * 1000))
            self._enrol(pipeline).execute()

        self.again(write)  # twice: yes

    def _enrol(self, pipeline: Any) -> Any:
        # A worker that slept through the run's end must not leave a set that stays for ever.
        return pipeline.sadd(self.keys.workers, self.worker).expire(self.keys.workers, keys.RUN_SECONDS)

    def beat(self, about: Mapping[str, str], ttl: float) -> None:
        def live() -> list[Any]:
            found: list[Any] = self._client.pipeline(transaction=False).pexpire(self._life, int(ttl * 1000)).exists(self.keys.master).execute()
            return found

        alive, led = self.again(live)  # twice: yes
        if not alive:
            if self.again(lambda: self._client.exists(self.keys.config)):  # twice: yes; a purged run must not come back by a beat
                self.arrive(about, ttl)
            return

        def write() -> None:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.hset(self._life, mapping=dict(about)).pexpire(self._life, int(ttl * 1000))
            if led:  # the set may be gone, for others may let it expire; that of a run that has ended must not come back
                self._enrol(pipeline)
            pipeline.execute()

        try:
            write()  # twice: yes, but not worth it
        except redis.exceptions.RedisError:
            return  # out of memory, say: what people read may be old, the beat above counted

    def orders(self, publication: str = "") -> Orders:
        def read() -> list[Any]:
            pipeline = self._client.pipeline(transaction=False).hmget(self.keys.progress, "state", "give_way", "publication")
            pipeline.hexists(keys.rq_worker(self._rq_name), "shutdown_requested_date").exists(keys.RQ_SUSPENDED)
            pipeline.exists(self.keys.master).exists(self.keys.parameters(publication))
            found: list[Any] = pipeline.execute()
            return found

        (state, give_way, newest), shutdown, suspended, led, there = self.again(read)  # twice: yes
        asked = self.worker.encode() in (give_way or b"").split(b" ")
        closed = bool(publication) and not there and _text(newest) not in (None, publication)  # one that is lost opens again
        return Orders(_text(state), asked, bool(shutdown) and bool(self._rq_name), bool(suspended), bool(led), closed)

    def claimed(self) -> list[Block]:
        found = []
        for entry in self.again(lambda: self._client.lrange(self._mine, 0, CLAIMS_READ - 1)):  # twice: yes
            try:
                found.append(Block.decode(entry))
            except DecodeError:
                self.again(partial(self._client.lrem, self._mine, 0, entry))  # twice: yes
        return found

    def claim(self, wait: float) -> Block | None:
        try:
            # Twice: NO. A wait of 0 would be for ever. How long an entry is nobody can know before: no more than
            # the server lets any client send (proto-max-bulk-len in docker/redis.conf).
            entry = self._client.blmove(self.keys.todo, self._mine, max(wait, 0.001), "LEFT", "RIGHT")
        except redis.exceptions.RedisError as error:
            if not is_outage(error):
                raise refusal(error) from None
            self.again.failed(error)
            time.sleep(wait)
            entry = None  # the move may have happened: the claims list knows
        if entry is None:
            return next(iter(self.claimed()), None)
        try:
            return Block.decode(entry)
        except DecodeError:
            self.again(lambda: self._client.lrem(self._mine, 0, entry))  # twice: yes
            return None

    def answer(self, block: Block, payload: bytes) -> bool:
        def push() -> Any:
            pipeline = self._client.pipeline(transaction=True)
            pipeline.xadd(self.keys.results(block.publication), {"answer": payload}, nomkstream=True)
            return pipeline.lrem(self._mine, 0, str(block)).execute()[0]

        return self.again(push) is not None  # twice: yes, the first answer of a slot counts

    def drop(self, block: Block) -> None:
        self.again(lambda: self._client.lrem(self._mine, 0, str(block)))  # twice: yes

    def give_back(self, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        pipeline = self._client.pipeline(transaction=True)
        for block in reversed(blocks):
            pipeline.lrem(self._mine, 0, str(block))
            pipeline.lpush(self.keys.todo, str(block))
        pipeline.expire(self.keys.todo, keys.RUN_SECONDS)  # the run may have finished a moment ago
        try:
            pipeline.execute()  # twice: NO; reconcile returns the blocks when the reply was lost
        except redis.exceptions.RedisError:
            return

    def report(self, text: str) -> None:
        if not self.again(lambda: self._client.exists(self.keys.config)):  # twice: yes
            return
        pipeline = self._client.pipeline(transaction=True).rpush(self.keys.errors, text)
        pipeline.ltrim(self.keys.errors, -ERRORS_KEPT, -1).expire(self.keys.errors, keys.RUN_SECONDS)
        try:
            pipeline.execute()  # twice: NO
        except redis.exceptions.RedisError:
            return

    def depart(self) -> None:
        try:
            self._client.delete(self._life)  # twice: yes, and not worth waiting for: the beat lapses by itself
        except redis.exceptions.RedisError:
            return
