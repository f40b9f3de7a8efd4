"""Checks whether the data in a private server's folder may be loaded, because a run's folder can
come from anyone.

A server replays its append-only files with an administrator's rights, and a run trusts their
content. So the folder must have this account's seal, and each file is checked before the server
starts: it may contain only commands that write plain data. Source of the format:
https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from es_queue.errors import RedisError
from master.services.seal import foreign, seal

FOLDER, MANIFEST = "appendonlydir", "appendonly.aof.manifest"
#: Where servers before Redis 7 kept their file; a newer one still loads it.
OLD = "appendonly.aof"
#: The password of a server that has listened.
PASSWORD = "password"
MOST_MANIFEST = 64 * 1024
LINE = re.compile(
    rb"file (appendonly\.aof\.[0-9]{1,9}\.(?:base\.rdb|base\.aof|incr\.aof)) seq [0-9]{1,9} type "
    rb"([bhi])"
    rb"(?: startoffset [0-9]+)?(?: endoffset [0-9]+)?",
    re.ASCII,
)
#: Commands that write plain data, as servers log them. Scripts, functions, RESTORE and commands
#: that administer the server are missing on purpose.
WRITES = frozenset(
    b"""SELECT MULTI EXEC DEL UNLINK EXPIRE PEXPIRE EXPIREAT PEXPIREAT PERSIST RENAME RENAMENX
    COPY FLUSHDB FLUSHALL
    SET SETEX PSETEX SETNX GETSET GETDEL GETEX MSET MSETNX APPEND SETRANGE INCR INCRBY
    INCRBYFLOAT DECR DECRBY
    HSET HMSET HSETNX HDEL HINCRBY HINCRBYFLOAT HSETEX HGETDEL HGETEX HEXPIRE HPEXPIRE
    HEXPIREAT HPEXPIREAT HPERSIST
    LPUSH RPUSH LPUSHX RPUSHX LPOP RPOP LREM LTRIM LSET LINSERT LMOVE RPOPLPUSH LMPOP
    SADD SREM SPOP SMOVE ZADD ZREM ZINCRBY ZPOPMIN ZPOPMAX ZMPOP ZREMRANGEBYRANK
    ZREMRANGEBYSCORE ZREMRANGEBYLEX
    XADD XDEL XTRIM XSETID XGROUP XCLAIM XACK""".split()
)
COUNT = re.compile(rb"\*([1-9][0-9]{0,7})\r\n")
LENGTH = re.compile(rb"\$(0|[1-9][0-9]{0,9})\r\n")
#: What is left of a count or a length when a crash tore the file there.
TORN_COUNT = re.compile(rb"\*(?:[1-9][0-9]{0,7}\r?)?")
TORN_LENGTH = re.compile(rb"\$(?:(?:0|[1-9][0-9]{0,9})\r?)?")
LONGEST_HEAD = 16
MAGIC = re.compile(rb"(?:REDIS[0-9]{4}|VALKEY[0-9]{3})")


class _UnfitError(Exception):
    """Why a folder's data is not loaded."""


def set_unfit_aside(folder: Path, *, is_own: bool = False) -> str:
    """Move data that may not be loaded out of the server's way. Returns a sentence about it, or
    empty.

    A folder without such data is sealed. is_own: this process started a server there before. Raises
    RedisError if the data cannot be moved.
    """
    present = [name for name in (FOLDER, OLD, PASSWORD) if os.path.lexists(folder / name)]
    stranger = "" if is_own else foreign(folder)
    why = (stranger if present else "") or unfit(folder)
    # A stranger's password would let the stranger in; one's own stays when only the data is unfit.
    moved = [name for name in present if why and (stranger or name != PASSWORD)]
    ending = f".refused-{secrets.token_hex(4)}"
    try:
        for name in moved:
            (folder / name).rename(folder / f"{name}{ending}")
    except OSError as error:
        raise RedisError(
            f"{folder} contains data that must not be loaded ({why}), and it cannot be moved: "
            f"{error.strerror}; remove {folder}"
        ) from None
    if stranger:
        with suppress(OSError):  # without a seal, a later start resumes from the checkpoint
            seal(folder)
    if not why:
        return ""
    return (
        f"the private server's data was not loaded, because {why}: it is kept in "
        f"{folder / moved[0]}{ending}. A run resumes from the newest checkpoint in its folder"
    )


