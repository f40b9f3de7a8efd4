"""Shows findings: signs and colours on a terminal, one plain line each in a pipe."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence

from es_queue.security.sanitize import sanitize
from master.display.log_view import SafeStream, to_encodable
from master.doctor.finding import FAILED, OK, WARNING, Finding

STATE_SIGNS = {OK: ("✓", "+"), WARNING: ("▲", "!"), FAILED: ("✗", "x")}
STATE_STYLES = {OK: "green", WARNING: "yellow", FAILED: "bold red"}
NAME_WIDTH = 14
LONGEST_LINE = 2000


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
    """The text and the fix, wrapped to the right of the name; commands stand whole on their lines,
    so they can be copied.
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
