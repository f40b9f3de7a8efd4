"""The command lines of es-master, es-status and es-play."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

import es_queue
from es_queue.errors import UsageError
from es_queue.security.passwords import redact_address


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, a UsageError, without passwords.

    Args:
        advice: What lists all options.
        more: As argparse takes it.
    """

    def __init__(self, prog: str, description: str, advice: str = "--help", **more: Any) -> None:
        more = {"formatter_class": argparse.RawDescriptionHelpFormatter, **more}
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)
        self.advice = f"{prog} {advice} lists all options"

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{redact_address(message)}; {self.advice}")


def add_version(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--version",
        action="version",
        version=f"es-queue {es_queue.__version__}",
        help="show the version and exit",
    )
