"""es-status --watch: redraws the page in place until the run or the user ends it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Group
from rich.live import Live
from rich.text import Text

from es_queue.errors import EsQueueError
from es_queue.text import sanitize
from master.display.format import format_duration
from master.display.log_view import SafeStream
from master.display.terminal import make_console
from master.status.render import BAD, FAINT, Page, print_page


def watch_page(
    query: Callable[[], Page],
    out: SafeStream,
    every: float,
    *,
    as_json: bool,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Show the result of ``query`` every ``every`` seconds until the run is over; returns the last
    page's code.

    The first query must succeed. If a later one fails, the page says so, and the query is repeated.
    Raises KeyboardInterrupt, also for SIGTERM and SIGHUP, so that the terminal is restored.
    """
    pages = iterate_pages(query, out, every, wait)
    with signals_as_interrupts():
        if out.is_terminal and not as_json:
            return draw_pages(pages, out)
        return print_pages(pages, out, as_json=as_json)


def iterate_pages(
    query: Callable[[], Page], out: SafeStream, every: float, wait: Callable[[float], None]
) -> Iterator[Page]:
    page = last = query()
    seen = time.monotonic()
    yield page
    while not page.is_over and not out.is_silent:
        wait(every)
        try:
            page = last = query()
            seen = time.monotonic()
        except EsQueueError as error:
            page = with_trouble(last, error, time.monotonic() - seen, every)
        yield page


def print_pages(pages: Iterable[Page], out: SafeStream, *, as_json: bool) -> int:
    code = 0
    for number, page in enumerate(pages):
        if number and not as_json:
            out.write_line("")
        print_page(page, out, as_json=as_json)
        code = page.code
    return code


def draw_pages(pages: Iterable[Page], out: SafeStream) -> int:
    """In place; the last page stays when the watch ends."""
    page: Page | None = None
    try:
        # It is redrawn each second, and so fits a terminal that changes its size.
        with Live(
            console=make_console(out),
            screen=True,
            refresh_per_second=1,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            for page in pages:
                live.update(Group(*page.parts), refresh=True)
    finally:
        if page is not None:
            print_page(page, out, as_json=False)
    return 0 if page is None else page.code


def with_trouble(last: Page, error: EsQueueError, seconds: float, every: float) -> Page:
    reason = sanitize(error)
    head = (
        Text(reason, BAD),
        Text(
            f"the figures below are {format_duration(seconds)} old; reading again every "
            f"{every:g} s",
            FAINT,
        ),
        Text(""),
    )
    return replace(last, parts=(*head, *last.parts), data={**last.data, "trouble": reason})


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the watch as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
