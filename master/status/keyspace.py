"""es-status --keys: a table of the keys in Redis, or one key with its value decoded.

The protocol decodes its own messages. What cannot be decoded is shown as bytes.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.text import Text

from es_queue.errors import DecodeError, UsageError
from es_queue.files import npz_headers, parse_json, read_npz
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol.keys import RUN_ID, RUNS, RunKeys
from es_queue.protocol.messages import KINDS, Block, Task
from es_queue.text import sanitize, to_text
from master.display.panel import FittingTable
from master.status.figures import FIGURES, format_duration
from master.status.snapshot import LONGEST_NAME, RedisReader
from master.status.texts import FAINT, STRONG, Page, PagePart, page_fields

#: The start of every key of es-queue.
KEY_PREFIX = RUNS.partition(":")[0] + ":"
RUN_KEY = re.compile(
    rf"{KEY_PREFIX}(?P<run>{RUN_ID.pattern}):(?P<what>[a-z]+)(?::(?P<of>.*))?", re.DOTALL
)
#: A larger value is described by its size and its first bytes; a stream as large as this is still
#: read at its end.
MOST_BYTES, MOST_STREAM_BYTES, FIRST_BYTES = 2**23, 2**26, 256
#: Keys, and pieces of the keyspace, that are read; of each key for the table.
MOST_KEYS, SCAN_STEPS, PREVIEW_BYTES, PREVIEW_ITEMS, PREVIEW_WIDTH = 2000, 1000, 2**14, 3, 80
#: Items of a value, and of a list within it.
MOST_ITEMS, LONGEST_LIST = 1000, 16
MOST_DEPTH, LONGEST_JSON, LARGEST_INTEGER = 12, 2**18, 2**64
#: Arrays and archives, for the table.
PACKED = {
    "checkpoint": "archive of arrays",
    "parameters": "{:,} float32",
    "results": "records of results in order of arrival",
    "moments": "records of moments in order of arrival",
}
#: How the items of a type are counted, and what they are called.
COUNTS = {
    "string": ("strlen", "byte"),
    "list": ("llen", "item"),
    "set": ("scard", "member"),
    "zset": ("zcard", "member"),
    "hash": ("hlen", "field"),
    "stream": ("xlen", "entry"),
}


@dataclass(frozen=True)
class Key:
    """count: bytes of a string, else items; memory: bytes, as the server estimates them; expires:
    seconds left, None for never; run and what: by the name, such as ``task``; empty for unknown
    names
    """

    name: str
    type: str
    count: int
    memory: int
    expires: float | None
    run: str = ""
    what: str = ""

    @property
    def size(self) -> str:
        """Such as ``1 member`` or ``1,000 entries``."""
        unit = COUNTS[self.type][1]
        units = "entries" if unit == "entry" else f"{unit}s"
        return f"{self.count:,} {unit if self.count == 1 else units}"

    @property
    def expiry(self) -> str:
        return "never" if self.expires is None else format_duration(self.expires)

    def to_json(self) -> dict[str, Any]:
        about = {"key": sanitize(self.name), "type": self.type, "size": self.count}
        return {**about, "memory": self.memory, "expires": self.expires}


def validate_key(key: str, run: str | None) -> str:
    """The whole key, if it is one of es-queue's and of the given run, which need not be repeated:
    ``config`` of run walker is ``es:walker:config``. Raises UsageError.
    """
    if run is not None and not key.startswith(KEY_PREFIX):
        key = f"{RunKeys(run).prefix}{key}"
    if key.startswith(KEY_PREFIX) and len(key) <= LONGEST_NAME:
        match = RUN_KEY.fullmatch(key)
        if run is not None and (match is None or match["run"] != run):
            raise UsageError(
                f"--keys is {sanitize(key, 60)!r}, which is not a key of run {run}: leave out "
                "one of the two"
            )
        return key
    raise UsageError(
        f"--keys is {sanitize(key, 60)!r}: keys begin with {KEY_PREFIX}, like "
        f"{KEY_PREFIX}RUN:config; with a run, the rest is enough: es-status RUN --keys config"
    )


# --- all keys


def make_keys_page(servers: Sequence[RedisReader], run: str | None) -> Page:
    pattern = f"{KEY_PREFIX}*" if run is None else f"{RunKeys(run).prefix}*"
    rows, data, notes = list[tuple[str, ...]](), list[dict[str, Any]](), list[str]()
    for server in servers:
        names, is_complete, odd = scan(server, pattern)
        keys = list(describe_keys(server, names))
        questions = [question_of(key, PREVIEW_ITEMS, PREVIEW_BYTES) for key in keys]
        answers = iter(server.ask(question for question in questions if question))
        for key, question in zip(keys, questions, strict=True):
            content = preview(key, next(answers) if question else None)
            data.append({**key.to_json(), "content": content})
            rows.append((sanitize(key.name), key.type, key.size, key.expiry, content))
        if not is_complete:
            notes.append(f"there are more keys at {server.name} than es-status reads")
        if odd:
            notes.append(f"{odd:,} keys at {server.name} have names that are not text, or too long")
    headers, expendable = ("key", "type", "size", "expires", "content"), ("type", "expires", "size")
    table = (
        FittingTable(headers, rows, ("size", "expires"), expendable) if rows else Text("no keys")
    )
    return Page({"keys": data, "notes": notes}, (table, *(Text(note, FAINT) for note in notes)))


def scan(server: RedisReader, pattern: str) -> tuple[list[str], bool, int]:
    """Names of keys that match a pattern, in order; whether these are all; the number of names
    that are not text, or too long. It reads at most 1000 keys per step.
    """
    cursor, names, odd = 0, set[str](), 0
    for _ in range(SCAN_STEPS):
        (answer,) = server.ask([("scan", cursor, pattern, 1000)])
        if answer is None:
            return sorted(names)[:MOST_KEYS], False, odd
        cursor = int(answer[0])
        for data in answer[1]:
            name = data.decode("utf-8", "replace") if len(data) <= LONGEST_NAME else "�"
            names.update([] if "�" in name else [name])
            odd += "�" in name
        if cursor == 0 or len(names) + odd > MOST_KEYS:
            break
    return sorted(names)[:MOST_KEYS], cursor == 0 and len(names) <= MOST_KEYS, odd


def describe_keys(server: RedisReader, names: Sequence[str]) -> Iterator[Key]:
    """The existing keys."""
    types = map(to_text, server.ask(("type", name) for name in names))
    there = [(name, kind) for name, kind in zip(names, types, strict=True) if kind in COUNTS]
    answers = server.ask(
        question
        for name, kind in there
        for question in ((COUNTS[kind][0], name), ("memory_usage", name, 0), ("pttl", name))
    )
    for (name, kind), count, memory, left in zip(
        there, answers[::3], answers[1::3], answers[2::3], strict=True
    ):
        expires = None if left is None or left < 0 else left / 1000
        size = (count if kind == "string" else memory) or 0
        match = RUN_KEY.fullmatch(name)
        yield Key(
            name, kind, count or 0, size, expires, *(match.group("run", "what") if match else ())
        )


def question_of(key: Key, items: int, most: int) -> tuple[Any, ...] | None:
    """Reads so many items; None for a value of more than ``most`` bytes."""
    if key.type == "stream":
        share = key.memory * min(1.0, items / max(1, key.count))
        is_small = key.memory <= MOST_STREAM_BYTES and share <= most
        return ("xrevrange", key.name, "+", "-", items) if is_small else None
    questions = {
        "string": ("getrange", key.name, 0, most - 1),
        "list": ("lrange", key.name, 0, items - 1),
        "set": ("smembers", key.name),
        "zset": ("zrange", key.name, 0, items - 1, False, True),
        "hash": ("hgetall", key.name),
    }
    return questions[key.type] if key.type == "string" or key.memory <= most else None


def preview(key: Key, answer: Any) -> str:
    """The beginning of a value, on one line."""
    if key.what in PACKED:
        return PACKED[key.what].format(key.count // 4)
    if not answer:
        return ""
    if key.type == "string" and len(answer) < key.count:
        value: Any = escape_bytes(answer)
    elif key.type == "string":
        value = decode_string(key, answer)
    else:
        value = decode_items(key, answer)
    if key.type == "stream":
        value = {name: inner for name, inner in value[-1].items() if name != "id"}
    if isinstance(value, dict) and key.type != "zset":
        value = {name: inner for name, inner in value.items() if inner not in ("", None, [])}
    start = "newest: " if key.type == "stream" else ""
    return sanitize(
        start + format_value(list(value) if key.type == "zset" else value), PREVIEW_WIDTH
    )


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
    expiry = "never expires" if key.expires is None else f"expires in {key.expiry}"
    parts: list[PagePart] = [Text(sanitize(name), STRONG)]
    parts += [
        Text(f"  {line}", FAINT) for line in (f"{key.type}, {key.size}, {expiry}", note) if line
    ]
    data = {**key.to_json(), "note": note or None, "value": value}
    return Page(data, (*parts, Text(""), *value_parts(value)))


def read_value(server: RedisReader, key: Key) -> tuple[Any, str]:
    """The decoded value, and what was left out."""
    question = question_of(key, MOST_ITEMS, MOST_BYTES)
    if question is None:
        return None, f"takes {key.memory:,} bytes, more than es-status reads ({MOST_BYTES:,})"
    if key.type != "string":
        (answer,) = server.ask([question])
        end = "newest" if key.type == "stream" else "first"
        note = f"the {end} {MOST_ITEMS:,} of {key.count:,}" if key.count > MOST_ITEMS else ""
        return decode_items(key, answer or ()), note
    if key.count > MOST_BYTES and key.what != "results":
        (data,) = server.ask([("getrange", key.name, 0, FIRST_BYTES - 1)])
        is_vector = key.what == "parameters"
        first = summarize_floats(data)["first"] if is_vector else escape_bytes(data or b"")
        note = f"more than es-status reads ({MOST_BYTES:,} bytes): only its beginning"
        return {"first": first}, note
    (data,) = server.ask([question])
    if key.what == "results":
        (header,) = server.ask([("get", RunKeys(key.run).task)])
        return decode_results(data or b"", header or b""), ""
    return decode_string(key, data or b""), ""


def value_parts(value: Any) -> list[PagePart]:
    if isinstance(value, dict):
        return [page_fields(flatten(value))]
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        rows = ((number, dict(item)) for number, item in enumerate(value))
        return [
            page_fields([(str(one.pop("id", number)), format_value(one)) for number, one in rows])
        ]
    items = value if isinstance(value, list) else [] if value is None else [value]
    return [Text(f"  {format_value(item)}") for item in items]


def flatten(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Label and text of everything in nested maps."""
    for name, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from flatten(inner, f"{above}{name}.")
        else:
            yield f"{above}{name}", format_value(inner) or " "


