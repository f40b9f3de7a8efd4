"""The decoder of values in Redis, for es-status, its page, its view of keys and the doctor.

The protocol decodes its own messages. Unreadable values are shown as bytes.
"""

from __future__ import annotations

import io
import math
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from es_queue.errors import DecodeError
from es_queue.files import npz_headers, parse_json, read_npz
from es_queue.numerics.fingerprint import bytes_digest
from es_queue.protocol.keys import RUN_ID, RUNS
from es_queue.protocol.messages import KINDS, Block, Task
from es_queue.text import sanitize
from master.storage.metrics_files import parse_json_lines

#: Where every key of es-queue begins.
KEY_PREFIX = RUNS.partition(":")[0] + ":"
RUN_KEY = re.compile(
    rf"{KEY_PREFIX}(?P<run>{RUN_ID.pattern}):(?P<what>[a-z]+)(?::(?P<of>.*))?", re.DOTALL
)
MOST_ITEMS = 1000
FIRST_FLOATS = 8
FIRST_BYTES = 256
MOST_DEPTH = 12
LONGEST_JSON = 2**18
LONGEST_LIST = 16
#: Longer whole numbers cannot be told from an attack on whoever reads them.
LARGEST_INTEGER = 2**64


def kind_of(key: str) -> str:
    """A key's content by its name, such as ``task`` or ``results``; empty for unknown names."""
    match = RUN_KEY.fullmatch(key)
    return match["what"] if match else "runs" if key == RUNS else ""


def run_of(key: str) -> str:
    match = RUN_KEY.fullmatch(key)
    return match["run"] if match else ""


# --- any bytes


def escape_bytes(data: bytes, longest: int = FIRST_BYTES) -> str:
    """Bytes as text that is safe for a terminal; the number of omitted ones is appended."""
    try:
        text = sanitize(data[:longest].decode("utf-8"), longest)
    except UnicodeDecodeError:
        text = "".join(
            chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}"
            for byte in data[:longest]
        )
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
    if isinstance(value, (bytes, bytearray)):
        return escape_bytes(bytes(value))
    if isinstance(value, Mapping) and depth < MOST_DEPTH:
        kept = list(value.items())[:MOST_ITEMS]
        return {
            sanitize(name, 200): to_plain_json(inner, depth + 1) for name, inner in kept
        } | _count_rest(len(value) - len(kept))
    if isinstance(value, (list, tuple)) and depth < MOST_DEPTH:
        kept = [to_plain_json(inner, depth + 1) for inner in value[:LONGEST_LIST]]
        return (
            kept if len(value) <= LONGEST_LIST else [*kept, f"… {len(value) - LONGEST_LIST:,} more"]
        )
    return sanitize(value) if isinstance(value, str) else "…"


def _count_rest(count: int) -> dict[str, str]:
    return {"…": f"{count:,} more"} if count > 0 else {}


def load_json(data: bytes) -> Any:
    """JSON decoded and made plain. Raises DecodeError for invalid JSON and for much of it, because
    decoding takes twenty times as much memory.
    """
    return to_plain_json(parse_json(data, LONGEST_JSON, finite=False))


def parse_json_object(data: bytes | None) -> dict[str, Any]:
    """Empty for anything else."""
    return next(parse_json_lines([data or b""]), {})


# --- strings, by what their key says they hold


def decode_task(data: bytes) -> dict[str, Any]:
    """The header of a publication. Raises DecodeError."""
    decoded = Task.decode(data)
    names = ("obs_mean", "obs_std")
    header = {name: value for name, value in vars(decoded).items() if name not in names}
    return {
        **header,
        "spans": format_spans(decoded.spans),
        **{name: summarize_floats(getattr(decoded, name)) for name in names},
    }


def format_spans(data: bytes) -> list[str]:
    """The slots of a publication, in words."""
    words = list(struct.iter_unpack("<3i", data))[:LONGEST_LIST]
    return [
        f"{KINDS[kind]} {start}-{stop - 1}" if 0 <= kind < len(KINDS) else f"{kind} {start} {stop}"
        for kind, start, stop in words
    ]


