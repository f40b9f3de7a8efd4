"""Reads files that anyone may have written: npz, JSON, TOML and msgpack, within bounds.

No reader waits for a pipe, follows a link or unpickles. Each takes a small multiple of the file's
bytes as memory, and raises one sentence for whatever is wrong.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import stat
import struct
import tomllib
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NoReturn

from es_queue.errors import DecodeError, RunFolderError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Of all files with an array ``meta``, of seed lists, and of the studies of --seeds.
FORMAT = 1
#: Bytes of an npz file and of its JSON text, arrays, and bytes that numpy writes before an array
#: beside its name: a zip file's local header (30) and the sizes of a large file (20).
MAX_NPZ, MAX_META, MAX_ARRAYS, LOCAL_HEADER = 2**31, 2**22, 200, 50
#: Elements of a JSON text, because an empty list takes 3 bytes of text and 64 of memory; digits of
#: a number, of which a random generator's state has 39.
MAX_ELEMENTS, MAX_DIGITS = 2**19, 50
#: Bytes of a TOML file, and dots in one of its lines: a key of n parts takes n² of memory.
MAX_TOML, MAX_DOTS = 2**18, 100
#: Elements of a msgpack message, of one list and of one map in it, and bytes of one text.
MAX_PACKED, LONGEST_LIST, LONGEST_MAP, LONGEST_TEXT = 2**18, 2**16, 64, 2**16


def open_file(path: str | Path, *, follow: bool = False) -> BinaryIO:
    """A regular file, for reading; ``follow``: also through a link. Raises OSError otherwise."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would block
    try:
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: str | Path, limit: int, *, follow: bool = False) -> bytes:
    """The bytes of a file. Raises OSError as ``open_file`` does, and for more than ``limit``."""
    with open_file(path, follow=follow) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
    return data


def read_end(path: Path, limit: int) -> bytes:
    """The last ``limit`` bytes of a file, or all of it. Raises OSError."""
    with open_file(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
        return file.read(limit)


def parse_json(data: bytes | str, limit: int, finite: bool = True) -> Any:
    """Decode a JSON text of at most ``limit`` bytes or letters.

    Raises DecodeError for invalid text, a repeated name in an object, too many elements or digits,
    and if ``finite``, for NaN and Infinity, which JSON lacks.
    """
    if len(data) > limit:
        raise DecodeError(f"{len(data)} bytes of JSON, but at most {limit} are allowed")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        if (elements := sum(map(text.count, ",[{"))) > MAX_ELEMENTS:
            raise DecodeError(
                f"JSON of {elements} elements, but at most {MAX_ELEMENTS} are allowed"
            )
        reals: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _parse_real}
        return json.loads(
            text,
            object_pairs_hook=_unique_mapping,
            parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else _refuse(),
            **(reals if finite else {}),
        )
    except (ValueError, RecursionError):
        raise DecodeError(f"{len(data)} bytes that are not strict JSON") from None


def _unique_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    return mapping if len(mapping) == len(pairs) else _refuse()


def _parse_real(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refuse()


def _refuse(*_: str) -> NoReturn:
    raise ValueError("not strict JSON")


def parse_toml(data: bytes) -> dict[str, Any]:
    """Raises DecodeError for invalid TOML, and for a key that would fill the memory."""
    if any(line.count(b".") > MAX_DOTS for line in data.splitlines()):
        raise DecodeError(f"it has a line with more than {MAX_DOTS} dots")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError
        raise DecodeError(f"it is not TOML: {error}") from None


def unpack(data: bytes) -> Any:
    """Decode msgpack of few elements. Raises what msgpack raises, and ValueError for more."""
    # start-up: load_policy needs only numpy
    import msgpack

    elements = 0

    def counted(container: Any) -> Any:
        nonlocal elements
        elements += 1 + len(container)
        return container if elements <= MAX_PACKED else _refuse()

    return msgpack.unpackb(
        data,
        strict_map_key=True,
        list_hook=counted,
        object_hook=counted,
        max_array_len=LONGEST_LIST,
        max_map_len=LONGEST_MAP,
        max_str_len=LONGEST_TEXT,
        max_ext_len=0,
    )


def read_npz(
    source: Path | bytes, names: Collection[str] | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays of a file or of its bytes, only those with these ``names`` if any are given, and
    its meta: the JSON object in the array ``meta``. Raises RunFolderError if it is missing,
    damaged, or of another format.
    """
    # start-up: numpy, whose threads must be fixed before it loads
    from numpy.lib.format import read_array

    arrays = {}
    try:
        with (
            io.BytesIO(source) if isinstance(source, bytes) else open_file(source) as file,
            zipfile.ZipFile(file) as archive,
        ):
            for name in npz_headers(archive):
                if names is None or name in ("meta", *names):
                    with archive.open(f"{name}.npy") as member:
                        arrays[name] = read_array(member, allow_pickle=False)
        meta = parse_json(str(arrays.pop("meta").item()), MAX_META, finite=False)
    except OSError as error:
        raise RunFolderError(f"it cannot be read: {error.strerror or error}") from None
    except KeyError:
        raise RunFolderError("it is not a file of es-queue: it has no array 'meta'") from None
    except Exception as error:  # whatever zipfile and numpy raise for damaged data
        raise RunFolderError(f"it is not a readable .npz file: {error}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise RunFolderError(f"it is not of format {FORMAT}, which this version of es-queue reads")
    return arrays, meta


def npz_bytes(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """What ``read_npz`` reads, without compression and pickle."""
    # start-up: numpy, whose threads must be fixed before it loads
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, meta=np.array(json.dumps(meta)), **arrays)
    return buffer.getvalue()


def npz_headers(archive: zipfile.ZipFile) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The shape and type of each array. Raises ValueError for an archive whose arrays do not follow
    each other without a gap, as numpy writes them, or hold Python's objects.

    A gap is an array that the archive's directory no longer lists.
    """
    # start-up: numpy, whose threads must be fixed before it loads
    from numpy.lib import format as npy

    headers, end = {}, 0
    members = sorted(archive.infolist(), key=lambda member: member.header_offset)
    if len(members) > MAX_ARRAYS:
        raise ValueError(f"it holds {len(members)} arrays")
    for member in members:
        start = end
        end += LOCAL_HEADER + len(member.filename.encode()) + member.file_size
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise ValueError("it is compressed")
        if member.header_offset != start or end > min(archive.start_dir, MAX_NPZ):
            raise ValueError("its arrays overlap, leave a gap, or claim more bytes than it has")
        with archive.open(member) as file:
            first = npy.read_magic(file) == (1, 0)
            read = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
            shape, _, dtype = read(file)
            size = math.prod(shape) * dtype.itemsize + file.tell()
            if dtype.kind not in "biufU" or size != member.file_size:
                raise ValueError("an array is not of plain numbers, or has another size")
        headers[member.filename.removesuffix(".npy")] = shape, dtype
    if end != archive.start_dir:
        raise ValueError("an array is missing")
    return headers


# --- frames on a pipe to a process of the master's: msgpack after its length in four bytes

LENGTH = struct.Struct(">I")


def write_frame(stream: IO[bytes], frame: Any) -> None:
    # start-up: load_policy needs only numpy
    import msgpack

    data = msgpack.packb(frame)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """None at the end, also in the middle of a frame."""
    # start-up: load_policy needs only numpy
    import msgpack

    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    data = stream.read(size)
    return msgpack.unpackb(data, max_bin_len=size, max_str_len=size) if len(data) == size else None
