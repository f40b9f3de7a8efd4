"""A panel on a terminal that is redrawn in place, with lines above it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TextIO, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from master.display.log_view import SafeStream

#: Redrawn at most so often; news may come faster.
DRAW_SECONDS = 0.2
#: A narrower terminal narrows the panel.
MOST_WIDTH = 100


class LivePanel(ABC):
    """Draws in the caller's thread alone, so that nothing goes wrong behind its back. clock:
    monotonic seconds.
    """

    def __init__(self, out: SafeStream, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._console = Console(
            file=cast(TextIO, out), force_terminal=True, highlight=False, markup=False, emoji=False
        )
        self._live: Live | None = None
        self._last_drawn = -DRAW_SECONDS

    @abstractmethod
    def _render(self) -> RenderableType:
        """What is to be seen now."""

    def close(self) -> None:
        """Leave the panel as it is last, and the terminal to others."""
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
            self._live.stop()
            self._live = None

    def _print_line(self, line: str) -> None:
        # Never broken by us: a command that the terminal wraps by itself can still be copied whole.
        self._console.print(Text(line), soft_wrap=True)

    def _draw(self) -> None:
        now = self._clock()
        if self._live is None:
            self._live = Live(
                self._render(),
                console=self._console,
                auto_refresh=False,
                vertical_overflow="crop",
                redirect_stdout=is_terminal(sys.stdout),
                redirect_stderr=is_terminal(sys.stderr),
            )
            self._live.start(refresh=True)
            self._last_drawn = now
        elif now - self._last_drawn >= DRAW_SECONDS:
            self._live.update(self._render(), refresh=True)
            self._last_drawn = now


def is_terminal(stream: TextIO | None) -> bool:
    """Whether what others print there would tear the panel; what goes into a file must
    stay in it.
    """
    return stream is not None and stream.isatty()
