"""Every command that a server has is tried for every user: this file lists all that are allowed.

If a newer server allows another command, the test fails by its name. Review it, then add it to
NEWER.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from es_queue import acl
from tests.abuse.servers import BOTH, serving, told
from tests.leaks import simple_password

ADMIN = "admin"
USERS = (*acl.USERS, acl.SCALER)
PASSWORDS = {user: simple_password(user) for user in (*USERS, ADMIN)}


def named(words: str) -> set[str]:
    return set(words.split())


#: Commands about the connection itself. A server lets everyone send the first four.
CONNECTION = named(
    "auth hello quit reset ping select client|getname client|help client|id client|info "
    "client|setname"
)
#: What servers after Redis 7.0 have of that kind, reviewed: they are about the client's own
#: connection and name no key. client|import-source does nothing unless an administrator sets
#: import-mode.
NEWER = {"client|setinfo", "client|no-touch", "client|capa", "client|import-source"}
SERVER = {"info", "time", "acl|whoami"}
SMALL_READS = named(
    "exists get getrange hexists hget hgetall hlen hstrlen llen lrange pttl scard "
    "sismember smembers sscan strlen ttl type xlen xrevrange zcard zrange zrangebyscore zscore"
)
MASTERS_READS = named(
    "memory|usage hkeys hmget xinfo|stream xrange xread zrevrange zrevrangebyscore zscan"
)
READS = SMALL_READS | MASTERS_READS
WRITES = named(
    "append blmove blpop brpop brpoplpush decr decrby del expire expireat getdel getset hdel "
    "hincrby hincrbyfloat hset hsetnx incr incrby incrbyfloat lmove lpop lpush lpushx lrem ltrim "
    "persist pexpire pexpireat psetex rpop rpoplpush rpush rpushx sadd set setex setnx smove srem "
    "unlink xadd xdel xtrim zadd zincrby zrem zremrangebyrank zremrangebyscore"
)
TRANSACTIONS = {"multi", "exec", "discard", "watch", "unwatch"}
MESSAGES = {"subscribe", "unsubscribe", "psubscribe", "punsubscribe"}
WORKS = CONNECTION | SERVER | READS | WRITES | TRANSACTIONS | MESSAGES
ALLOWED = {
    acl.MASTER: WORKS | {"scan", "evalsha", "script|load"},
    acl.WORKER: WORKS - MASTERS_READS | {"hmget", "evalsha"},
    acl.VIEWER: CONNECTION | SERVER | READS | {"scan"},
    acl.SCALER: CONNECTION | {"eval", "type", "llen"},
}


@pytest.fixture(scope="module", params=BOTH)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of a server with all users and an administrator."""
    folder = tmp_path_factory.mktemp("acl")
    rules = acl.format_acl({user: PASSWORDS[user] for user in USERS})
    digest = hashlib.sha256(PASSWORDS[ADMIN].encode()).hexdigest()
    (folder / "users.acl").write_text(f"{rules}user {ADMIN} on #{digest} ~* &* +@all\n")
    with serving(request.param, folder, "--aclfile", folder / "users.acl") as port:
        yield port


def asked(port: int, *words: str | int) -> object:
    return told(port, ADMIN, PASSWORDS[ADMIN], *words)


def commands(port: int) -> dict[str, int]:
    """Every command and subcommand of the server, with the fewest words that it takes."""
    listed = asked(port, "COMMAND")
    assert isinstance(listed, list)
    return {one[0].decode(): abs(one[1]) for entry in listed for one in (entry[9] or [entry])}


def allowed(port: int, user: str) -> set[str]:
    """What the server itself says that the user may send, with keys or without."""
    found = set()
    for name, words in commands(port).items():
        parts = name.split("|")
        reply = asked(port, "ACL", "DRYRUN", user, *parts, *["x"] * (words - len(parts)))
        if not (isinstance(reply, bytes) and b"has no permissions to run" in reply):
            found.add(name)
    return found


@pytest.mark.parametrize("user", USERS)
def test_of_all_commands_of_the_server_each_user_may_send_those_that_were_reviewed(
    guarded: int, user: str
) -> None:
    known = commands(guarded)
    assert len(known) > 300, "subcommands are counted too"
    may = allowed(guarded, user)
    assert sorted(may - ALLOWED[user] - NEWER) == [], "a newer server allows more: review it"
    assert sorted(ALLOWED[user] - may) == []