def format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(inner)}" for name, inner in value.items())
    return json.dumps(value) if isinstance(value, bool) or value is None else str(value)


# --- decoding


def escape_bytes(data: bytes, longest: int = FIRST_BYTES) -> str:
    """Bytes as text that is safe for a terminal; the number of omitted ones is appended."""
    try:
        text = sanitize(data[:longest].decode("utf-8"), longest)
    except UnicodeDecodeError:
        text = ascii(data[:longest].decode("latin-1"))[1:-1]
    return text if len(data) <= longest else f"{text} … ({len(data):,} bytes)"


def to_plain_json(value: Any, depth: int = 0) -> Any:
    """Decoded JSON or msgpack as JSON that is escaped, finite and not too deep; long lists are cut,
    with a remark.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= LARGEST_INTEGER else "a number that is too large"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return escape_bytes(value)
    if isinstance(value, Mapping) and depth < MOST_DEPTH:
        kept = list(value.items())[:MOST_ITEMS]
        rest = len(value) - len(kept)
        plain = {sanitize(name, 200): to_plain_json(inner, depth + 1) for name, inner in kept}
        return plain | ({"…": f"{rest:,} more"} if rest else {})
    if isinstance(value, (list, tuple)) and depth < MOST_DEPTH:
        items = [to_plain_json(inner, depth + 1) for inner in value[:LONGEST_LIST]]
        rest = len(value) - len(items)
        return [*items, f"… {rest:,} more"] if rest else items
    return sanitize(value) if isinstance(value, str) else "…"


def decode_string(key: Key, data: bytes) -> Any:
    decoders: dict[str, Callable[[bytes], Any]] = {
        "config": lambda data: to_plain_json(parse_json(data, LONGEST_JSON, finite=False)),
        "task": decode_task,
        "parameters": lambda data: {**summarize_floats(data), "digest": bytes_digest(data)},
        "checkpoint": decode_checkpoint,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy warns of odd archives on the terminal
            return decoders.get(key.what, escape_bytes)(data)
    except Exception as error:  # zipfile and numpy raise many kinds for damaged data
        reason = sanitize(error, 200) or type(error).__name__
        return {"cannot be decoded": reason, "bytes": escape_bytes(data)}


def decode_task(data: bytes) -> dict[str, Any]:
    """The header of a publication; its spans in words. Raises DecodeError."""
    task = Task.decode(data)
    spans = [
        f"{KINDS[kind]} {start}-{stop - 1}" if 0 <= kind < len(KINDS) else f"{kind} {start} {stop}"
        for kind, start, stop in struct.iter_unpack("<3i", task.spans)
    ]
    arrays = {name: summarize_floats(getattr(task, name)) for name in ("obs_mean", "obs_std")}
    return {**vars(task), "spans": spans[:LONGEST_LIST], **arrays}


def summarize_floats(data: bytes) -> dict[str, Any]:
    """Figures of little-endian float32. Raises ValueError for invalid bytes."""
    # start-up: numpy, for keys that hold arrays
    import numpy as np

    values = np.frombuffer(data, "<f4").astype(np.float64)
    sound = values[np.isfinite(values)]
    figures: dict[str, Any] = {"count": len(values)}
    if len(sound):
        figures["norm"] = six_digits(math.sqrt(float(np.square(sound).sum())))
        figures |= {"min": six_digits(sound.min()), "max": six_digits(sound.max())}
    if len(sound) < len(values):
        figures["not finite"] = len(values) - len(sound)
    return {**figures, "first": [to_plain_json(six_digits(value)) for value in values[:8]]}


def six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def decode_checkpoint(data: bytes) -> dict[str, Any]:
    """Names, types and shapes of an archive's arrays, and its meta without long lists; no other
    array is loaded. Raises RunFolderError, or ValueError, for a damaged archive.
    """
    _, meta = read_npz(data, ())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        headers = npz_headers(archive)
    arrays = {
        sanitize(name, 100): f"{dtype.name}[{', '.join(map(str, shape))}]"
        for name, (shape, dtype) in headers.items()
    }
    return {"bytes": len(data), "meta": to_plain_json(meta), "arrays": arrays}


def decode_results(data: bytes, header: bytes) -> dict[str, Any]:
    """The newest results of a publication: rows of its table, and the fitness of the first
    individual.
    """
    # start-up: numpy, for keys that hold arrays
    import numpy as np

    try:
        size = Task.decode(header).row
        # what every record begins with
        names, formats = ("row", "failure", "seconds", "fitness"), ("<i4", "u1", "<f4", "<f8")
        layout = {"names": names, "formats": formats, "offsets": (0, 8, 9, 13), "itemsize": size}
        dtype: Any = np.dtype(layout)  # type: ignore[call-overload]
        records: Any = np.frombuffer(data, dtype, len(data) // size)
    except (DecodeError, ValueError, ZeroDivisionError) as error:
        return {"not readable": sanitize(error), "bytes": escape_bytes(data, 80)}
    newest = records[-LONGEST_LIST:]
    return {
        "results": len(records),
        "failed": int((records["failure"] > 0).sum()),
        "newest rows": newest["row"].tolist(),
        "fitness": [to_plain_json(six_digits(value)) for value in newest["fitness"].tolist()],
        "seconds": six_digits(float(records["seconds"].mean())) if len(records) else None,
    }


def decode_items(key: Key, answer: Any) -> Any:
    """The value of any type but a string."""
    if key.type == "stream":  # newest first
        return [
            {"id": to_text(name), **decode_fields((values or {}).items())}
            for name, values in reversed(answer)
        ]
    if key.type == "hash":
        order = {name: place for place, name in enumerate(FIGURES)}
        known = sorted(answer.items(), key=lambda item: (order.get(to_text(item[0]), 999), item[0]))
        return decode_fields(known, 4000)
    if key.type == "zset":
        return {escape_bytes(member, 200): to_plain_json(score) for member, score in answer}
    items = sorted(answer) if key.type == "set" else answer
    return [decode_element(key, item) for item in items[:MOST_ITEMS]]


def decode_fields(
    fields: Iterable[tuple[bytes, bytes]], longest: int = FIRST_BYTES
) -> dict[str, str]:
    kept = islice(fields, MOST_ITEMS)
    return {escape_bytes(name, 200): escape_bytes(value, longest) for name, value in kept}


def decode_element(key: Key, data: bytes) -> Any:
    try:
        if key.what in ("todo", "claims"):
            block = Block.decode(data)
            last = "" if block.stop - block.start == 1 else f"-{block.stop - 1}"
            about = {"publication": block.publication, "kind": KINDS[block.kind]}
            return {**about, "slots": f"{block.start}{last}"}
        if key.what in ("errors", "commands"):
            report = to_plain_json(parse_json(data, LONGEST_JSON, finite=False))
            return report if isinstance(report, dict) else {"value": report}
    except DecodeError:
        return {"not readable": escape_bytes(data)}
    return escape_bytes(data)
