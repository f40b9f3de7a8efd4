"""Commands of master, worker and RQ, to test a user's rights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from es_queue.protocol import keys
from es_queue.security.acl import MASTER, WORKER, selectors_of
from master.doctor.finding import Finding, failed, named, ok, unknown, warning
from master.doctor.look import Command

PROBE_WORKER, PROBE_PUBLICATION, PROBE_SCRIPT_DIGEST = "doctor-1-000000", "0.1-00000000", "0" * 40
PROBE_SEAT = keys.seat_id("doctor", "000000", 1)
MOST_LISTED = 6
#: A user who may send none of these can only read.
WRITE_COMMANDS = {"HSET", "APPEND", "BLMOVE", "RPUSH"}


def master_commands(run: str, queue: str) -> list[Command]:
    run_keys = keys.RunKeys(run)
    results, parameters, claims, life = (
        run_keys.results(PROBE_PUBLICATION),
        run_keys.parameters(PROBE_PUBLICATION),
        run_keys.claims(PROBE_WORKER),
        run_keys.worker(PROBE_WORKER),
    )
    return [
        ("SCRIPT", "LOAD", "return 1"),
        ("EVALSHA", PROBE_SCRIPT_DIGEST, "1", run_keys.epoch),
        ("GETRANGE", run_keys.config, "0", "0"),
        ("GETRANGE", run_keys.task, "0", "0"),
        ("GET", run_keys.epoch),
        ("SET", run_keys.task, "", "EX", "1"),
        ("SET", parameters, "", "EX", "1"),
        ("HSET", run_keys.progress, "state", ""),
        ("HDEL", run_keys.progress, "give_way"),
        ("XADD", run_keys.history, "*", "state", ""),
        ("SET", results, "", "EX", "1"),
        ("GETRANGE", results, "0", "0"),
        ("STRLEN", results),
        ("BLPOP", run_keys.bell, "0.001"),
        ("ZADD", keys.RUNS, "NX", "0", run),
        ("ZREM", keys.RUNS, run),
        ("PERSIST", parameters),
        ("EXPIRE", run_keys.config, "60"),
        ("PEXPIRE", run_keys.master, "60"),
        ("PTTL", run_keys.master),
        ("UNLINK", run_keys.todo, claims),
        ("DEL", run_keys.master),
        ("EXISTS", run_keys.task, life),
        ("RPUSH", run_keys.todo, ""),
        ("LPUSH", run_keys.todo, ""),
        ("LREM", run_keys.todo, "1", ""),
        ("LLEN", run_keys.todo),
        ("LRANGE", claims, "0", "-1"),
        ("SMEMBERS", run_keys.workers),
        ("SREM", run_keys.workers, PROBE_WORKER),
        ("HGETALL", life),
        ("LRANGE", run_keys.errors, "-20", "-1"),
        ("LRANGE", run_keys.commands, "0", "0"),
        ("LREM", run_keys.commands, "0", ""),
        *seat_commands(run, queue),
        ("ZREVRANGEBYSCORE", keys.rq_failed(queue), "1", "0"),
        ("XREVRANGE", keys.rq_results(PROBE_SEAT), "+", "-", "COUNT", "1"),
    ]


def worker_commands(run: str, queue: str) -> list[Command]:
    """Those of a seat, and of RQ's worker around it."""
    run_keys = keys.RunKeys(run)
    life, claims, results, rq_life = (
        run_keys.worker(PROBE_WORKER),
        run_keys.claims(PROBE_WORKER),
        run_keys.results(PROBE_PUBLICATION),
        keys.rq_worker("doctor"),
    )
    return [
        ("GETRANGE", run_keys.config, "0", "0"),
        ("GETRANGE", run_keys.task, "0", "0"),
        ("GETRANGE", run_keys.parameters(PROBE_PUBLICATION), "0", "0"),
        ("HSTRLEN", run_keys.progress, "state"),
        ("HGET", run_keys.progress, "state"),
        ("EXISTS", run_keys.master),
        ("HSET", life, "host", ""),
        ("PEXPIRE", life, "1"),
        ("DEL", life),
        ("SADD", run_keys.workers, PROBE_WORKER),
        ("EXPIRE", run_keys.workers, "60"),
        ("BLMOVE", run_keys.todo, claims, "LEFT", "RIGHT", "0.001"),
        ("LRANGE", claims, "0", "-1"),
        ("LREM", claims, "0", ""),
        ("LPUSH", run_keys.todo, ""),
        ("EXPIRE", run_keys.todo, "60"),
        ("EVALSHA", PROBE_SCRIPT_DIGEST, "3", results, claims, run_keys.bell),
        ("APPEND", results, ""),
        ("RPUSH", run_keys.bell, "1"),
        ("RPUSH", run_keys.errors, ""),
        ("LTRIM", run_keys.errors, "-200", "-1"),
        ("EXPIRE", run_keys.errors, "60"),
        *seat_commands(run, queue),
        ("SADD", keys.RQ_WORKERS, rq_life),
        ("SADD", keys.rq_workers(queue), rq_life),
        ("SREM", keys.RQ_WORKERS, rq_life),
        ("HSET", rq_life, "birth", ""),
        ("EXPIRE", rq_life, "60"),
        ("HEXISTS", rq_life, "birth"),
        ("EXISTS", keys.RQ_SUSPENDED),
        ("SUBSCRIBE", keys.rq_pubsub("doctor")),
        (
            "BLMOVE",
            keys.rq_queue(queue),
            keys.rq_intermediate(queue),
            "LEFT",
            "RIGHT",
            "0.001",
        ),
        ("ZADD", keys.rq_wip(queue), "0", PROBE_SEAT),
    ]


