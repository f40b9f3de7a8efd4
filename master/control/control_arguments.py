"""Arguments of the commands that control a run, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from es_queue.config.changeable import validate_changes
from es_queue.config.parsing import COMMAND_LINE
from es_queue.config.validation import number_or_text
from es_queue.errors import UsageError
from es_queue.protocol.control import CONTINUE, LATEST, PAUSE, STOP

ATTACH, PURGE, REPLAY = "attach", "purge", "replay"
VERBS = (ATTACH, STOP, PAUSE, CONTINUE, PURGE, REPLAY)
#: Short names that people use for a setting.
ALIASES = {"target": "target_reward"}


@dataclass(frozen=True)
class ControlArgs:
    """One of VERBS for a run. run: a word for it; settings: what --set changes from generation
    ``at`` on, None for the next; yes: do not ask.
    """

    verb: str
    run: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    at: int | None = None
    yes: bool = False


def parse_control_args(given: dict[str, Any]) -> ControlArgs | None:
    """Take the control flags out of ``given``; None if there are none. Raises UsageError."""
    verbs = [verb for verb in VERBS if verb in given]
    runs = [given.pop(verb) for verb in verbs]
    texts, at, yes = given.pop("set", None), given.pop("at", None), given.pop("yes", False)
    if len(verbs) > 1:
        raise UsageError(f"{COMMAND_LINE} has --{verbs[0]} and --{verbs[1]}: give only one of them")
    verb = verbs[0] if verbs else ""
    for flag, is_given, verb_needed in (("set", texts is not None, ATTACH), ("yes", yes, PURGE)):
        if is_given and verb != verb_needed:
            raise UsageError(
                f"{COMMAND_LINE} has --{flag} without --{verb_needed} RUN: use them together"
            )
    if at is not None and texts is None:
        raise UsageError(
            f"{COMMAND_LINE} has --at without --set NAME=VALUE: --at is the generation of the "
            f"change"
        )
    if not verb:
        return None
    if verb == ATTACH and not texts:
        raise UsageError(
            f"{COMMAND_LINE} has --attach without --set NAME=VALUE: to watch a run, use "
            "es-status RUN --watch"
        )
    return ControlArgs(
        verb,
        runs[0],
        parse_changes(texts or []),
        None if at is None else _parse_generation(at),
        yes,
    )


def parse_changes(texts: list[str]) -> dict[str, Any]:
    """``name=value`` words as checked settings that can change during a run. Raises UsageError."""
    settings: dict[str, Any] = {}
    for text in texts:
        label, equals, value = text.partition("=")
        name = ALIASES.get(label, label).replace("-", "_")
        if not equals:
            raise UsageError(
                f"set is {text!r} in {COMMAND_LINE}: use NAME=VALUE, such as learning_rate=0.01"
            )
        if name in settings:
            raise UsageError(f"set has {name} twice in {COMMAND_LINE}: give it once")
        settings |= validate_changes({name: value}, COMMAND_LINE)
    return settings


def _parse_generation(text: str) -> int:
    number = number_or_text(text)
    if not isinstance(number, int) or not 0 <= number <= LATEST:
        raise UsageError(
            f"at is {text!r} in {COMMAND_LINE}: use the number of a generation, at most {LATEST}"
        )
    return number
