"""es-status --watch: pages one below the other or in place, servers that go away, and every way to
end it.
"""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import Callable, Iterator

import pytest
from rich.text import Text

from es_queue.errors import RedisError, UsageError
from master.display.log_view import SafeStream
from master.display.terminal import FittingTable
from master.status import command as status
from master.status.render import Page
from master.status.watch import watch_page
from tests.cases import each_case
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


def test_in_a_pipe_pages_stand_apart_and_the_last_one_ends_it() -> None:
    assert watched(page("one"), page("two", 11), page("three", 10, over=True), page("never")) == (
        10,
        "one\n\ntwo\n\nthree\n",
    )


def test_json_is_an_object_a_line() -> None:
    code, text = watched(page("one"), page("two", 13, over=True), as_json=True)
    assert code == 13 and [json.loads(one) for one in text.splitlines()] == [
        {"words": "one"},
        {"words": "two"},
    ]


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


def test_a_first_look_that_fails_ends_it_with_its_error() -> None:
    with pytest.raises(RedisError):
        watched(RedisError("away"))


# --- on a terminal


def test_a_terminal_is_redrawn_in_place_and_keeps_the_last_page_whole(
    terminal: io.StringIO,
) -> None:
    code, text = watched(page("one", rows=30), page("two", 10, over=True, rows=30), out=terminal)
    # the former screen comes back before the last page is printed
    before, after = text.rsplit("\x1b[?1049l", 1)
    assert code == 10 and "\x1b[?25l" in before and "\x1b[?1049h" in before and "\x1b[H" in before
    assert "worker-5" in before and "worker-29" not in before
    assert "worker-29" in after and "two" in after


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


@each_case("every", ["0.1", "3601", "nan", "-1", "soon", ""])
def test_a_pace_that_cannot_be_is_refused(every: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.main(["--watch", f"--every={every}"]) == 2
    assert "0.2 to 3600" in capsys.readouterr().err


@each_case(
    "argv",
    [
        ["--every", "2"],
        ["--watch", "--doctor"],
        ["--errors"],
        ["r", "--errors", "--keys"],
        ["a", "--keys", "es:b:task"],
        ["--keys", "rq:x"],
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.main(argv) == 2
    assert capsys.readouterr().err.startswith("es-status: ")
