"""Reads and checks the arrays of an untrusted ``.npz`` checkpoint, without pickle."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_queue.config.run_config import VIRTUAL
from es_queue.errors import DecodeError, RunFolderError
from es_queue.numerics.arrays import Floats
from es_queue.security import strict_json
from es_queue.security.private_directory import regular

MAX_META = 2**22
#: The largest file to read, in bytes.
MAX_FILE = 2**31
#: Bytes before an array's name in a zip file.
LOCAL_HEADER = 30
MAX_ARRAYS = 200
VECTORS = ("parameters", "obs_mean", "obs_std")
REFERENCE = "reference"
#: Errors of numpy and zipfile for a damaged file or another format.
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    SyntaxError,
    tokenize.TokenError,
    TypeError,  # numpy parses an array's header as Python literals
)


def read_checkpoint(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The vectors and the decoded meta of a checkpoint; the rest of the file is not read.

    Raises RunFolderError with one sentence if the file is missing, damaged or lacks an array.
    """
    try:
        arrays = read_arrays(path, (*VECTORS, "meta"))
        meta = decode_meta(arrays.pop("meta"))
        if isinstance(meta.get("config"), dict) and meta["config"].get("batch_norm") == VIRTUAL:
            arrays |= read_arrays(path, (REFERENCE,))
    except FileNotFoundError:
        raise RunFolderError("there is no such checkpoint") from None
    except UNREADABLE as error:
        # numpy's advice there is to trust the file
        reason = "it is of another kind" if "pickle" in str(error) else error
        raise RunFolderError(f"this is not a readable .npz checkpoint: {reason}") from None
    return arrays, meta


def read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The named arrays of a file. Raises RunFolderError for a missing one, or one of UNREADABLE."""
    with open(path, "rb", opener=regular) as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array")
        validate_uncompressed(archive)
        with archive:
            for name in names:
                if name not in archive:
                    raise RunFolderError(f"the checkpoint has no array {name!r}")
            return {name: archive[name] for name in names}


def validate_uncompressed(archive: np.lib.npyio.NpzFile) -> None:
    """Raises ValueError if an archive could expand: es-queue does not compress, and its arrays do
    not share bytes.
    """
    members = archive.zip.infolist() if archive.zip is not None else []
    if len(members) > MAX_ARRAYS or any(
        member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size
        for member in members
    ):
        raise ValueError("it is compressed, or holds more arrays than a checkpoint has")
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise ValueError(f"its arrays overlap at byte {member.header_offset}")
        end = member.header_offset + LOCAL_HEADER + member.file_size
    if archive.zip is not None and end > archive.zip.start_dir:
        raise ValueError("its arrays claim more bytes than it has")
    if end > MAX_FILE:
        raise ValueError(f"it is larger than {MAX_FILE} bytes")


def decode_meta(text: NDArray[Any]) -> dict[str, Any]:
    """The JSON object in a 0-d unicode array or in bytes, uint8 [n]. Raises ValueError for anything
    else.
    """
    try:
        meta = None
        if text.ndim == 0 and text.dtype.kind == "U":
            meta = strict_json.loads(text.item(), MAX_META, finite=False)
        elif text.ndim == 1 and text.dtype == np.uint8:
            meta = strict_json.loads(text.tobytes(), MAX_META, finite=False)
    except DecodeError as error:
        raise ValueError(f"its array 'meta' is invalid: {error}") from None
    if not isinstance(meta, dict):
        raise ValueError("its array 'meta' is not a JSON object")
    return meta


def finite_vector(arrays: Mapping[str, NDArray[Any]], name: str) -> Floats:
    """An array as float32[n]. Raises RunFolderError if it is missing, not a vector, or not
    finite.
    """
    if name not in arrays:
        raise RunFolderError(f"the checkpoint has no array {name!r}")
    array = np.asarray(arrays[name])
    if array.ndim != 1 or array.dtype.kind != "f":
        raise RunFolderError(f"the checkpoint's array {name!r} is not a vector of floats")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(values).all():
        raise RunFolderError(f"the checkpoint's array {name!r} holds a number that is not finite")
    return values


def finite_batch(arrays: Mapping[str, NDArray[Any]], name: str, length: int) -> Floats:
    """An array as float32[N, length], N above 0. Raises RunFolderError if it is not, or not
    finite.
    """
    array = np.asarray(arrays[name]) if name in arrays else np.zeros(0)
    if array.ndim != 2 or array.dtype.kind != "f" or not len(array) or array.shape[-1] != length:
        raise RunFolderError(
            f"the checkpoint has no array {name!r} of observations with {length} numbers, "
            "which its policy needs"
        )
    return finite_vector({name: array.reshape(-1)}, name).reshape(array.shape)


def typed_array(
    arrays: Mapping[str, NDArray[Any]], name: str, kind: type, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """An array with exactly this type and shape, in which None is any length. Raises RunFolderError
    if it differs, or holds a number that is not finite.
    """
    if name not in arrays:
        raise RunFolderError(f"it has no array {name!r}")
    array = arrays[name]
    fits = array.dtype == kind and array.ndim == len(shape)
    if not fits or any(
        None is not side != length for side, length in zip(shape, array.shape, strict=True)
    ):
        sides = ", ".join("any" if side is None else f"{side:,}" for side in shape)
        raise RunFolderError(
            f"its array {name!r} is {array.dtype.name} {list(array.shape)}, not "
            f"{np.dtype(kind).name} [{sides}]"
        )
    if not np.isfinite(array).all():
        raise RunFolderError(f"its array {name!r} holds a number that is not finite")
    return array


def validate_length(values: Floats, name: str, length: int) -> None:
    """Raises RunFolderError unless ``values`` has ``length`` numbers."""
    if len(values) != length:
        raise RunFolderError(
            f"the checkpoint's array {name!r} has {len(values)} numbers, its policy needs {length}"
        )
