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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
#: Only the beginning of a larger string is shown.
MOST_BYTES, FIRST_BYTES = 2**23, 256
#: Keys, and steps of a thousand keys in which they are found; of each key for the table.
MOST_KEYS, SCAN_STEPS, PREVIEW_BYTES, PREVIEW_ITEMS, PREVIEW_WIDTH = 2000, 1000, 2**14, 3, 80
#: Items of a value, and of a list within it.
MOST_ITEMS, LONGEST_LIST, MOST_DEPTH, LONGEST_JSON = 1000, 16, 12, 2**18
#: What arrays and archives contain, for the table.
PACKED = {
    "checkpoint": "archive of arrays",
    "parameters": "{:,} float32",
    "results": "records of results in order of arrival",
    "moments": "records of moments in order of arrival",
}
#: How the items of a type are counted, and what they are called.
COUNTS = {
    "string": ("strlen", "byte", "bytes"),
    "list": ("llen", "item", "items"),
    "set": ("scard", "member", "members"),
    "zset": ("zcard", "member", "members"),
    "hash": ("hlen", "field", "fields"),
    "stream": ("xlen", "entry", "entries"),
}


@dataclass(frozen=True)
class Key:
    """count: bytes of a string, else items; expires: seconds left, None for never"""

    raw: bytes
    type: str
    count: int
    expires: float | None

    @property
    def name(self) -> str:
        return sanitize(to_text(self.raw))

    def part(self, which: str) -> str:
        """``run`` or ``what``, such as task; empty for unknown names."""
        match = RUN_KEY.fullmatch(to_text(self.raw))
        return match[which] if match else ""

    @property
    def size(self) -> str:
        """Such as ``1 member`` or ``1,000 entries``."""
        return f"{self.count:,} {COUNTS[self.type][1 if self.count == 1 else 2]}"

    def question(self, items: int, most: int) -> tuple[Any, ...]:
        """Reads ``most`` bytes of a string, else the first items, or the newest of a stream."""
        questions = {
            "string": ("getrange", self.raw, 0, most - 1),
            "list": ("lrange", self.raw, 0, items - 1),
            "set": ("smembers", self.raw),
            "zset": ("zrange", self.raw, 0, items - 1, False, True),
            "hash": ("hgetall", self.raw),
            "stream": ("xrevrange", self.raw, "+", "-", items),
        }
        return questions[self.type]

    def to_json(self) -> dict[str, Any]:
        about = {"key": self.name, "type": self.type, "size": self.count}
        return {**about, "expires": self.expires}


def validate_key(key: str, run: str | None) -> str:
    """The whole key, if it is one of es-queue's and of the given run, which need not be repeated:
    ``config`` of run walker is ``es:walker:config``. Raises UsageError.
    """
    if run is not None and not key.startswith(KEY_PREFIX):
        key = f"{RunKeys(run).prefix}{key}"
    if not key.startswith(KEY_PREFIX) or len(key) > LONGEST_NAME:
        raise UsageError(
            f"--keys is {sanitize(key, 60)!r}: keys begin with {KEY_PREFIX}, like "
            f"{KEY_PREFIX}RUN:config; with a run, the rest is enough: es-status RUN --keys config"
        )
    match = RUN_KEY.fullmatch(key)
    if run is not None and (match is None or match["run"] != run):
        raise UsageError(
            f"--keys is {sanitize(key, 60)!r}, which is not a key of run {run}: leave out "
            "one of the two"
        )
    return key


# --- all keys


def make_keys_page(servers: Sequence[RedisReader], run: str | None) -> Page:
    pattern = f"{KEY_PREFIX}*" if run is None else f"{RunKeys(run).prefix}*"
    rows, data, notes = list[list[str]](), list[dict[str, Any]](), list[str]()
    for server in servers:
        names, is_complete = scan(server, pattern)
        keys = describe_keys(server, names)
        answers = server.ask(key.question(PREVIEW_ITEMS, PREVIEW_BYTES) for key in keys)
        for key, answer in zip(keys, answers, strict=True):
            content = preview(key, answer)
            data.append({**key.to_json(), "content": content})
            expiry = "never" if key.expires is None else format_duration(key.expires)
            rows.append([key.name, key.type, key.size, expiry, content])
        if not is_complete:
            notes.append(f"there are more keys at {server.name} than es-status reads")
    headers, expendable = ("key", "type", "size", "expires", "content"), ("type", "expires", "size")
    table = FittingTable(headers, rows, ("size", "expires"), expendable)
    lines = [Text(note, FAINT) for note in notes]
    return Page({"keys": data, "notes": notes}, (table if rows else Text("no keys"), *lines))


