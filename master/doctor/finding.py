"""A finding of the doctor: one line, and its fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import ParamSpec

OK, WARNING, FAILED = "ok", "warning", "failed"
P = ParamSpec("P")


@dataclass(frozen=True)
class Finding:
    """The outcome of one check. ``state`` is ok, warning or failed; ``fix`` is empty if nothing
    needs one.

    A line break in ``fix`` precedes each command: it is shown whole on a line of its own.
    """

    name: str
    state: str
    text: str
    fix: str = ""

    def named(self, name: str) -> Finding:
        return replace(self, name=name)


def ok(text: str) -> Finding:
    return Finding("", OK, text)


def warning(text: str, fix: str) -> Finding:
    return Finding("", WARNING, text, fix)


def failed(text: str, fix: str) -> Finding:
    return Finding("", FAILED, text, fix)


def unknown(why: object, fix: str) -> Finding:
    """What this user may not read is no fault, but it is not known to be well either."""
    return warning(f"unknown: {why}", fix)


def named(name: str) -> Callable[[Callable[P, Finding]], Callable[P, Finding]]:
    """The name of what a check finds."""

    def decorate(check: Callable[P, Finding]) -> Callable[P, Finding]:
        @wraps(check)
        def named_check(*args: P.args, **kwargs: P.kwargs) -> Finding:
            return check(*args, **kwargs).named(name)

        return named_check

    return decorate
