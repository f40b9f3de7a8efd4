"""Seats: the RQ jobs by which workers join a run. RQ carries seats; es-queue's own keys carry the
work.

A seat's id ``es-<run>-<nonce>-<n>`` is its only argument. Ids are unique by the master session's
nonce, so RQ's ``unique=True``, which needs scripting rights, is not used.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any

import redis
from rq import Queue

from es_queue.protocol import keys
from es_queue.protocol.connection import decode_text, is_outage, runs_in_training

SEAT_FUNCTION = "workers.seat.take"
FAILURE_SECONDS = 3600
MAX_SEATS = 10**12 - 1  # as a seat's id has it
MAX_IDS_READ = 500  # seats are looked for among this many waiting jobs at each end of the queue


def waiting_seat_ids(client: redis.Redis, queue: str) -> list[str]:
    """The waiting jobs of a queue that are seats of any run, in order. Raises redis-py's DataError
    if the key is not a list.
    """
    key = keys.rq_queue(queue)
    head = read_queue(client, key, 0, MAX_IDS_READ - 1)
    tail = read_queue(client, key, -MAX_IDS_READ, -1) if len(head) == MAX_IDS_READ else []
    names = [name.decode("ascii", "replace") for name in dict.fromkeys([*head, *tail])]
    return [name for name in names if keys.is_seat_id(name)]


def read_queue(client: redis.Redis, key: str, start: int, stop: int) -> list[bytes]:
    """LRANGE of a queue. Raises DataError if it is not a list."""
    require_type(client, key, b"list")
    entries: Any = client.lrange(key, start, stop)
    return list(entries)


def require_type(client: redis.Redis, key: str, kind: bytes) -> None:
    """Raises redis-py's DataError, which names the key, if it exists with another type."""
    found: Any = client.type(key)
    if found not in (kind, b"none"):
        raise redis.exceptions.DataError(f"{key} is a {found.decode()}, not a {kind.decode()}")


def remove_mistyped(client: Any, queue: str) -> list[str]:
    """Remove the queue's keys of another type than RQ's own; returns a phrase for each.

    Workers can write these keys, and RQ does nothing until a person has removed a mistyped one.
    """
    kinds = {
        keys.rq_queue(queue): b"list",
        keys.rq_intermediate(queue): b"list",
        keys.rq_wip(queue): b"zset",
        keys.rq_failed(queue): b"zset",
        keys.rq_finished(queue): b"zset",
        keys.rq_workers(queue): b"set",
        keys.RQ_WORKERS: b"set",
        keys.RQ_QUEUES: b"set",
    }
    removed = []
    for key, kind in kinds.items():
        found = client.type(key)
        if found in (kind, b"none"):
            continue
        with client.pipeline() as change:  # nothing if the key has changed meanwhile
            change.watch(key)
            if change.type(key) == found:
                change.multi()
                change.delete(key)
                with suppress(redis.exceptions.WatchError):
                    change.execute()
                    removed.append(f"{key}, which was a {found.decode()}, not a {kind.decode()}")
    return removed


def is_seat_of(seat: str, run: str) -> bool:
    return keys.is_seat_id(seat) and keys.parse_seat_id(seat)[0] == run


def run_status(client: redis.Redis, run: str) -> tuple[str | None, bool]:
    """(the run's state, whether a master holds its lease). The state stays "running" if the master
    died.
    """
    run_keys = keys.RunKeys(run)
    pipeline: Any = client.pipeline(transaction=False)
    state, has_master = pipeline.hget(run_keys.progress, "state").exists(run_keys.master).execute()
    return decode_text(state), bool(has_master)


def is_other_run_waiting(client: redis.Redis, queue: str, run: str) -> bool:
    """Whether a seat of another run that trains waits in the queue; False if Redis does not
    respond.
    """
    try:
        others = {keys.parse_seat_id(name)[0] for name in waiting_seat_ids(client, queue)} - {run}
        return bool(runs_in_training(client, sorted(others)))
    except redis.exceptions.RedisError:
        return False


def open_seats(
    client: redis.Redis, queue: str, run: str, nonce: str, want: int, timeout: int
) -> list[str]:
    """Open seats until at least ``want`` of this run wait in the queue; returns the new ids.

    timeout: seconds after which RQ ends the job; longer than a lease with its longest episode

    Callers that race open at most one too many each.
    """
    missing = want - sum(is_seat_of(name, run) for name in waiting_seat_ids(client, queue))
    opened: list[str] = []
    target = Queue(queue, connection=client)
    for _ in range(missing):
        number = _next_number(client, keys.RunKeys(run).seatno)
        opened.append(keys.seat_id(run, nonce, number))
        target.enqueue_call(
            SEAT_FUNCTION,
            job_id=opened[-1],
            timeout=timeout,
            result_ttl=0,
            failure_ttl=FAILURE_SECONDS,
            description=f"es-queue: seat {number} of run {run}",
        )
    return opened


def _next_number(client: redis.Redis, counter: str) -> int:
    """The next seat's number. If the counter is out of range, counting begins at another number."""
    try:
        number: Any = client.incr(counter)
        if 0 < number <= MAX_SEATS:
            return int(number)
    except redis.exceptions.ResponseError as error:  # no number, or the largest there is
        if is_outage(error):
            raise
    fresh = secrets.randbelow(MAX_SEATS // 2) + 1
    client.set(counter, fresh, ex=keys.RUN_SECONDS)
    return fresh


def close_seats(client: redis.Redis, queue: str, run: str) -> int:
    """Remove this run's waiting seats from the queue; returns their number."""
    closed = 0
    for name in waiting_seat_ids(client, queue):
        if is_seat_of(name, run):
            pipeline = client.pipeline(transaction=True)
            pipeline.lrem(keys.rq_queue(queue), 0, name)
            pipeline.delete(keys.rq_job(name))
            pipeline.execute()
            closed += 1
    return closed
