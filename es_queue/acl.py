"""Create Redis users with least privilege: python -m es_queue.acl FOLDER

Writes users.acl and a password file for each of master, worker and viewer, and prints how to use
them. Needs Redis 7 or Valkey.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from es_queue.command_line import CommandParser, add_options
from es_queue.credentials import PASSWORD_FILE
from es_queue.errors import EsQueueError, RunFolderError, UsageError
from es_queue.private_files import create_new
from es_queue.protocol import keys
from es_queue.text import sanitize

MASTER, WORKER, VIEWER = "master", "worker", "viewer"
USERS = (MASTER, WORKER, VIEWER)
SCALER = "scaler"
DEFAULT_QUEUE = "default"
#: Of a queue whose name is part of a right: no space, and no letter that a pattern reads otherwise.
QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,80}")
ACL_FILE = "users.acl"
#: The token of the page of es-status, for ES_QUEUE_WEB_TOKEN_FILE.
TOKEN_FILE = "web.token"

ANY = keys.ANY_RUN

OPTIONS = """
folder FOLDER
    new folder, or one without such files
--queue NAME
    RQ queue of the workers: a plain rq worker with the worker's password may touch the keys of no
    other queue; see es-master --queue [default: default]
--scaler
    add a user for an autoscaler that counts the open seats of that queue
"""


def _each(commands: str) -> tuple[str, ...]:
    return tuple(f"+{command}" for command in commands.split())


# Commands are named singly, because a category's content depends on the server (in Redis 8 @read
# has FT.SEARCH). Redis 7.0 has all of these names. tests/abuse/test_acl.py checks each.
READS = _each(
    "get getrange strlen exists type ttl pttl memory|usage hget hmget hgetall hexists hkeys hlen "
    "hstrlen lrange llen smembers sismember scard sscan zrange zrangebyscore zrevrange "
    "zrevrangebyscore zscore zcard zscan xrange xrevrange xlen xread xinfo|stream"
)
#: Reads that neither RQ nor our workers send. Each may take long on a large key of a worker, or
#: copies one value any number of times.
MASTERS_READS = _each(
    "memory|usage hmget hkeys zrevrange zrevrangebyscore zscan xrange xread xinfo|stream"
)
WORKERS_READS = tuple(pattern for pattern in READS if pattern not in MASTERS_READS)
WRITES = _each(
    "set setex psetex setnx getset getdel append incr incrby incrbyfloat decr decrby del unlink "
    "expire pexpire expireat pexpireat persist hset hsetnx hdel hincrby hincrbyfloat lpush rpush "
    "lpushx rpushx lpop rpop lrem ltrim lmove blmove blpop brpop rpoplpush brpoplpush sadd srem "
    "smove zadd zrem zincrby zremrangebyscore zremrangebyrank xadd xdel xtrim multi exec discard "
    "watch unwatch"
)
#: redis-py sends CLIENT SETINFO, which Redis 7.0 lacks, so CLIENT is allowed as a whole, without
#: administration and without TRACKING, which reveals the names of all keys that anyone writes.
CONNECTION = (
    *_each("ping select client"),
    "-@admin",
    "-@dangerous",
    "-client|tracking",
    "-client|trackinginfo",
    "-client|caching",
    "-client|getredir",
    "-client|reply",
)
ABOUT_THE_SERVER = _each("info time acl|whoami")
#: Lets ``rq`` read the password from its file.
CONNECTION_CLASS = "es_queue.protocol.connection.RedisWithPassword"
#: Only RQ's plain worker waits for messages; es-master's local workers connect as the master.
SUBSCRIBE = _each("subscribe unsubscribe psubscribe punsubscribe")

#: RQ's registries that may be read without their jobs, which may belong to others.
RQ_VISIBLE_KEYS = (
    keys.RQ_SUSPENDED,
    keys.RQ_WORKERS,
    keys.RQ_QUEUES,
    keys.rq_workers("*"),
    keys.rq_worker("*"),
    keys.rq_queue("*"),
    keys.rq_failed("*"),
    keys.rq_wip("*"),
)

#: How the id of a seat begins, see keys.seat_id.
SEATS = ("es-*", "es_-*")


def seat_keys(queue: str) -> tuple[str, ...]:
    """The patterns of RQ's keys that a plain ``rq worker`` of one queue needs for its seats; with
    others it could stop other runs for good.
    """
    of_queue = (
        keys.rq_queue,
        keys.rq_intermediate,
        keys.rq_wip,
        keys.rq_failed,
        keys.rq_finished,
        keys.rq_workers,
        keys.rq_cleaning,
    )
    of_seat = (keys.rq_job, keys.rq_dependencies, keys.rq_results, keys.rq_executions)
    return (
        *(f"~{key(queue)}" for key in of_queue),
        *(f"~{keys.rq_first_seen(queue, seat)}" for seat in SEATS),
        *(f"~{key(seat)}" for key in (*of_seat, keys.rq_execution) for seat in SEATS),
        f"~{keys.RQ_WORKERS}",
        f"~{keys.rq_worker('*')}",
        f"%R~{keys.RQ_SUSPENDED}",
        f"%R~{keys.RQ_GROUPS}",
    )


def rules(user: str, queue: str = DEFAULT_QUEUE) -> tuple[str, ...]:
    """The user's rules, in order. Selectors are in parentheses; rights before them are outside."""
    patterns: tuple[str, ...]
    if user == MASTER:
        patterns = (f"&{keys.rq_pubsub('*')}", f"~{keys.ANY_KEY}", f"~{keys.RQ_ANY_KEY}")
        commands = (
            *READS,
            *WRITES,
            *SUBSCRIBE,
            *ABOUT_THE_SERVER,
            *_each("scan evalsha script|load"),
        )
    elif user == WORKER:
        patterns = (f"&{keys.rq_pubsub('*')}", *seat_keys(queue))
        commands = (
            *WORKERS_READS,
            *WRITES,
            *SUBSCRIBE,
            *ABOUT_THE_SERVER,
            f"(-@all +sadd %W~{keys.RQ_QUEUES})",
            f"(-@all +get +getrange +strlen +exists %R~{ANY.config} %R~{ANY.task} "
            f"%R~{ANY.parameters('*')} %R~{ANY.master} %R~{ANY.iteration})",
            f"(-@all +hget +hmget +hstrlen +exists %R~{ANY.progress})",
            f"(-@all +zrange %R~{keys.RUNS})",
            f"(-@all +blmove +lmove +lpush +expire ~{ANY.todo} ~{ANY.claims('*')})",
            f"(-@all +lrem +lrange +llen ~{ANY.claims('*')})",
            # answer.lua, which the master loads; a script has its user's rights.
            "(-@all +evalsha +append +strlen +exists +expire +llen +rpush +lrem +lrange "
            f"~{ANY.results('*', '*')} ~{ANY.moments('*', '*')} ~{ANY.claims('*')} ~{ANY.bell})",
            f"(-@all +hset +pexpire +expire +del ~{ANY.worker('*')})",
            f"(-@all +sadd +expire ~{ANY.workers})",
            f"(-@all +rpush +ltrim +expire ~{ANY.errors})",
            f"(-@all +incr +incrby ~{ANY.seatno})",
        )
    elif user == VIEWER:
        patterns = (f"%R~{keys.ANY_KEY}", *(f"%R~{pattern}" for pattern in RQ_VISIBLE_KEYS))
        commands = (*READS, *ABOUT_THE_SERVER, "+scan")
    else:
        # KEDA counts with its own script. A script has its user's rights, so it can only count, or
        # run for ever.
        patterns, commands = (f"~{keys.rq_queue(queue)}",), _each("eval type llen")
    return ("resetkeys", "resetchannels", *patterns, "-@all", *CONNECTION, *commands)