def scan(server: RedisReader, pattern: str) -> tuple[list[bytes], bool]:
    """Names of keys that match a pattern, in order, and whether these are all."""
    cursor, names = 0, set[bytes]()
    for _ in range(SCAN_STEPS):
        (answer,) = server.ask([("scan", cursor, pattern, 1000)])
        cursor, found = answer or (0, [])
        names.update(found)
        if not cursor or len(names) > MOST_KEYS:
            break
    return sorted(names)[:MOST_KEYS], not cursor and len(names) <= MOST_KEYS


def describe_keys(server: RedisReader, names: Sequence[str | bytes]) -> list[Key]:
    """The existing keys."""
    raw = [name if isinstance(name, bytes) else name.encode() for name in names]
    types = map(to_text, server.ask(("type", name) for name in raw))
    there = [(name, kind) for name, kind in zip(raw, types, strict=True) if kind in COUNTS]
    counts = server.ask((COUNTS[kind][0], name) for name, kind in there)
    lives = server.ask(("pttl", name) for name, _ in there)
    return [
        Key(*name_and_type, count or 0, None if left is None or left < 0 else left / 1000)
        for name_and_type, count, left in zip(there, counts, lives, strict=True)
    ]


def preview(key: Key, answer: Any) -> str:
    """The beginning of a value, on one line."""
    if key.part("what") in PACKED:
        return PACKED[key.part("what")].format(key.count // 4)
    if not answer:
        return ""
    is_cut = key.type == "string" and len(answer) < key.count
    value: Any = escape_bytes(answer) if is_cut else decode(key, answer)
    start = ""
    if key.type == "stream":
        start, value = "newest: ", {**value[-1], "id": ""}
    if key.type == "zset":
        value = list(value)
    if isinstance(value, dict):
        value = {name: inner for name, inner in value.items() if inner not in ("", None, [])}
    return sanitize(start + format_value(value), PREVIEW_WIDTH)


# --- one key


def make_key_page(servers: Sequence[RedisReader], name: str) -> Page | None:
    """One key with its whole value, from the first server that has it, if any."""
    for server in servers:
        for key in describe_keys(server, [name]):
            value, note = read_value(server, key)
            expires = key.expires
            life = "never expires" if expires is None else f"expires in {format_duration(expires)}"
            about = [f"{key.type}, {key.size}, {life}", *filter(None, [note])]
            lines = [Text(key.name, STRONG), *(Text(f"  {one}", FAINT) for one in about), Text("")]
            data = {**key.to_json(), "note": note or None, "value": value}
            return Page(data, (*lines, *value_parts(value)))
    return None


def read_value(server: RedisReader, key: Key) -> tuple[Any, str]:
    """The decoded value, and what was left out."""
    what = key.part("what")
    is_long = key.type == "string" and key.count > MOST_BYTES and what != "results"
    question = key.question(MOST_ITEMS, FIRST_BYTES if is_long else MOST_BYTES)
    (answer,) = server.ask([question])
    if key.type == "string" and what == "results":
        (header,) = server.ask([("get", RunKeys(key.part("run")).task)])
        return decode_results(answer or b"", header or b""), ""
    if is_long:
        is_vector = what == "parameters"
        values = summarize_floats(answer)["first"] if is_vector else escape_bytes(answer or b"")
        note = f"more than es-status reads ({MOST_BYTES:,} bytes): only its beginning"
        return {"first": values}, note
    end = "newest" if key.type == "stream" else "first"
    is_cut = key.type != "string" and key.count > MOST_ITEMS
    note = f"the {end} {MOST_ITEMS:,} of {key.count:,}" if is_cut else ""
    return decode(key, answer or b""), note


def value_parts(value: Any) -> list[PagePart]:
    if isinstance(value, dict):
        return [page_fields(flatten(value))]
    items = value if isinstance(value, list) else [] if value is None else [value]
    if items and all(isinstance(item, dict) for item in items):
        rows = ((number, dict(item)) for number, item in enumerate(items))
        return [
            page_fields([(str(one.pop("id", number)), format_value(one)) for number, one in rows])
        ]
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
    if isinstance(value, Mapping) and depth < MOST_DEPTH:
        kept = islice(value.items(), MOST_ITEMS)
        return {sanitize(name, 200): to_plain_json(inner, depth + 1) for name, inner in kept}
    if isinstance(value, (list, tuple)) and depth < MOST_DEPTH:
        items = [to_plain_json(inner, depth + 1) for inner in value[:LONGEST_LIST]]
        rest = len(value) - len(items)
        return [*items, f"… {rest:,} more"] if rest else items
    if isinstance(value, bytes):
        return escape_bytes(value)
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value if value is None or is_number else sanitize(value)


def decode(key: Key, answer: Any) -> Any:
    """What the server has answered, as plain JSON."""
    what = key.part("what")
    if key.type == "string":
        decoders: dict[str, Callable[[bytes], Any]] = {
            "config": decode_json,
            "task": decode_task,
            "parameters": lambda data: {**summarize_floats(data), "digest": bytes_digest(data)},
            "checkpoint": decode_checkpoint,
        }
        return attempt(decoders.get(what, escape_bytes), answer)
    if key.type in ("list", "set"):
        decoders = {"todo": decode_block, "claims": decode_block}
        decoders |= dict.fromkeys(("errors", "commands"), decode_json)
        items = sorted(answer) if key.type == "set" else answer
        return [attempt(decoders.get(what, escape_bytes), item) for item in items[:MOST_ITEMS]]
    if key.type == "zset":
        return {escape_bytes(member, 200): to_plain_json(score) for member, score in answer}
    if key.type == "stream":  # newest first
        return [
            {"id": to_text(name), **decode_fields(values or {})}
            for name, values in reversed(answer)
        ]
    order = {name.encode(): place for place, name in enumerate(FIGURES)}
    names = sorted(answer, key=lambda name: (order.get(name, len(order)), name))
    return decode_fields({name: answer[name] for name in names}, 4000)


def attempt(decode_value: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy warns of odd archives on the terminal
            return decode_value(data)
    except Exception as error:  # zipfile and numpy raise many kinds for damaged data
        reason = sanitize(error, 200) or type(error).__name__
        return {"cannot be decoded": reason, "bytes": escape_bytes(data)}


def decode_fields(values: Mapping[bytes, bytes], longest: int = FIRST_BYTES) -> dict[str, str]:
    kept = islice(values.items(), MOST_ITEMS)
    return {escape_bytes(name, 200): escape_bytes(value, longest) for name, value in kept}


def decode_json(data: bytes) -> Any:
    return to_plain_json(parse_json(data, LONGEST_JSON, finite=False))


def decode_block(data: bytes) -> dict[str, Any]:
    block = Block.decode(data)
    last = "" if block.stop - block.start == 1 else f"-{block.stop - 1}"
    about = {"publication": block.publication, "kind": KINDS[block.kind]}
    return {**about, "slots": f"{block.start}{last}"}


def decode_task(data: bytes) -> dict[str, Any]:
    """The header of a publication; its spans in words."""
    task = Task.decode(data)
    spans = [
        f"{KINDS[kind]} {start}-{stop - 1}" if 0 <= kind < len(KINDS) else f"{kind} {start} {stop}"
        for kind, start, stop in struct.iter_unpack("<3i", task.spans)
    ]
    arrays = {name: summarize_floats(getattr(task, name)) for name in ("obs_mean", "obs_std")}
    return {**vars(task), "spans": spans[:LONGEST_LIST], **arrays}


def summarize_floats(data: bytes) -> dict[str, Any]:
    """Figures of little-endian float32."""
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
    array is loaded.
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
