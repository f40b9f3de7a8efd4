"""Values of the keyspace decoded for people and programs, whatever they are: what cannot be read is shown as bytes."""

from __future__ import annotations

import io
import json
import math
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from es_queue.errors import DecodeError
from es_queue.numerics import bytes_digest
from es_queue.protocol.codec import loose
from es_queue.protocol.keys import RUN_ID, RUNS
from es_queue.protocol.messages import Answer, Block, Task
from master.wording import printable

#: Where every key of es-queue begins.
PREFIX = RUNS.partition(":")[0] + ":"
OF_RUN = re.compile(rf"{PREFIX}(?P<run>{RUN_ID.pattern}):(?P<what>[a-z]+)(?::(?P<of>.*))?", re.DOTALL)
MOST_SHOWN = 1000
FIRST_FLOATS = 8
FIRST_BYTES = 256
DEEPEST = 12
MOST_ARRAYS = 200
LONGEST_META = 4 * 2**20
LONGEST_JSON = 2**18
LONGEST_LIST = 16
#: Longer whole numbers cannot be told from an attack on whoever reads them.
LARGEST_WHOLE = 2**64


def kind_of(key: str) -> str:
    """What a key holds, ``task`` or ``results``, by its name; empty for names that no run has."""
    match = OF_RUN.fullmatch(key)
    return match["what"] if match else "runs" if key == RUNS else ""


def run_of(key: str) -> str:
    match = OF_RUN.fullmatch(key)
    return match["run"] if match else ""


# --- any bytes


def escaped(data: bytes, longest: int = FIRST_BYTES) -> str:
    """Bytes as text that can do nothing to a terminal; what is cut off is counted."""
    try:
        text = printable(data[:longest].decode("utf-8"), longest)
    except UnicodeDecodeError:
        text = "".join(chr(one) if 32 <= one < 127 and one != 92 else f"\\x{one:02x}" for one in data[:longest])
    return text if len(data) <= longest else f"{text} … ({len(data):,} bytes)"


