"""The keyspace as people and programs may look at it: all keys in a table, or one with its whole value decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from es_queue.errors import UsageError
from es_queue.protocol.bounded import key_sizes
from es_queue.protocol.connection import MAX_REPLY
from es_queue.protocol.keys import RunKeys
from master.status.observe import LONGEST_NAME, PROGRESS, Server, text
from master.status.page import FAINT, STRONG, Fields, Page, Part, Table, line
from master.status.values import (
    FIRST_BYTES,
    MOST_SHOWN,
    PREFIX,
    element,
    entry,
    escaped,
    floats,
    kind_of,
    plain,
    run_of,
    string,
)
from master.wording import duration, printable

#: A larger value is described by its size and its first bytes.
MOST_BYTES = 8 * 2**20
#: A stream as large as this is still read at its end.
MOST_STREAM_BYTES = 64 * 2**20
MOST_KEYS = 2000
#: Entries of a stream that are asked for: fewer if those take too much.
NEWEST = (MOST_SHOWN, 100, 10)
SCAN_STEPS = 1000
#: What is read of one key for the table.
GLANCE_BYTES = 16 * 2**10
GLANCE_WIDTH = 80
#: Keys of which the contents are asked for at once: their replies count together.
GLANCES_AT_ONCE = 100
KEY_COLUMNS = ("key", "type", "size", "expires", "content")


@dataclass(frozen=True)
class Key:
    """What Redis says of a key. size: bytes of a string, else items; memory: bytes, None where that was not asked;
    expires: seconds left, None for never."""

    name: str
    type: str
    size: int
    memory: int | None
    expires: float | None

    @property
    def shown_size(self) -> str:
        unit = {"string": "byte", "stream": "entry"}.get(self.type, "item")
        plural = {"entry": "entries"}.get(unit, unit + "s")
        return f"{self.size:,} {unit if self.size == 1 else plural}"

    @property
    def readable(self) -> bool:
        """Whether the whole value is small enough to be read."""
        return self.memory is not None and self.memory <= MOST_BYTES


def checked_key(key: str, run: str | None) -> str:
    """The key itself when it is one of ours, and of the run where one is given. Raises UsageError."""
    if key.startswith(PREFIX) and len(key) <= LONGEST_NAME:
        if run is not None and run_of(key) != run:
            raise UsageError(f"--keys is {printable(key, 60)!r}, which is no key of run {run}: leave out one of the two")
        return key
    raise UsageError(f"--keys shows keys that begin with {PREFIX}, and was given {printable(key, 60)!r}; es-status RUN --keys lists those of a run")


# --- all keys


def keys_page(servers: Sequence[Server], pattern: str) -> Page:
    """The keys of each server that match a pattern, with a glance at each."""
    found: list[tuple[Key, str]] = []
    notes: list[str] = []
    for server in servers:
        names, complete, odd = server.scan(pattern, SCAN_STEPS, MOST_KEYS)
        keys = list(described(server, names))
        found += zip(keys, glances(server, keys), strict=True)
        if not complete:
            notes.append(
                f"there are more keys at {server.name} than es-status looks at, or their names are too long"
            )
        if odd:
            notes.append(f"{odd:,} keys at {server.name} have names that are no text, or too long")
    data = {"keys": [{**facts(key), "content": content} for key, content in found], "notes": notes}
    rows = tuple((printable(key.name), key.type, key.shown_size, lasts(key), content) for key, content in found)
    table: tuple[Part, ...] = (Table(KEY_COLUMNS, rows, ("type", "expires", "size"), frozenset(("size", "expires"))),) if rows else (line("no keys"),)
    return Page(data, (*table, *(line(note, FAINT) for note in notes)))


def described(server: Server, names: Sequence[str]) -> Iterator[Key]:
    """What Redis says of each key that is there."""
    sizes = key_sizes(server.ask, names)
    left = server.ask(("pttl", name) for name in sizes)
    for (name, size), milliseconds in zip(sizes.items(), left, strict=True):
        expires = milliseconds / 1000 if milliseconds is not None and milliseconds >= 0 else None
        yield Key(name, size.type, size.count, size.memory, expires)


def facts(key: Key) -> dict[str, Any]:
    return {"key": printable(key.name), "type": key.type, "size": key.size, "memory": key.memory, "expires": key.expires}


def lasts(key: Key) -> str:
    return "never" if key.expires is None else duration(key.expires)


def glances(server: Server, keys: Sequence[Key]) -> list[str]:
    """A few words on the content of each; of a value that is not small, what its name alone says."""
    found: list[str] = []
    for start in range(0, len(keys), GLANCES_AT_ONCE):
        some = keys[start : start + GLANCES_AT_ONCE]
        questions = [glance_question(key) for key in some]
        answers = iter(server.ask(one for one in questions if one is not None))
        found += [
            glance(key, None if question is None else next(answers))
            for key, question in zip(some, questions, strict=True)
        ]
    return found


def glance_question(key: Key) -> tuple[Any, ...] | None:
    if key.type == "string":
        return ("getrange", key.name, 0, GLANCE_BYTES - 1)
    small = key.memory is not None and key.memory <= GLANCE_BYTES
    if key.type == "stream":
        several = key.memory is not None and key.memory <= MOST_STREAM_BYTES and key.memory <= GLANCE_BYTES * max(1, key.size)
        return ("xrevrange", key.name, "+", "-", 1) if several else None
    whole_value = {"list": ("lrange", key.name, 0, 2), "set": ("smembers", key.name), "zset": ("zrange", key.name, 0, 2), "hash": ("hgetall", key.name)}
    return whole_value[key.type] if small else None


def glance(key: Key, answer: Any) -> str:
    """The words, on one short line."""
    kind = kind_of(key.name)
    if kind in ("checkpoint", "parameters"):
        return "archive of arrays" if kind == "checkpoint" else f"{key.size // 4:,} float32"
    if not answer:
        return ""
    if key.type == "string":
        shown = string(key.name, answer) if len(answer) == key.size else escaped(answer)
        return brief(shown)
    if key.type == "stream":
        newest = entry(key.name, "", answer[0][1])
        return "newest: " + brief({name: value for name, value in newest.items() if name != "id"})
    if key.type == "hash":
        return brief({escaped(name, 60): escaped(value, 60) for name, value in sorted(answer.items(), key=foremost)})
    return brief([element(key.name, one) for one in (sorted(answer) if key.type == "set" else answer)])


def foremost(field: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """Where a field of a hash stands: what says most of a run first."""
    name = text(field[0])
    return (PROGRESS.index(name) if name in PROGRESS else len(PROGRESS), field[0])


def brief(value: Any) -> str:
    """A decoded value in a few words."""
    if isinstance(value, dict):
        return printable(", ".join(f"{name} {brief(one)}" for name, one in value.items() if one not in ("", None)), GLANCE_WIDTH)
    if isinstance(value, list):
        return printable(", ".join(map(brief, value)), GLANCE_WIDTH)
    return printable(value, GLANCE_WIDTH)


# --- one key


def key_page(servers: Sequence[Server], name: str) -> Page:
    """One key with its whole value, of the first of the servers that have it. Raises UsageError where none has."""
    server = next(iter(servers), None)
    key = None if server is None else next(described(server, [name]), None)
    if server is None or key is None:
        raise UsageError(f"there is no key {printable(name)}; es-status --keys lists those that are there")
    value, note = read(server, key)
    head = f"{key.type}, {key.shown_size}, {'never expires' if key.expires is None else 'expires in ' + duration(key.expires)}"
    parts: list[Part] = [line(printable(name), STRONG), line(f"  {head}", FAINT)]
    parts += [line(f"  {note}", FAINT)] if note else []
    return Page({**facts(key), "note": note or None, "value": value}, (*parts, line(""), *shown(value)))


def read(server: Server, key: Key) -> tuple[Any, str]:
    """The decoded value, and what is missing of it."""
    if key.type == "string":
        return read_string(server, key)
    if key.type == "stream" and key.memory is not None and key.memory <= MOST_STREAM_BYTES:
        entries = newest(server, key.name)
        found = [entry(key.name, text(name), fields) for name, fields in reversed(entries)]
        return found, f"the newest {len(found):,} of {key.size:,}" if len(found) < key.size else ""
    if not key.readable:
        memory = "an unknown number of" if key.memory is None else f"{key.memory:,}"
        return None, f"takes {memory} bytes, more than es-status reads ({MOST_BYTES:,})"
    last = MOST_SHOWN - 1
    questions = {"list": ("lrange", key.name, 0, last), "set": ("smembers", key.name), "zset": ("zrange", key.name, 0, last, False, True), "hash": ("hgetall", key.name)}
    (answer,) = server.ask([questions[key.type]])
    if answer is None:
        return None, f"its first items take more than es-status reads ({MAX_REPLY:,} bytes)"
    return items(
        key, answer
    ), f"the first {MOST_SHOWN:,} of {key.size:,}" if key.size > MOST_SHOWN else ""


def newest(server: Server, name: str) -> list[Any]:
    """The newest entries of a stream, newest first: as many as one reply may hold."""
    for count in NEWEST:
        (entries,) = server.ask([("xrevrange", name, "+", "-", count)])
        if entries is not None:
            return list(entries)
    return []


def read_string(server: Server, key: Key) -> tuple[Any, str]:
    if key.size <= MOST_BYTES:
        data = server.string(key.name, MOST_BYTES)
        return string(key.name, data or b""), ""
    (first,) = server.ask([("getrange", key.name, 0, FIRST_BYTES - 1)])
    shown = floats(first)["first"] if kind_of(key.name) == "parameters" else escaped(first or b"")
    return {"first": shown}, f"more than es-status reads ({MOST_BYTES:,} bytes): its beginning alone"


def items(key: Key, answer: Any) -> Any:
    """The items of a value, decoded one by one."""
    if key.type == "hash":
        return {escaped(name, 200): escaped(value, 4000) for name, value in sorted(answer.items())[:MOST_SHOWN]}
    if key.type == "zset":
        return {escaped(member, 200): plain(score) for member, score in answer}
    return [element(key.name, one) for one in (sorted(answer) if key.type == "set" else answer)[:MOST_SHOWN]]


# --- for people


def shown(value: Any) -> list[Part]:
    """A decoded value as fields, a table or lines."""
    if isinstance(value, dict):
        return [Fields(tuple((label, said, "") for label, said in flat(value)))]
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return [table_of(value)] if narrow(value) else [Fields(tuple((str(one.pop("id", place)), words(one), "") for place, one in enumerate(map(dict, value))))]
    if isinstance(value, list):
        return [line(f"  {words(one)}") for one in value]
    return [] if value is None else [line(f"  {words(value)}")]


def flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Label and text of everything in nested maps; the labels of inner ones carry the outer one's."""
    for name, one in value.items():
        label = f"{above}{name}"
        if isinstance(one, dict) and one:
            yield from flat(one, f"{label}.")
        else:
            yield label, words(one)


def narrow(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether maps fit a table: few columns in all."""
    return len({name for one in rows for name in one}) <= 8


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = tuple(dict.fromkeys(name for one in rows for name in one))
    right = frozenset(name for name in columns if all(isinstance(one.get(name, 0), (int, float)) for one in rows))
    return Table(columns, tuple(tuple(words(one.get(name, "")) for name in columns) for one in rows), tuple(reversed(columns[1:])), right)


def words(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, list):
        return ", ".join(map(words, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {words(one)}" for name, one in value.items())
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def pattern_of(run: str | None) -> str:
    """What the names of a run's keys match, or of all runs'."""
    return f"{PREFIX}*" if run is None else f"{RunKeys(run).prefix}*"
