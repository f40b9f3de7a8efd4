"""Findings as people read them: signs and colours on a terminal, one plain line each in a pipe."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import TextIO, cast

from master.console import SafeStream, encodable
from master.doctor.finding import FAILED, OK, WARNING, Finding
from master.wording import printable

SIGNS = {OK: ("✓", "+"), WARNING: ("▲", "!"), FAILED: ("✗", "x")}
STYLES = {OK: "green", WARNING: "yellow", FAILED: "bold red"}
NAME_WIDTH = 14
LONGEST_LINE = 2000


def show_findings(findings: Sequence[Finding], out: SafeStream) -> None:
    terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    for one in findings:
        if terminal:
            show_on_terminal(one, out)
        else:
            out.line(plain_line(one))


def plain_line(finding: Finding) -> str:
    """``failed   version        Redis 5.0 is too old; fix: use Redis 6.2 or later``."""
    fix = f"; fix: {' '.join(finding.fix.split(chr(10)))}" if finding.fix else ""
    return printable(f"{finding.state:<9}{finding.name:<{NAME_WIDTH}} {finding.text}{fix}", LONGEST_LINE)


def show_on_terminal(finding: Finding, out: SafeStream) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=cast(TextIO, out), markup=False, highlight=False, force_terminal=True)
    sign = SIGNS[finding.state][0 if encodable(SIGNS[finding.state][0], out.encoding) == SIGNS[finding.state][0] else 1]
    head, *rest = lines_of(finding, max(40, console.width - 1))
    line = Text.assemble((f"{sign} {finding.state:<8}", STYLES[finding.state]), (f"{printable(finding.name, NAME_WIDTH):<{NAME_WIDTH}} ", "bold"), head)
    console.print(line, soft_wrap=True)
    for one in rest:
        console.print(Text(one), soft_wrap=True)


def lines_of(finding: Finding, width: int) -> list[str]:
    """The text and the fix, wrapped to the right of the name; commands stand whole on their lines, so they can be copied."""
    margin = " " * (2 + 8 + NAME_WIDTH + 1)
    first, *rest = wrapped(printable(finding.text, LONGEST_LINE), "", width - len(margin)) or [""]
    lines = [first, *(margin + one for one in rest)]
    advice, *commands = finding.fix.split("\n") if finding.fix else [""]
    if advice:
        lines += [margin + one for one in wrapped(f"fix: {printable(advice, LONGEST_LINE)}", "     ", width - len(margin))]
    return lines + [f"    {printable(command, LONGEST_LINE)}" for command in commands]


def wrapped(text: str, hanging: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