def format_user_line(user: str, password: str | None, queue: str = DEFAULT_QUEUE) -> str:
    """password: None disables the user."""
    who = f"on #{hashlib.sha256(password.encode()).hexdigest()}" if password is not None else "off"
    return f"user {user} reset {who} sanitize-payload {' '.join(rules(user, queue))}"


def format_acl(passwords: Mapping[str, str], queue: str = DEFAULT_QUEUE) -> str:
    """An ACL file: no access without a password, and a line for each user."""
    users = dict.fromkeys((*USERS, *passwords))
    lines = (format_user_line(user, passwords.get(user), queue) for user in users)
    return "\n".join(["user default off", *lines, ""])


def write_acl_files(
    folder: Path, users: Sequence[str] = USERS, queue: str = DEFAULT_QUEUE
) -> dict[str, Path]:
    """Write the ACL file, each user's password file and the page's token, readable only by their
    owner; returns the passwords' paths by user. Raises UsageError if one exists, RunFolderError.
    """
    paths = {user: folder / f"{user}.password" for user in users}
    existing = [
        path
        for path in (folder / ACL_FILE, folder / TOKEN_FILE, *paths.values())
        if path.exists() or path.is_symlink()
    ]
    if existing:
        raise UsageError(f"{existing[0]} exists already and may be in use: give another folder")
    passwords = {user: secrets.token_urlsafe(32) for user in users}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for user, path in paths.items():
            _write_private(path, passwords[user] + "\n")
        _write_private(folder / TOKEN_FILE, secrets.token_urlsafe(32) + "\n")
        _write_private(folder / ACL_FILE, format_acl(passwords, queue))
    except OSError as error:
        raise RunFolderError(
            f"the folder {folder} cannot be written ({error.strerror}); give one that you "
            "may write to"
        ) from None
    return paths


def format_instructions(folder: Path, queue: str) -> str:
    of_queue = "" if queue == DEFAULT_QUEUE else f" {queue}"
    return f"""\
{folder / ACL_FILE} defines the users master, worker and viewer; their passwords are in the same \
folder.
1. In redis.conf, replace requirepass with  aclfile /path/to/users.acl ; the server's user must \
own that file.
   None of these users may administer the server. For an administrator, add a line such as  user \
admin on >PASSWORD ~* &* +@all
2. es-master --redis-url redis://master@HOST --redis-password-file {folder / "master.password"} …
3. Copy worker.password to each worker host. There:
   export RQ_REDIS_URL=redis://worker@HOST {PASSWORD_FILE}=$PWD/worker.password \
RQ_CONNECTION_CLASS={CONNECTION_CLASS}
   rq worker{of_queue}    or, without RQ,  es-worker{of_queue}
4. es-status --redis-url redis://viewer@HOST --redis-password-file {folder / "viewer.password"}
   For a page with a fixed token, add  --web  and set
   ES_QUEUE_WEB_TOKEN_FILE={folder / TOKEN_FILE}"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("python -m es_queue.acl", __doc__.partition(": ")[0])
    add_options(parser, OPTIONS, folder={"type": Path}, queue={"default": DEFAULT_QUEUE})
    try:
        given = parser.parse_words(argv)
        if not QUEUE_NAME.fullmatch(given.queue):
            raise UsageError(
                f"--queue is {sanitize(given.queue, 80)!r}: use up to 80 letters, digits, '_', "
                "'.', ':' and '-'"
            )
        users = (*USERS, SCALER) if given.scaler else USERS
        write_acl_files(given.folder, users, given.queue)
    except EsQueueError as error:
        print(f"es_queue.acl: {error}", file=sys.stderr)
        return error.exit_code
    print(format_instructions(given.folder, given.queue))
    return 0


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(create_new(path, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    sys.exit(main())
