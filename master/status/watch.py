"""es-status --watch: the same page again and again, in place on a terminal, until the run or the
watcher ends it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from es_queue.errors import EsQueueError
from es_queue.security.sanitize import sanitize
from master.display.format import format_duration
from master.display.log_view import SafeStream
from master.status.render import (
    BAD,
    FAINT,
    Page,
    format_plain,
    is_terminal,
    make_console,
    make_line,
    print_json,
    print_page,
    render_page,
)

if TYPE_CHECKING:
    from rich.live import Live

#: How often a terminal is asked whether its size has changed.
RESIZE_SECONDS = 0.2


def watch_page(
    query: Callable[[], Page],
    out: SafeStream,
    every: float,
    *,
    as_json: bool,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Show what ``query`` finds every so many seconds until that is over; returns the last page's
    code.

    The first look must succeed; after that a server that does not answer is said on the page and
    asked again. Raises KeyboardInterrupt, also for SIGTERM and SIGHUP, so that the terminal is left
    in order.
    """
    with signals_as_interrupts(), open_screen(out, as_json=as_json) as screened:
        page = last = query()
        seen = time.monotonic()
        while True:
            screened.show(page)
            if page.is_over or out.is_silent:
                return page.code
            screened.pause(every, wait)
            try:
                page = last = query()
                seen = time.monotonic()
            except EsQueueError as error:
                page = with_trouble(last, error, time.monotonic() - seen, every)


def with_trouble(last: Page, error: EsQueueError, seconds: float, every: float) -> Page:
    """The last page under the reason why there is no newer one."""
    reason = sanitize(error)
    head = (
        make_line(reason, BAD),
        make_line(
            (
                f"what follows was seen {format_duration(seconds)} ago; looking again every "
                f"{every:g} s"
            ),
            FAINT,
        ),
        make_line(""),
    )
    return replace(last, parts=(*head, *last.parts), data={**last.data, "trouble": reason})


class PageStream:
    """Pages printed one below the other, for pipes: an empty line between them."""

    def __init__(self, out: SafeStream) -> None:
        self._out, self._first = out, True

    def show(self, page: Page) -> None:
        self._out.write_line("\n".join([*([] if self._first else [""]), *format_plain(page)]))
        self._first = False

    def pause(self, seconds: float, wait: Callable[[float], None]) -> None:
        wait(seconds)


class JsonPageStream(PageStream):
    """One JSON object a line."""

    def show(self, page: Page) -> None:
        print_json(page.data, self._out)


class LivePageStream(PageStream):
    """One page that is redrawn in place; the last one stays, whole, when the watch ends."""

    def __init__(self, out: SafeStream) -> None:
        super().__init__(out)
        self._console = make_console(out)
        self._live: Live | None = None
        self._page: Page | None = None
        self._size: Any = None

    def show(self, page: Page) -> None:
        # start-up: rich, for a terminal only
        from rich.live import Live

        self._page = page
        if (
            self._console.size != self._size
        ):  # lines of another width are wrapped elsewhere: begin on an empty screen
            self._end_live()
            if self._size is not None:
                self._console.clear()
            self._size = self._console.size
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                vertical_overflow="crop",
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(render_page(page, self._console), refresh=True)

    def pause(self, seconds: float, wait: Callable[[float], None]) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            wait(min(RESIZE_SECONDS, left))
            if self._page is not None and self._console.size != self._size:
                self.show(self._page)

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        self._end_live()
        if self._page is not None:
            print_page(self._page, self._out, as_json=False)


@contextmanager
def open_screen(out: SafeStream, *, as_json: bool) -> Iterator[PageStream]:
    """The way to show pages that fits the stream."""
    if as_json or not is_terminal(out):
        yield JsonPageStream(out) if as_json else PageStream(out)
        return
    drawing = LivePageStream(out)
    try:
        yield drawing
    finally:
        drawing.close()


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """SIGTERM and a closed terminal end the watch as Ctrl-C does."""
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
