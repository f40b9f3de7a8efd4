"""Control messages: requests to a run's master, as readable JSON in Redis.

``{"id": "0a1b2c3d", "verb": "set", "by": "ada@host", "time": 1795194000.0, "settings": {"sigma":
0.02}, "generation": null}``
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from es_queue.errors import DecodeError
from es_queue.files import parse_json

STOP, PAUSE, CONTINUE, SET = VERBS = ("stop", "pause", "continue", "set")
MAX_REQUEST = 8192
MAX_SETTINGS = 20
MAX_NAME = 100
LATEST = 10**9
ID = re.compile(r"[0-9a-f]{8}")

Scalar = str | int | float | bool


@dataclass(frozen=True)
class ControlRequest:
    """by: the requesting user, for display; time: their wall clock, seconds; generation: the first
    with the changed setting, None for the next.
    """

    id: str
    verb: str
    by: str
    time: float
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    generation: int | None = None

    def encode(self) -> bytes:
        return json.dumps(
            {
                name: dict(value) if name == "settings" else value
                for name, value in vars(self).items()
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> ControlRequest:
        """Read what ``encode`` wrote. Raises DecodeError for anything else."""
        values = parse_json(data, MAX_REQUEST)
        if not isinstance(values, dict) or set(values) != set(cls.__dataclass_fields__):
            raise DecodeError("a request has the wrong fields")
        if not all(_is_valid(name, values[name]) for name in values):
            raise DecodeError("a field of a request has an impossible value")
        return cls(**values)


def _is_valid(name: str, value: Any) -> bool:
    """Whether a field is valid; settings are checked later, against the run's own."""
    if name == "id":
        return isinstance(value, str) and ID.fullmatch(value) is not None
    if name == "verb":
        return value in VERBS
    if name == "by":
        return isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()
    if name == "time":
        return _is_finite_number(value)
    if name == "generation":
        return value is None or (
            isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LATEST
        )
    return (
        isinstance(value, dict)
        and len(value) <= MAX_SETTINGS
        and all(_is_encodable(key) and _is_scalar(setting) for key, setting in value.items())
    )


def _is_scalar(value: Any) -> bool:
    return _is_encodable(value) if isinstance(value, str) else isinstance(value, int | float)


def _is_encodable(text: str) -> bool:
    """Whether a text has no surrogates, which can be neither printed nor stored."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
