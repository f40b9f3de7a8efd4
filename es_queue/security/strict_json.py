"""Reads untrusted JSON of bounded size, strictly, with one error for everything invalid."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from es_queue.errors import DecodeError

MAX_DIGITS = 50  # a random generator's state has 39
BROKEN = (ValueError, RecursionError)  # UnicodeDecodeError is a ValueError


def loads(data: bytes | str, limit: int, finite: bool = True) -> Any:
    """Decode a JSON text of at most ``limit`` bytes or letters.

    Raises DecodeError, which repeats nothing of the text, for invalid text, a repeated name in an
    object, a number of more than 50 digits, and if ``finite``, for NaN and Infinity, which JSON
    lacks.
    """
    if len(data) > limit:
        raise DecodeError(f"{len(data)} bytes of JSON, but at most {limit} are allowed")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        reals: dict[str, Any] = (
            {"parse_constant": _reject_constant, "parse_float": _parse_real} if finite else {}
        )
        return json.loads(
            text, object_pairs_hook=_unique_mapping, parse_int=_parse_integer, **reals
        )
    except BROKEN:
        raise DecodeError(f"{len(data)} bytes that are not strict JSON") from None


def _unique_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a name appears twice")
    return mapping


def _reject_constant(_: str) -> NoReturn:
    raise ValueError("not a finite number")


def _parse_real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("too large a number")
    return value


def _parse_integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("a number is too long")
    return int(text)
