"""The command lines of all es- commands."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TextIO

import es_queue
from es_queue.credentials import redact_address
from es_queue.errors import UsageError
from es_queue.text import format_suggestion

#: A word that is a value, though it begins with a dash.
NEGATIVE = re.compile(r"-(\.?[0-9]|inf|nan)", re.IGNORECASE)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, a UsageError, without passwords.

    advice: the flag that lists all options
    """

    #: Flags that other programs have, with those of this one.
    synonyms: ClassVar[Mapping[str, str]] = {}

    def __init__(self, prog: str, description: str, advice: str = "--help", **more: Any) -> None:
        more = {"formatter_class": argparse.RawDescriptionHelpFormatter, **more}
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)
        self.advice = f"{prog} {advice} lists all options"
        # argparse knows -1, but not -1e3.
        self._negative_number_matcher = NEGATIVE

    def parse_words(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Raises UsageError for the first unknown flag, without its value, or unknown word."""
        given, unknown = self.parse_known_args(argv)
        words = [word for word in unknown if word != "--"]
        actions = self._option_string_actions.items()
        shown = [flag for flag, action in actions if action.help != argparse.SUPPRESS]
        for word in words:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                hint = (
                    f"use {self.synonyms[flag]}"
                    if flag in self.synonyms
                    else format_suggestion(flag, shown) or self.advice
                )
                raise UsageError(f"the command line has the unknown flag {flag!r}; {hint}")
        if words:
            label = "a word" if "://" in words[0] else repr(words[0])
            raise UsageError(
                f"the command line has {label} without a flag before it; {self.advice}"
            )
        return given

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """As argparse, but quiet if nobody reads the help."""
        try:
            sys.stdout.flush()
        except OSError:
            discard_output(sys.stdout)
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        raise UsageError(redact_address(f"{message}; {self.advice}"))


def discard_output(stream: TextIO | None) -> None:
    """Discard what is written to a stream without a reader: its flush would fail at the end."""
    with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())  # type: ignore[union-attr]


def add_options(group: argparse._ActionsContainer, text: str, **more: Mapping[str, Any]) -> None:
    """Add the options that ``text`` lists: a line ``--flag METAVAR``, or ``--flag`` for a switch,
    with the help in the indented lines below it.

    more: further arguments of ``add_argument`` by the name of an option's value
    """
    for option in re.split(r"\n(?=\S)", text.strip()):
        head, _, help_text = option.partition("\n")
        flag, _, metavar = head.partition(" ")
        extra = more.get(flag.lstrip("-").replace("-", "_"), {})
        kind: dict[str, Any] = {"metavar": metavar} if metavar else {"action": "store_true"}
        kind = {} if "choices" in extra else kind
        group.add_argument(flag, **{**kind, "help": " ".join(help_text.split()), **extra})


def add_runs_folder(group: argparse._ActionsContainer) -> None:
    add_options(
        group, "--runs-dir PATH\n  folder of all runs [default: ES_QUEUE_RUNS, then ./runs]"
    )


#: Of a named Redis. What a user must know besides can be put behind ``Redis``.
PASSWORD_FILE_OPTION = """
--redis-password-file FILE
    file with the password of that Redis{} [default: ES_QUEUE_REDIS_PASSWORD,
    then the file that ES_QUEUE_REDIS_PASSWORD_FILE names]
"""


def add_version(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--version",
        action="version",
        version=f"es-queue {es_queue.__version__}",
        help="show the version and exit",
    )


def format_command(name: str) -> str:
    """``es-play``, or ``.venv/bin/es-play`` if a shell would not find this program's own."""
    folder = Path(sys.executable).parent
    executable = folder / name
    on_path = shutil.which(name)
    if not executable.exists() or (
        on_path is not None and Path(on_path).absolute() == executable.absolute()
    ):
        return name
    try:
        relative = os.path.relpath(executable)
    except ValueError:  # another drive
        return str(executable)
    return str(executable) if relative.startswith("..") else relative