def summarize_floats(data: bytes) -> dict[str, Any]:
    """Figures of little-endian float32. Raises ValueError for invalid bytes."""
    # start-up: numpy, for keys that hold arrays
    import numpy as np

    values = np.frombuffer(data, "<f4").astype(np.float64)
    sound = values[np.isfinite(values)]
    figures: dict[str, Any] = {"count": len(values)}
    if len(sound):
        norm = math.sqrt(float(np.square(sound).sum()))
        figures |= {"norm": six_digits(norm), "min": six_digits(sound.min())}
        figures["max"] = six_digits(sound.max())
    if len(sound) < len(values):
        figures["not finite"] = len(values) - len(sound)
    first = [to_plain_json(six_digits(value)) for value in values[:FIRST_FLOATS]]
    return {**figures, "first": first}


def six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def decode_parameters(data: bytes) -> dict[str, Any]:
    return {**summarize_floats(data), "digest": bytes_digest(data)}


def decode_checkpoint(data: bytes) -> dict[str, Any]:
    """Names, types and shapes of an archive's arrays, and its meta without long lists; no other
    array is loaded. Raises RunFolderError, or ValueError, for a damaged archive.
    """
    _, meta = read_npz(data, ())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        headers = npz_headers(archive)
    return {
        "bytes": len(data),
        "meta": to_plain_json(meta),
        "arrays": {
            sanitize(name, 100): f"{dtype.name}[{', '.join(map(str, shape))}]"
            for name, (shape, dtype) in headers.items()
        },
    }


STRING_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "config": load_json,
    "task": decode_task,
    "parameters": decode_parameters,
    "checkpoint": decode_checkpoint,
}


def decode_string(key: str, data: bytes) -> Any:
    decode = STRING_DECODERS.get(kind_of(key))
    if decode is None:
        return escape_bytes(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy warns of odd archives on the terminal
            return decode(data)
    except Exception as error:  # whatever zipfile and numpy raise for damaged data
        return {
            "cannot be decoded": sanitize(error, 200) or type(error).__name__,
            "bytes": escape_bytes(data),
        }


# --- what stands in lists, sets and streams


def decode_element(key: str, data: bytes) -> Any:
    kind = kind_of(key)
    if kind in ("todo", "claims"):
        try:
            block = Block.decode(data)
        except DecodeError:
            return {"no block": escape_bytes(data)}
        return {
            "publication": block.publication,
            "kind": KINDS[block.kind],
            "slots": format_slots(range(block.start, block.stop)),
        }
    if kind in ("errors", "commands"):
        try:
            report = load_json(data)
        except DecodeError:
            return {"no JSON": escape_bytes(data)}
        return report if isinstance(report, dict) else {"value": report}
    return escape_bytes(data)


def decode_entry(name: str, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """An entry of a stream."""
    return {
        "id": name,
        **{
            escape_bytes(name_bytes, 100): escape_bytes(value)
            for name_bytes, value in list(fields.items())[:MOST_ITEMS]
        },
    }


def task_key(key: str) -> str:
    """The key of the header of the same run."""
    return f"{KEY_PREFIX}{run_of(key)}:task"


def decode_results(data: bytes, header: bytes) -> dict[str, Any]:
    """The newest results of a publication: rows of its table, and their fitness. Raises
    DecodeError for the header of another version.
    """
    try:
        size = Task.decode(header).row
    except DecodeError as error:
        return {"not readable": str(error), "bytes": escape_bytes(data, 80)}
    # start-up: numpy, for keys that hold arrays
    import numpy as np

    # What every record begins with; fitness: of the first individual.
    names, formats = ("row", "failure", "seconds", "fitness"), ("<i4", "u1", "<f4", "<f8")
    offsets = (0, 8, 9, 13)
    if size < 21:
        return {"not readable": f"records of {size} bytes", "bytes": escape_bytes(data, 80)}
    record = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})
    records = np.frombuffer(data, record, len(data) // size)
    newest = records[-LONGEST_LIST:]
    return {
        "results": len(records),
        "failed": int((records["failure"] > 0).sum()),
        "newest rows": newest["row"].tolist(),
        "fitness": [to_plain_json(six_digits(value)) for value in newest["fitness"].tolist()],
        "seconds": six_digits(float(records["seconds"].mean())) if len(records) else None,
    }


def format_slots(slot_numbers: Any) -> str:
    """``4`` or ``4-7``; a gap is shown by commas."""
    numbers = list(slot_numbers)
    if not numbers:
        return "-"
    if len(numbers) == numbers[-1] - numbers[0] + 1:
        return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers[:LONGEST_LIST])) + (
        " …" if len(numbers) > LONGEST_LIST else ""
    )
