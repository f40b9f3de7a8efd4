"""The command lines of all es- commands."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TextIO

import es_queue
from es_queue.errors import UsageError
from es_queue.security.passwords import redact_address
from es_queue.util.suggestions import format_suggestion

NEGATIVE = re.compile(r"-(\.?[0-9]|inf|nan)", re.IGNORECASE)


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, a UsageError, without passwords.

    Args:
        advice: The flag that lists all options.
        more: As argparse takes it.
    """

    #: Flags that other programs have, with those of this one.
    synonyms: ClassVar[Mapping[str, str]] = {}

    def __init__(self, prog: str, description: str, advice: str = "--help", **more: Any) -> None:
        more = {"formatter_class": argparse.RawDescriptionHelpFormatter, **more}
        super().__init__(prog=prog, description=description, allow_abbrev=False, **more)
        self.advice = f"{prog} {advice} lists all options"

    def parse_words(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The parsed command line. Raises UsageError for the first unknown flag, without its value,
        which may be a password, or the first unknown word.
        """
        given, unknown = self.parse_known_args(self._join_negative_numbers(argv))
        words = [word for word in unknown if word != "--"]
        for word in words:
            if word.startswith("-"):
                flag = word.partition("=")[0]
                hint = (
                    f"use {self.synonyms[flag]}"
                    if flag in self.synonyms
                    else format_suggestion(flag, self._shown_flags()) or self.advice
                )
                raise UsageError(f"the command line has the unknown flag {flag!r}; {hint}")
        if words:
            label = "a word" if "://" in words[0] else repr(words[0])
            raise UsageError(
                f"the command line has {label} without a flag before it; {self.advice}"
            )
        return given

    def _join_negative_numbers(self, argv: Sequence[str] | None) -> list[str]:
        """``--reward-floor=-1e3`` as one word, because argparse reads -1e3 as a flag; and
        ``--behaviour-bounds=-1:1``.
        """
        joined_words: list[str] = []
        for word in sys.argv[1:] if argv is None else argv:
            is_negative = NEGATIVE.match(word) is not None
            if is_negative and joined_words and joined_words[-1] in self._option_string_actions:
                joined_words[-1] += f"={word}"
            else:
                joined_words.append(word)
        return joined_words

    def _shown_flags(self) -> list[str]:
        actions = self._option_string_actions.items()
        return [flag for flag, action in actions if action.help != argparse.SUPPRESS]

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
    """Discard what is or will be written to a stream without a reader: its flush would fail when
    Python ends.
    """
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        finally:
            os.close(nowhere)
    except (OSError, ValueError):
        pass


def add_options(group: argparse._ActionsContainer, text: str, **more: Mapping[str, Any]) -> None:
    """Add the options that ``text`` lists: on a line ``--flag METAVAR``, or ``--flag`` for a
    switch, and in the indented lines below it the help.

    Args:
        more: Further arguments of ``add_argument`` by the name of an option's value.
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
