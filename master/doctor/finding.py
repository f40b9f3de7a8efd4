"""A finding of the doctor: one line, and its fix; with signs and colours on a terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import ParamSpec

from es_queue.security.sanitize import sanitize
from master.display.log_view import SafeStream, to_encodable

OK, WARNING, FAILED = "ok", "warning", "failed"
P = ParamSpec("P")
STATE_SIGNS = {OK: ("✓", "+"), WARNING: ("▲", "!"), FAILED: ("✗", "x")}
STATE_STYLES = {OK: "green", WARNING: "yellow", FAILED: "bold red"}
NAME_WIDTH = 14
LONGEST_LINE = 2000


@dataclass(frozen=True)
class Finding:
    """The outcome of one check. ``state`` is ok, warning or failed; ``fix`` is empty if none is
    needed.

    A line break in ``fix`` precedes each command, which gets its own uncut line.
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
    """What this user may not read is not a fault."""
    return warning(f"unknown: {why}", fix)


def named(name: str) -> Callable[[Callable[P, Finding]], Callable[P, Finding]]:
    def decorate(check: Callable[P, Finding]) -> Callable[P, Finding]:
        @wraps(check)
        def named_check(*args: P.args, **kwargs: P.kwargs) -> Finding:
            return check(*args, **kwargs).named(name)

        return named_check

    return decorate


def print_findings(findings: Sequence[Finding], out: SafeStream) -> None:
    terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    for finding in findings:
        if terminal:
            print_on_terminal(finding, out)
        else:
            out.write_line(format_finding(finding))


def format_finding(finding: Finding) -> str:
    """``failed   version        Redis 5.0 is too old; fix: use Redis 6.2 or later``."""
    fix = f"; fix: {' '.join(finding.fix.split(chr(10)))}" if finding.fix else ""
    return sanitize(
        f"{finding.state:<9}{finding.name:<{NAME_WIDTH}} {finding.text}{fix}", LONGEST_LINE
    )


def print_on_terminal(finding: Finding, out: SafeStream) -> None:
    # start-up: rich, which JSON does not need
    from rich.text import Text

    from master.display.terminal import make_console

    console = make_console(out)
    sign = STATE_SIGNS[finding.state][
        0
        if to_encodable(STATE_SIGNS[finding.state][0], out.encoding)
        == STATE_SIGNS[finding.state][0]
        else 1
    ]
    head, *rest = wrap_finding(finding, max(40, console.width - 1))
    line = Text.assemble(
        (f"{sign} {finding.state:<8}", STATE_STYLES[finding.state]),
        (f"{sanitize(finding.name, NAME_WIDTH):<{NAME_WIDTH}} ", "bold"),
        head,
    )
    console.print(line, soft_wrap=True)
    for continuation in rest:
        console.print(Text(continuation), soft_wrap=True)


def wrap_finding(finding: Finding, width: int) -> list[str]:
    """The text and the fix, wrapped to the right of the name; commands are not wrapped, so they can
    be copied.
    """
    margin = " " * (2 + 8 + NAME_WIDTH + 1)
    first, *rest = wrap_text(sanitize(finding.text, LONGEST_LINE), "", width - len(margin)) or [""]
    lines = [first, *(margin + continuation for continuation in rest)]
    advice, *commands = finding.fix.split("\n") if finding.fix else [""]
    if advice:
        lines += [
            margin + continuation
            for continuation in wrap_text(
                f"fix: {sanitize(advice, LONGEST_LINE)}", "     ", width - len(margin)
            )
        ]
    return lines + [f"    {sanitize(command, LONGEST_LINE)}" for command in commands]


def wrap_text(text: str, hanging: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
