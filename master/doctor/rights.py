"""What master and worker send to Redis, as trials of a user's rights: the commands of the channel, its scripts, and RQ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from es_queue.acl import MASTER, WORKER, selectors_of
from es_queue.protocol import keys
from master.doctor.finding import Finding, failed, ok, unknown, warning
from master.doctor.look import Command

NOBODY, PUBLICATION, DIGEST = "doctor-1-000000", "0.1-00000000", "0" * 40
LONGEST_LIST = 6
#: A user to whom all of these are refused is one for looking.
WRITES = {"HSET", "XADD", "BLMOVE", "RPUSH"}


def master_commands(run: str, queue: str) -> list[Command]:
    """What es-master sends; what its scripts call counts as sent by it."""
    own = keys.RunKeys(run)
    results, parameters, claims, life = own.results(PUBLICATION), own.parameters(PUBLICATION), own.claims(NOBODY), own.worker(NOBODY)
    return [
        ("SCRIPT", "LOAD", "return 1"), ("EVALSHA", DIGEST, "1", own.epoch), ("GETRANGE", own.config, "0", "0"), ("GETRANGE", own.task, "0", "0"), ("GET", own.epoch),
        ("SET", own.task, "", "EX", "1"), ("SET", parameters, "", "EX", "1"), ("HSET", own.progress, "state", ""), ("HDEL", own.progress, "give_way"),
        ("HGETALL", own.attempts), ("HINCRBY", own.attempts, "train 0 deaths", "1"), ("XADD", own.history, "*", "state", ""),
        ("XADD", results, "*", "publication", ""), ("XREAD", "STREAMS", results, "0"), ("XDEL", results, "0-1"), ("ZADD", keys.RUNS, "NX", "0", run),
        ("ZREM", keys.RUNS, run), ("PERSIST", parameters), ("EXPIRE", own.config, "60"), ("PEXPIRE", own.master, "60"), ("PTTL", own.master),
        ("UNLINK", own.todo, claims), ("DEL", own.master), ("EXISTS", own.task, life), ("RPUSH", own.todo, ""), ("LPUSH", own.todo, ""),
        ("LREM", own.todo, "1", ""), ("LLEN", own.todo), ("LRANGE", claims, "0", "-1"), ("SMEMBERS", own.workers), ("SREM", own.workers, NOBODY),
        ("HGETALL", life), ("LRANGE", own.errors, "-20", "-1"), ("LRANGE", own.commands, "0", "0"), ("LREM", own.commands, "0", ""), *seat_commands(run, queue),
        ("ZREVRANGEBYSCORE", keys.rq_failed(queue), "1", "0"), ("XREVRANGE", keys.rq_results(NOBODY), "+", "-", "COUNT", "1"),
    ]  # fmt: skip


def worker_commands(run: str, queue: str) -> list[Command]:
    """What a seat sends, and RQ's worker around it."""
    own = keys.RunKeys(run)
    life, claims, results, rq_life = own.worker(NOBODY), own.claims(NOBODY), own.results(PUBLICATION), keys.rq_worker("doctor")
    return [
        ("GETRANGE", own.config, "0", "0"), ("GETRANGE", own.task, "0", "0"), ("GETRANGE", own.parameters(PUBLICATION), "0", "0"),
        ("HSTRLEN", own.progress, "state"), ("HGET", own.progress, "state"),
        ("EXISTS", own.master), ("HSET", life, "host", ""), ("PEXPIRE", life, "1"), ("DEL", life), ("SADD", own.workers, NOBODY),
        ("EXPIRE", own.workers, "60"), ("BLMOVE", own.todo, claims, "LEFT", "RIGHT", "0.001"), ("LRANGE", claims, "0", "-1"),
        ("LREM", claims, "0", ""), ("LPUSH", own.todo, ""), ("EXPIRE", own.todo, "60"), ("XADD", results, "NOMKSTREAM", "*", "answer", ""),
        ("RPUSH", own.errors, ""), ("LTRIM", own.errors, "-200", "-1"), ("EXPIRE", own.errors, "60"), *seat_commands(run, queue),
        ("SADD", keys.RQ_WORKERS, rq_life), ("SADD", keys.rq_workers(queue), rq_life), ("SREM", keys.RQ_WORKERS, rq_life), ("HSET", rq_life, "birth", ""),
        ("EXPIRE", rq_life, "60"), ("HEXISTS", rq_life, "birth"), ("EXISTS", keys.RQ_SUSPENDED), ("SUBSCRIBE", keys.rq_pubsub("doctor")),
        ("BLMOVE", keys.rq_queue(queue), f"{keys.rq_queue(queue)}:intermediate", "LEFT", "RIGHT", "0.001"), ("ZADD", keys.rq_wip(queue), "0", NOBODY),
    ]  # fmt: skip