def seat_commands(run: str, queue: str) -> list[Command]:
    """To open and close a seat: master and worker need both."""
    job, waiting = keys.rq_job(PROBE_SEAT), keys.rq_queue(queue)
    return [
        ("INCRBY", keys.RunKeys(run).seatno, "1"),
        ("LRANGE", waiting, "0", "0"),
        ("LREM", waiting, "0", PROBE_SEAT),
        ("RPUSH", waiting, PROBE_SEAT),
        ("SADD", keys.RQ_QUEUES, waiting),
        ("HSET", job, "status", ""),
        ("DEL", job),
    ]


@named("rights")
def check_rights(
    user: str,
    as_master: Sequence[Command] | None,
    as_worker: Sequence[Command] | None,
    queue: str,
) -> Finding:
    """as_master, as_worker: refused commands of each, None if not even a transaction is allowed."""
    is_reader = as_worker is None or {command[0] for command in as_worker} >= WRITE_COMMANDS
    if as_master is None or as_worker is None or is_reader:
        fix = (
            "ignore this for a read-only user; es-master and rq worker need a user with more rights"
        )
        return warning(f"{user} can read, but can run neither es-master nor a worker", fix)
    if not as_master and not as_worker:
        return ok(f"{user} can do everything that masters and workers do")
    if not as_master or not as_worker:
        able, other = ("worker", "master") if as_master else ("master", "worker")
        return ok(
            f"{user} has the rights of a {able}, but not of a {other} "
            f"({format_commands(as_master or as_worker)} refused)"
        )
    whom, role, missing = min(
        ("a worker", WORKER, as_worker),
        ("es-master", MASTER, as_master),
        key=lambda role_rights: len(role_rights[2]),
    )
    text = (
        f"{user} can run neither es-master nor a worker; {whom} lacks: {format_commands(missing)}"
    )
    return failed(text, format_rights_fix(user, role, queue))


def format_rights_fix(user: str, role: str, queue: str) -> str:
    return (
        "ask an administrator to grant all rights of that role; on Redis 7 or later:\nredis-cli "
        f"ACL SETUSER {quote(user)} {' '.join(map(quote, selectors_of(role, queue)))}"
    )


def format_commands(commands: Iterable[Command]) -> str:
    """``HSET es:…:progress, EVALSHA``, and the number of the others."""
    labels = list(dict.fromkeys(f"{command[0]}{format_key(command)}" for command in commands))
    more = f" and {len(labels) - MOST_LISTED} more" if len(labels) > MOST_LISTED else ""
    return ", ".join(labels[:MOST_LISTED]) + more


def format_key(command: Command) -> str:
    return next((f" {part}" for part in command[1:] if part.startswith(("es:", "rq:"))), "")


@named("rights")
def unknown_rights(why: object) -> Finding:
    return unknown(why, "run the doctor as the user of es-master or of the workers")
