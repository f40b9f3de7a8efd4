"""What a check of the doctor gives: one line, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check. ``state`` is ok, warning or failed; ``fix`` is empty where there is
    nothing to mend.

    A line break in ``fix`` stands before each command: it is shown whole on a line of its own.
    """

    name: str
    state: str
    text: str
    fix: str = ""


def ok_finding(name: str, text: str) -> Finding:
    return Finding(name, OK, text)


def warning_finding(name: str, text: str, fix: str) -> Finding:
    return Finding(name, WARNING, text, fix)


def failed_finding(name: str, text: str, fix: str) -> Finding:
    return Finding(name, FAILED, text, fix)


def unknown_finding(name: str, why: object, fix: str) -> Finding:
    """What this user may not look at is no fault, but it is not known to be well either."""
    return warning_finding(name, f"not known: {why}", fix)