def unfit(folder: Path) -> str:
    """Why the append-only files may not be loaded; empty if they may, or there are none."""
    try:
        if os.path.lexists(folder / OLD):
            raise _UnfitError(f"{OLD} is in a location that this server does not use")
        place = folder / FOLDER
        if not os.path.lexists(place):
            return ""
        _check_owner(place, stat.S_ISDIR)
        manifest = place / MANIFEST
        if os.path.lexists(manifest):
            for name in _names_in(manifest):
                _check_file(place / name)
    except _UnfitError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or FOLDER} cannot be read ({error.strerror})"
    return ""


def _check_owner(path: Path, is_kind: Callable[[int], bool]) -> os.stat_result:
    """Raises _UnfitError for a link, another kind of file, and for other writers."""
    about = path.lstat()
    if not is_kind(about.st_mode):
        raise _UnfitError(f"{path.name} is a link or of another kind")
    if about.st_uid != os.geteuid():
        raise _UnfitError(f"{path.name} belongs to another user (uid {about.st_uid})")
    if about.st_mode & 0o022:
        raise _UnfitError(f"{path.name} can be written by other users")
    return about


def _names_in(manifest: Path) -> list[str]:
    """The files that a server would load. Raises _UnfitError."""
    if _check_owner(manifest, stat.S_ISREG).st_size > MOST_MANIFEST:
        raise _UnfitError(f"{MANIFEST} is larger than {MOST_MANIFEST} bytes")
    lines = [LINE.fullmatch(line) for line in manifest.read_bytes().splitlines()]
    if not all(lines):
        raise _UnfitError(f"{MANIFEST} contains a line that no private server writes")
    # Files of the history (h) are not loaded but removed, and may be gone.
    return [line[1].decode() for line in lines if line and line[2] != b"h"]


def _check_file(path: Path) -> None:
    """Raises _UnfitError unless the file contains only commands that write plain data."""
    if not os.path.lexists(path):
        raise _UnfitError(f"{path.name} is missing")
    if _check_owner(path, stat.S_ISREG).st_size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if MAGIC.match(data):
            raise _UnfitError(f"{path.name} is a snapshot, which this version does not load")
        _check_commands(path.name, data)


def _check_commands(name: str, data: mmap.mmap) -> None:
    """The last command may be torn, as a crash leaves it."""
    place, size = 0, len(data)
    while place < size:
        count = COUNT.match(data, place)
        if count is None:
            return _check_torn(name, data, place, TORN_COUNT)
        place = count.end()
        for number in range(int(count[1])):
            length = LENGTH.match(data, place)
            if length is None:
                return _check_torn(name, data, place, TORN_LENGTH)
            start = length.end()
            place = start + int(length[1]) + 2
            if place > size:
                if not b"\r\n".startswith(data[place - 2 : size]):
                    raise _UnfitError(f"{name} is damaged at byte {place}")
                return None
            if data[place - 2 : place] != b"\r\n":
                raise _UnfitError(f"{name} is damaged at byte {place}")
            if number == 0 and data[start : place - 2].upper() not in WRITES:
                raise _UnfitError(
                    f"{name} holds the command "
                    f"{_printable(data[start : min(place - 2, start + 20)])}"
                )
    return None


def _check_torn(name: str, data: mmap.mmap, place: int, head: re.Pattern[bytes]) -> None:
    """Raises _UnfitError unless the file ends within a count or a length."""
    rest = bytes(data[place : place + LONGEST_HEAD])
    if rest and (head.fullmatch(rest) is None or place + len(rest) < len(data)):
        raise _UnfitError(f"{name} contains data at byte {place} that no private server writes")


def _printable(word: bytes) -> str:
    return "".join(
        letter if letter.isalnum() else "?" for letter in word.decode("ascii", "replace").upper()
    )
