"""The keyspace for people and programs: a table of keys, or one key with its value decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from es_queue.errors import UsageError
from es_queue.protocol.keys import RunKeys
from es_queue.text import sanitize, to_text
from master.display.format import format_duration
from master.display.terminal import FittingTable
from master.status.redis_reader import LONGEST_NAME, PROGRESS_FIELDS, RedisReader
from master.status.render import FAINT, STRONG, Page, PagePart, page_fields
from master.status.values import (
    FIRST_BYTES,
    KEY_PREFIX,
    MOST_ITEMS,
    decode_element,
    decode_entry,
    decode_results,
    decode_string,
    escape_bytes,
    kind_of,
    run_of,
    summarize_floats,
    task_key,
    to_plain_json,
)

#: A larger value is described by its size and its first bytes.
MOST_BYTES = 8 * 2**20
#: A stream as large as this is still read at its end.
MOST_STREAM_BYTES = 64 * 2**20
MOST_KEYS = 2000
SCAN_STEPS = 1000
#: What is read of one key for the table.
PREVIEW_BYTES = 16 * 2**10
PREVIEW_WIDTH = 80
#: Keys of which the contents are asked for at once: their replies count together.
GLANCES_AT_ONCE = 100
#: Of a table of decoded items; more stand below each other.
MOST_COLUMNS = 8
#: Keys with more items are not measured.
MAX_MEASURED = 100_000
COUNT_COMMANDS = {
    "string": "strlen",
    "list": "llen",
    "set": "scard",
    "zset": "zcard",
    "hash": "hlen",
    "stream": "xlen",
}
KEY_COLUMNS = ("key", "type", "size", "expires", "content")


@dataclass(frozen=True)
class Key:
    """A key with its size.

    type: of COUNT_COMMANDS; count: bytes of a string, else items; memory: bytes, None if there are
    too many items to measure; expires: seconds left, None for never
    """

    name: str
    type: str
    count: int
    memory: int | None
    expires: float | None

    def format_count(self) -> str:
        """Such as ``1 member`` or ``1,000 entries``."""
        unit, units = {
            "string": ("byte", "bytes"),
            "set": ("member", "members"),
            "zset": ("member", "members"),
            "hash": ("field", "fields"),
            "stream": ("entry", "entries"),
        }.get(self.type, ("item", "items"))
        return f"{self.count:,} {unit if self.count == 1 else units}"


def validate_key(key: str, run: str | None) -> str:
    """The whole key, if it is one of es-queue's and of the given run, which need not be repeated:
    ``config`` of run walker is ``es:walker:config``. Raises UsageError.
    """
    if run is not None and not key.startswith(KEY_PREFIX):
        key = f"{RunKeys(run).prefix}{key}"
    if key.startswith(KEY_PREFIX) and len(key) <= LONGEST_NAME:
        if run is not None and run_of(key) != run:
            raise UsageError(
                f"--keys is {sanitize(key, 60)!r}, which is not a key of run {run}: leave out "
                f"one of the two"
            )
        return key
    raise UsageError(
        f"--keys is {sanitize(key, 60)!r}: keys begin with {KEY_PREFIX}, like "
        f"{KEY_PREFIX}RUN:config; with a run, the rest is enough: es-status RUN --keys config"
    )


# --- all keys


def make_keys_page(servers: Sequence[RedisReader], pattern: str) -> Page:
    previews: list[tuple[Key, str]] = []
    notes: list[str] = []
    for server in servers:
        names, complete, odd = server.scan(pattern, SCAN_STEPS, MOST_KEYS)
        keys = list(describe_keys(server, names))
        previews += zip(keys, read_previews(server, keys), strict=True)
        if not complete:
            notes.append(
                f"there are more keys at {server.name} than es-status reads, or their names are "
                f"too long"
            )
        if odd:
            notes.append(f"{odd:,} keys at {server.name} have names that are not text, or too long")
    data = {
        "keys": [{**key_fields(key), "content": content} for key, content in previews],
        "notes": notes,
    }
    rows = tuple(
        (
            sanitize(key.name),
            key.type,
            key.format_count(),
            "never" if key.expires is None else format_duration(key.expires),
            content,
        )
        for key, content in previews
    )
    table: tuple[PagePart, ...] = (
        (FittingTable(KEY_COLUMNS, rows, ("size", "expires"), ("type", "expires", "size")),)
        if rows
        else (Text("no keys"),)
    )
    return Page(data, (*table, *(Text(note, FAINT) for note in notes)))


def describe_keys(server: RedisReader, names: Sequence[str]) -> Iterator[Key]:
    """The existing keys. The server visits each item of a key to measure it, so larger ones are not
    measured.
    """
    kinds = [to_text(kind) for kind in server.ask(("type", name) for name in names)]
    there = [
        (name, kind) for name, kind in zip(names, kinds, strict=True) if kind in COUNT_COMMANDS
    ]
    counts = server.ask((COUNT_COMMANDS[kind], name) for name, kind in there)
    small = [
        name
        for (name, kind), count in zip(there, counts, strict=True)
        if kind != "string" and (count or 0) <= MAX_MEASURED
    ]
    sizes = server.ask(("memory_usage", name, 0) for name in small)
    memory = dict(zip(small, sizes, strict=True))
    left = server.seconds_left({name: name for name, _ in there})
    for (name, kind), count in zip(there, counts, strict=True):
        size = count if kind == "string" else memory.get(name)
        yield Key(name, kind, count or 0, size, left.get(name))


def key_fields(key: Key) -> dict[str, Any]:
    return {
        "key": sanitize(key.name),
        "type": key.type,
        "size": key.count,
        "memory": key.memory,
        "expires": key.expires,
    }


def read_previews(server: RedisReader, keys: Sequence[Key]) -> list[str]:
    previews: list[str] = []
    for start in range(0, len(keys), GLANCES_AT_ONCE):
        some = keys[start : start + GLANCES_AT_ONCE]
        questions = [preview_query(key) for key in some]
        answers = iter(server.ask(question for question in questions if question is not None))
        previews += [
            format_preview(key, None if question is None else next(answers))
            for key, question in zip(some, questions, strict=True)
        ]
    return previews


def preview_query(key: Key) -> tuple[Any, ...] | None:
    if key.type == "string":
        return ("getrange", key.name, 0, PREVIEW_BYTES - 1)
    small = key.memory is not None and key.memory <= PREVIEW_BYTES
    if key.type == "stream":
        several = (
            key.memory is not None
            and key.memory <= MOST_STREAM_BYTES
            and key.memory <= PREVIEW_BYTES * max(1, key.count)
        )
        return ("xrevrange", key.name, "+", "-", 1) if several else None
    whole_value = {
        "list": ("lrange", key.name, 0, 2),
        "set": ("smembers", key.name),
        "zset": ("zrange", key.name, 0, 2),
        "hash": ("hgetall", key.name),
    }
    return whole_value[key.type] if small else None


def format_preview(key: Key, answer: Any) -> str:
    kind = kind_of(key.name)
    if kind in ("checkpoint", "parameters"):
        return "archive of arrays" if kind == "checkpoint" else f"{key.count // 4:,} float32"
    if kind in ("results", "moments"):
        return f"records of {kind} in order of arrival"
    if not answer:
        return ""
    if key.type == "string":
        is_whole = len(answer) == key.count
        return format_brief(decode_string(key.name, answer) if is_whole else escape_bytes(answer))
    if key.type == "stream":
        newest = decode_entry("", answer[0][1])
        del newest["id"]
        return f"newest: {format_brief(newest)}"
    if key.type == "hash":
        fields = sorted(answer.items(), key=field_order)
        return format_brief(
            {escape_bytes(name, 60): escape_bytes(text, 60) for name, text in fields}
        )
    return format_brief(decode_items(key, answer))


def field_order(field: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """The most informative first."""
    name = to_text(field[0])
    return (
        PROGRESS_FIELDS.index(name) if name in PROGRESS_FIELDS else len(PROGRESS_FIELDS),
        field[0],
    )


def format_brief(value: Any) -> str:
    if isinstance(value, dict):
        known = {name: inner for name, inner in value.items() if inner not in ("", None)}
        value = ", ".join(f"{name} {format_brief(inner)}" for name, inner in known.items())
    elif isinstance(value, list):
        value = ", ".join(map(format_brief, value))
    return sanitize(value, PREVIEW_WIDTH)


# --- one key


def make_key_page(servers: Sequence[RedisReader], name: str) -> Page:
    """One key with its whole value, from the first server that has it. Raises UsageError if none
    has.
    """
    server = next(iter(servers), None)
    key = None if server is None else next(describe_keys(server, [name]), None)
    if server is None or key is None:
        raise UsageError(f"there is no key {sanitize(name)}; es-status --keys lists the keys")
    value, note = read_value(server, key)
    expiry = (
        "never expires" if key.expires is None else f"expires in {format_duration(key.expires)}"
    )
    head = f"{key.type}, {key.format_count()}, {expiry}"
    parts: list[PagePart] = [Text(sanitize(name), STRONG), Text(f"  {head}", FAINT)]
    parts += [Text(f"  {note}", FAINT)] if note else []
    return Page(
        {**key_fields(key), "note": note or None, "value": value},
        (*parts, Text(""), *value_parts(value)),
    )


def read_value(server: RedisReader, key: Key) -> tuple[Any, str]:
    """The decoded value, and what was left out."""
    if key.type == "string":
        return read_string(server, key)
    if key.type == "stream" and key.memory is not None and key.memory <= MOST_STREAM_BYTES:
        (entries,) = server.ask([("xrevrange", key.name, "+", "-", MOST_ITEMS)])
        decoded = [decode_entry(to_text(name), fields) for name, fields in reversed(entries or ())]
        is_whole = len(decoded) >= key.count
        return decoded, "" if is_whole else f"the newest {len(decoded):,} of {key.count:,}"
    if key.memory is None or key.memory > MOST_BYTES:
        memory = "an unknown number of" if key.memory is None else f"{key.memory:,}"
        return None, f"takes {memory} bytes, more than es-status reads ({MOST_BYTES:,})"
    last = MOST_ITEMS - 1
    questions = {
        "list": ("lrange", key.name, 0, last),
        "set": ("smembers", key.name),
        "zset": ("zrange", key.name, 0, last, False, True),
        "hash": ("hgetall", key.name),
    }
    (answer,) = server.ask([questions[key.type]])
    note = f"the first {MOST_ITEMS:,} of {key.count:,}" if key.count > MOST_ITEMS else ""
    if key.type == "zset":
        scores = {escape_bytes(member, 200): to_plain_json(score) for member, score in answer or ()}
        return scores, note
    return decode_items(key, answer or ()), note


def read_string(server: RedisReader, key: Key) -> tuple[Any, str]:
    if kind_of(key.name) == "results":
        (header,) = server.ask([("get", task_key(key.name))])
        (newest,) = server.ask([("getrange", key.name, 0, MOST_BYTES - 1)])
        return decode_results(newest or b"", header or b""), ""
    if key.count <= MOST_BYTES:
        return decode_string(key.name, server.read_string(key.name, MOST_BYTES) or b""), ""
    (first,) = server.ask([("getrange", key.name, 0, FIRST_BYTES - 1)])
    is_vector = kind_of(key.name) == "parameters"
    beginning = summarize_floats(first)["first"] if is_vector else escape_bytes(first or b"")
    note = f"more than es-status reads ({MOST_BYTES:,} bytes): only its beginning"
    return {"first": beginning}, note


def decode_items(key: Key, answer: Any) -> Any:
    if key.type == "hash":
        fields = sorted(answer.items())[:MOST_ITEMS]
        return {escape_bytes(name, 200): escape_bytes(value, 4000) for name, value in fields}
    items = sorted(answer) if key.type == "set" else answer
    return [decode_element(key.name, item) for item in items[:MOST_ITEMS]]


# --- for people


def value_parts(value: Any) -> list[PagePart]:
    if isinstance(value, dict):
        return [page_fields(list(flatten(value)))]
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        if len({name for row in value for name in row}) <= MOST_COLUMNS:
            return [make_table(value)]
        rows = enumerate(map(dict, value))
        return [
            page_fields([(str(row.pop("id", place)), format_value(row)) for place, row in rows])
        ]
    if isinstance(value, list):
        return [Text(f"  {format_value(item)}") for item in value]
    return [] if value is None else [Text(f"  {format_value(value)}")]


def flatten(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Label and text of everything in nested maps."""
    for name, inner in value.items():
        label = f"{above}{name}"
        if isinstance(inner, dict) and inner:
            yield from flatten(inner, f"{label}.")
        else:
            yield label, format_value(inner)


def make_table(rows: Sequence[Mapping[str, Any]]) -> FittingTable:
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    right = {
        name for name in columns if all(isinstance(row.get(name, 0), (int, float)) for row in rows)
    }
    cells = [[format_value(row.get(name, "")) for name in columns] for row in rows]
    return FittingTable(columns, cells, right, columns[:0:-1])


def format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(inner)}" for name, inner in value.items())
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def pattern_of(run: str | None) -> str:
    return f"{KEY_PREFIX}*" if run is None else f"{RunKeys(run).prefix}*"
