"""es-status --watch: pages one below the other or in place, servers that go away, and every way to
end it.
"""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Callable, Iterator

import pytest
from rich.text import Text

from es_queue.errors import RedisError, UsageError
from master.display.log_view import SafeStream
from master.display.panel import FittingTable
from master.status.texts import Page, watch_page
from tests.unit.master.status.test_status_command import Terminal


def page(words: str, code: int = 0, *, over: bool = False, rows: int = 0) -> Page:
    table = (
        (FittingTable(("worker",), [(f"worker-{row}",) for row in range(rows)], (), ()),)
        if rows
        else ()
    )
    return Page({"words": words}, (Text(words), *table), code, over)


def looks(*found: Page | Exception) -> Callable[[], Page]:
    """A look that gives these in order."""
    left = iter(found)

    def look() -> Page:
        one = next(left)
        if isinstance(one, Exception):
            raise one
        return one

    return look


def watched(
    *found: Page | Exception, out: io.StringIO | None = None, as_json: bool = False
) -> tuple[int, str]:
    out = out or io.StringIO()
    code = (
        watch_page(looks(*found), SafeStream(out), 60.0, as_json=as_json, wait=lambda _: None)
        if not out.isatty()
        else on_terminal(out, *found)
    )
    return code, out.getvalue()


def on_terminal(out: io.StringIO, *found: Page | Exception) -> int:
    """A terminal asks for its size while it waits, so its waiting ends by the clock."""
    return watch_page(looks(*found), SafeStream(out), 0.001, as_json=False, wait=lambda _: None)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "12")
    yield Terminal()


# --- in a pipe


def test_a_server_that_is_away_is_said_over_the_last_page_and_asked_again() -> None:
    away = RedisError("Redis at \x1b cannot be read")
    code, text = watched(
        page("one"), away, UsageError("there is no run"), page("two", 10, over=True)
    )
    first, second, third, last = (
        text.split("\n\n", 1)[0],
        *re.split(r"\n\n(?=Redis|there|two)", text)[1:],
    )
    assert (code, first, last) == (10, "one", "two\n")
    assert (
        "Redis at \\x1b cannot" in second
        and second.endswith("one")
        and "reading again every 60 s" in second
    )
    assert third.startswith("there is no run") and "Redis" not in third and third.endswith("one")


# --- ends


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_end_it_and_leave_the_terminal_in_order(number: int, terminal: io.StringIO) -> None:
    former = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(KeyboardInterrupt):
        watch_page(
            looks(page("one"), page("two")),
            SafeStream(terminal),
            60.0,
            as_json=False,
            wait=lambda _: signal.raise_signal(number),
        )
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)] == former