def seat_commands(run: str, queue: str) -> list[Command]:
    """What opening and closing a seat takes: both do it."""
    job, waiting = keys.rq_job("doctor"), keys.rq_queue(queue)
    return [
        ("INCRBY", keys.RunKeys(run).seatno, "1"), ("LRANGE", waiting, "0", "0"), ("LREM", waiting, "0", NOBODY), ("RPUSH", waiting, NOBODY),
        ("SADD", keys.RQ_QUEUES, waiting), ("HSET", job, "status", ""), ("DEL", job),
    ]  # fmt: skip


def check_rights(user: str, as_master: Sequence[Command] | None, as_worker: Sequence[Command] | None) -> Finding:
    """as_master, as_worker: refused commands of each, None where not even a transaction is allowed."""
    if as_master is None or as_worker is None or {command[0] for command in as_worker} >= WRITES:
        return warning("rights", f"{user} may look, but neither train nor work", "nothing, if that is what this user is for; es-master and rq worker need one with more rights")
    if not as_master and not as_worker:
        return ok("rights", f"{user} may do all that master and workers do")
    if not as_worker:
        return ok("rights", f"{user} may do what a worker does; a master may not work as this user ({listed(as_master)} refused)")
    if not as_master:
        return ok("rights", f"{user} may do what a master does; a worker may not work as this user ({listed(as_worker)} refused)")
    whom, role, missing = min(("a worker", WORKER, as_worker), ("es-master", MASTER, as_master), key=lambda one: len(one[2]))
    return failed("rights", f"{user} may work neither as a worker nor as es-master; what {whom} misses: {listed(missing)}", rights_fix(user, role, missing))


def rights_fix(user: str, role: str, missing: Sequence[Command]) -> str:
    """The line that grants what is missing: command by command where that is little, else all that the role has."""
    granted: dict[str, set[str]] = {}
    for command in missing:
        name = "|".join(command[:2]).lower() if command[0] == "SCRIPT" else command[0].lower()
        granted.setdefault(name, set()).update(patterns_of(command))
    selectors = [f"'(-@all +{name} {' '.join(sorted(patterns))})'".replace(" )", ")") for name, patterns in granted.items()]
    rights = " ".join(selectors if len(selectors) <= LONGEST_LIST else map(quote, selectors_of(role)))
    return f"let an administrator grant it, on Redis 7 and later by\nredis-cli ACL SETUSER {quote(user)} {rights}"


def patterns_of(command: Command) -> set[str]:
    """Patterns for the keys and channels of a command, the same for every run."""
    found = set()
    for part in command[1:]:
        kind, _, rest = part.partition(":")
        if part == keys.RUNS or (kind == "rq" and ":" not in rest):
            found.add(f"~{part}")
        elif kind == "es":
            suffix, *more = rest.split(":")[1:]
            found.add(f"~es:*:{suffix}{':*' if more else ''}")
        elif kind == "rq":
            found.add(f"{'&' if command[0] == 'SUBSCRIBE' else '~'}rq:{rest.split(':')[0]}:*")
    return found


def listed(commands: Iterable[Command]) -> str:
    """``HSET es:…:progress, EVALSHA`` and how many more."""
    shown = list(dict.fromkeys(f"{command[0]}{key_of(command)}" for command in commands))
    more = f" and {len(shown) - LONGEST_LIST} more" if len(shown) > LONGEST_LIST else ""
    return ", ".join(shown[:LONGEST_LIST]) + more


def key_of(command: Command) -> str:
    return next((f" {part}" for part in command[1:] if part.startswith(("es:", "rq:"))), "")


def unknown_rights(why: object) -> Finding:
    return unknown("rights", why, "look as the user of es-master or of the workers")