def plain(value: Any, depth: int = 0) -> Any:
    """Decoded JSON or msgpack as JSON that is escaped, finite and not too deep; long lists are cut, and say so."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= LARGEST_WHOLE else "a number that is too large"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray)):
        return escaped(bytes(value))
    if isinstance(value, Mapping) and depth < DEEPEST:
        kept = list(value.items())[:MOST_SHOWN]
        return {printable(name, 200): plain(one, depth + 1) for name, one in kept} | _rest(len(value) - len(kept))
    if isinstance(value, (list, tuple)) and depth < DEEPEST:
        kept = [plain(one, depth + 1) for one in value[:LONGEST_LIST]]
        return kept if len(value) <= LONGEST_LIST else [*kept, f"… {len(value) - LONGEST_LIST:,} more"]
    return printable(value) if isinstance(value, str) else "…"


def _rest(count: int) -> dict[str, str]:
    return {"…": f"{count:,} more"} if count > 0 else {}


def loaded(data: bytes, longest: int = LONGEST_JSON) -> Any:
    """JSON decoded and made plain.

    Raises ValueError, also for more than ``longest`` bytes: decoded it takes twenty times as much.
    """
    if len(data) > longest:
        raise ValueError(f"{len(data):,} bytes of JSON, and at most {longest:,} are decoded")
    try:
        return plain(json.loads(data))
    except RecursionError:
        raise ValueError("too deep") from None


# --- strings, by what their key says they hold


def task(data: bytes) -> dict[str, Any]:
    """The header of a publication. Raises DecodeError."""
    try:
        found = Task.decode(data)
    except DecodeError as error:
        raw = loose(data)
        return {"not a task of this version": str(error), **(plain(raw) if isinstance(raw, dict) else {"value": plain(raw)})}
    statistics = {name: floats(getattr(found, name)) for name in ("obs_mean", "obs_std")}
    return {**{name: value for name, value in vars(found).items() if name not in statistics}, **statistics}


def floats(data: bytes) -> dict[str, Any]:
    """Figures of little-endian float32. Raises ValueError for bytes that are none."""
    import numpy as np

    values = np.frombuffer(data, "<f4").astype(np.float64)
    sound = values[np.isfinite(values)]
    figures = {"norm": math.sqrt(float(np.square(sound).sum())), "min": float(sound.min()), "max": float(sound.max())} if len(sound) else {}
    odd = {"not finite": len(values) - len(sound)} if len(sound) < len(values) else {}
    return {"count": len(values), **rounded(figures), **odd, "first": [plain(float(f"{one:.6g}")) for one in values[:FIRST_FLOATS]]}


def rounded(figures: Mapping[str, float]) -> dict[str, Any]:
    return {name: float(f"{value:.6g}") for name, value in figures.items()}


def parameters(data: bytes) -> dict[str, Any]:
    return {**floats(data), "digest": bytes_digest(data)}


def checkpoint(data: bytes) -> dict[str, Any]:
    """Names, types and shapes of an archive's arrays, and its meta without long lists; no array is loaded.

    Raises what a damaged archive raises: see UNREADABLE.
    """
    import numpy as np

    arrays: dict[str, str] = {}
    meta: Any = "missing"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        for member in members[:MOST_ARRAYS]:
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(file)
                name = member.filename.removesuffix(".npy")
                arrays[printable(name, 100)] = f"{dtype.name}[{', '.join(map(str, shape))}]"
                if name == "meta" and shape == () and dtype.kind == "U" and dtype.itemsize <= LONGEST_META:
                    meta = loaded(
                        file.read(dtype.itemsize).decode("utf-32-le").encode(), LONGEST_META
                    )
    return {"bytes": len(data), "meta": meta, "arrays": arrays | _rest(len(members) - MOST_ARRAYS)}


STRINGS: dict[str, Callable[[bytes], Any]] = {"config": loaded, "task": task, "parameters": parameters, "checkpoint": checkpoint}


def unreadable() -> tuple[type[Exception], ...]:
    from es_queue.policies.archive import UNREADABLE

    return (*UNREADABLE, DecodeError, Warning, KeyError, IndexError, NotImplementedError, AttributeError)


def string(key: str, data: bytes) -> Any:
    """A string's value: by its key's name, else as text or bytes."""
    decode = STRINGS.get(kind_of(key))
    if decode is None:
        return escaped(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy warns of odd archives, to whoever looks at the terminal
            return decode(data)
    except unreadable() as error:
        return {"cannot be decoded": printable(error, 200) or type(error).__name__, "bytes": escaped(data)}


# --- what stands in lists, sets and streams


def element(key: str, data: bytes) -> Any:
    """An element of a list, a set or a hash: a block, a JSON report, or text."""
    kind = kind_of(key)
    if kind in ("todo", "claims"):
        try:
            block = Block.decode(data)
        except DecodeError:
            return {"no block": escaped(data)}
        return {"publication": block.publication, "kind": block.kind, "slots": slots(range(block.start, block.stop))}
    if kind in ("errors", "commands"):
        try:
            found = loaded(data)
        except ValueError:
            return {"no JSON": escaped(data)}
        return found if isinstance(found, dict) else {"value": found}
    return escaped(data)


def entry(key: str, name: str, fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """An entry of a stream; of a results stream the answer in it."""
    if kind_of(key) == "results" and b"answer" in fields:
        return {"id": name, **answer(fields[b"answer"])}
    return {"id": name, **{escaped(one, 100): escaped(value) for one, value in list(fields.items())[:MOST_SHOWN]}}


def answer(data: bytes) -> dict[str, Any]:
    """A worker's answer in a line: who, which slots, their returns, and what failed."""
    try:
        found = Answer.decode(data)
    except (DecodeError, IndexError, KeyError) as error:
        return {"no answer": printable(error, 200), "bytes": escaped(data, 80)}
    returns = [float(f"{value:.6g}") for result in found.results for value in result.returns]
    failed = {"failed": [f"{slot}: {printable(reason, 100)}" for slot, reason in found.failures[:LONGEST_LIST]]} if found.failures else {}
    which = sorted({result.slot for result in found.results} | {slot for slot, _ in found.failures})
    return {
        "worker": printable(found.worker), "kind": found.kind, "slots": slots(which), "seconds": float(f"{found.seconds:.4g}"),
        "returns": plain(returns), **failed,
    }  # fmt: skip


def slots(which: Any) -> str:
    """``4`` or ``4-7``; a gap is shown by commas."""
    numbers = list(which)
    if not numbers:
        return "-"
    if len(numbers) == numbers[-1] - numbers[0] + 1:
        return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers[:LONGEST_LIST])) + (" …" if len(numbers) > LONGEST_LIST else "")
