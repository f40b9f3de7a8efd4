"""How a class declares its settings, and how a value from outside is checked.

``population: int = setting(64, "individuals per generation", low=2)`` in a class body is a setting:
``RunConfig`` has those of every run, a strategy's or policy's nested class ``Settings`` its own.
Flags, ``--help``, the reference, TOML, JSON and Python's keywords all follow from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from es_queue.errors import UsageError
from es_queue.text import format_suggestion

AUTO, NONE = "auto", "none"
#: Names the source of a setting in error sentences.
COMMAND_LINE = "the command line"
#: The name of the user's own code.
CUSTOM_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
#: From here on, a float no longer represents every whole number.
EXACT_FLOAT = 2**53


@dataclass(frozen=True)
class Setting:
    """What is known of a setting. Its type is that of its default.

    text: its sentence in ``--help``
    group: its heading there; a setting without one belongs to that of the setting before it
    low, high: bounds, inclusive; of a tuple, of its items
    choices: the words that it may be; own: a form such as module:Class for the user's own code
    word: what people write for the default, such as auto
    form: reads a text with a grammar, and raises ValueError; a number also counts as such a text
    forms: that grammar, for people; empty if the ValueError says it
    read: makes a value of another type from (the setting, value, source)
    metavar: its value in ``--help``
    live, resume: whether it can change while a run trains, or when the run is resumed
    follows: a recipe does not set it if one of these is given another value
    grows: it grows with this power of ``scale``, auto from ``grows_from`` or the population
    """

    default: Any
    text: str
    group: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: Collection[str] = ()
    own: str = ""
    word: str = ""
    form: Callable[[str], object] | None = None
    forms: str = ""
    read: Callable[[Setting, Any, str], Any] | None = None
    metavar: str = ""
    live: bool = False
    resume: bool = False
    follows: tuple[str, ...] = ()
    grows: float = 0.0
    grows_from: int = 0
    name: str = ""

    @property
    def flag(self) -> str:
        return format_flag(self.name)

    @property
    def words(self) -> tuple[str, ...]:
        """All that a setting with choices may be."""
        return (*filter(None, (self.word, *self.choices, self.own)),) if self.choices else ()

    @property
    def least(self) -> float | None:
        """The lower bound as people know it: a word stands for -1."""
        return 0 if self.low == -1 and self.word else self.low

    @property
    def kind(self) -> str:
        """The type, for the reference."""
        if isinstance(self.default, tuple):
            return "list of numbers" if self.default else "list"
        return type(self.default).__name__

    def checked(self, value: Any, source: str) -> Any:
        """``value`` in the setting's type, within its choices and bounds.

        Lists and text with commas become tuples, whole floats (``1e6``) ints, the ``word`` the
        default. Raises UsageError with one sentence: name, value, ``source`` and fix.
        """
        value = without_numpy(value)
        if self.word and value == self.word:
            return self.default
        if self.read:
            return self.read(self, value, source)
        if not isinstance(self.default, tuple):
            return self._single(value, self.default, source)
        numbers = bool(self.default)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")] if value.strip() else []
            value = [number_or_text(part) for part in value] if numbers else value
        if not isinstance(value, list | tuple):
            raise self.refused(value, source, "use a list, or text with commas")
        if numbers and not value:
            raise self.refused(value, source, "use at least one number")
        return tuple(self._single(one, self.default[0] if numbers else "", source) for one in value)

    def from_text(self, text: Any, source: str) -> Any:
        """As ``checked``, for a word of a command line: text with a number is that number."""
        numeric = self.kind in ("int", "float") and isinstance(text, str)
        return self.checked(number_or_text(text) if numeric else text, source)

    def _single(self, value: Any, like: Any, source: str) -> Any:
        if isinstance(like, str):
            return self._text(value, source)
        if isinstance(like, bool):
            if not isinstance(value, int | float) or value not in (0, 1):
                raise self.refused(value, source, "use true or false")
            return bool(value)
        number = value
        if isinstance(like, int) and isinstance(value, float) and abs(value) <= EXACT_FLOAT:
            number = int(value) if value.is_integer() else value
        least = self.least
        low = -math.inf if least is None or number == self.low else least
        try:
            if (
                not isinstance(number, bool)
                and isinstance(number, int if isinstance(like, int) else int | float)
                and low <= number <= (math.inf if self.high is None else self.high)
                and abs(converted := type(like)(number)) < math.inf
            ):
                return converted
        except OverflowError:
            pass
        raise self.refused(value, source, f"use {self.allowed()}")

    def _text(self, value: Any, source: str) -> str:
        if self.form and isinstance(value, int | float) and not isinstance(value, bool):
            value = repr(value)
        is_own = self.own and isinstance(value, str) and CUSTOM_NAME.fullmatch(value)
        known = self.choices if isinstance(value, str) else ()
        if self.choices and not is_own and value not in known:
            near = format_suggestion(str(value), self.choices)
            raise self.refused(value, source, f"use {self.allowed()}{near and f' ({near})'}")
        if callable(value):
            name = f"{getattr(value, '__module__', 'module')}:{getattr(value, '__name__', 'name')}"
            raise self.refused(value, source, f"name it as text, {name!r}")
        # Settings are printed on terminals, so they must not contain escape sequences.
        if not isinstance(value, str) or not value.isprintable():
            raise self.refused(value, source, "use printable text")
        if self.form and value != self.default:
            try:
                self.form(value)
            except ValueError as error:
                fix = f"use {self.forms}" if self.forms else str(error)
                raise self.refused(value, source, fix) from None
        return value

    def allowed(self) -> str:
        if self.words:
            return join(self.words)
        example = self.default[0] if isinstance(self.default, tuple) else self.default
        noun = "a whole number" if isinstance(example, int) else "a finite number"
        if self.high is not None:
            noun += f" from {bare(self.least)} to {bare(self.high)}"
        elif self.low is not None:
            noun += f" of {bare(self.least)} or more"
        return noun + (f", or {self.word}" if self.word else "")

    def shown(self) -> str:
        """The default as people write it."""
        if self.word:
            return self.word
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default)) or "none"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default) or NONE

    def refused(self, value: Any, source: str, fix: str) -> UsageError:
        name = written_in(source, self.name)
        return UsageError(f"{name} is {short(value)} in {source}: {fix}")


def setting(default: Any, text: str, **facts: Any) -> Any:
    """A setting with this default; ``facts`` are the other fields of ``Setting``."""
    return Setting(default, text, **facts)


@cache
def declared(kind: type) -> dict[str, Setting]:
    """The settings of a class and of its bases by name, in order."""
    found: dict[str, Setting] = {}
    group = ""
    for base in reversed(kind.__mro__):
        for name, one in vars(base).items():
            if isinstance(one, Setting):
                group = one.group or group
                found[name] = replace(one, name=name, group=group)
    return found


class FoundClasses(Mapping[str, Any]):
    """The classes of a package's modules by the names that they give themselves: a new file there
    is enough. Modules are imported at first use, one with the class's name in its own first.

    attribute: of a class, with its name or a tuple of its names
    """

    def __init__(self, package: str, attribute: str) -> None:
        self.package, self.attribute = package, attribute
        self._found: dict[str, Any] = {}

    @cached_property
    def _modules(self) -> list[str]:
        path = import_module(self.package).__path__
        return [each.name for each in iter_modules(path)]

    def _read(self, module: str) -> None:
        for one in vars(import_module(f"{self.package}.{module}")).values():
            names = vars(one).get(self.attribute, ()) if isinstance(one, type) else ()
            names = (names,) if isinstance(names, str) else names
            self._found |= {name: one for name in names if name}

    @cached_property
    def _all(self) -> dict[str, Any]:
        for module in self._modules:
            self._read(module)
        return dict(sorted(self._found.items()))

    def __getitem__(self, name: str) -> Any:
        for module in self._modules if name not in self._found else ():
            if name == module or name in module.split("_"):
                self._read(module)
        return self._found[name] if name in self._found else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __bool__(self) -> bool:  # without an import
        return True


# --- values and words


def format_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def written_in(source: str, name: str) -> str:
    """A setting's name as its source has it: a flag, a key or a field."""
    return format_flag(name) if source == COMMAND_LINE else name


def number_or_text(text: str) -> int | float | str:
    """A number on a command line (64, 1e6, 2.5M) as that number, other text unchanged."""
    factor = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:], 1)
    digits = text if factor == 1 else text[:-1]
    for read in (int, float):
        try:
            return read(digits) * factor
        except ValueError:
            continue
    return text


def without_numpy(value: Any) -> Any:
    """numpy's numbers and arrays as Python's, without an import of numpy."""
    return value.tolist() if type(value).__module__ == "numpy" else value


def join(words: tuple[str, ...] | list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def bare(bound: float | None) -> str:
    return f"{int(bound)}" if bound is not None and bound == int(bound) else f"{bound}"


def short(value: Any) -> str:
    """A value as people write it, short enough for a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits, or deep nesting
        return f"too large a value of type {type(value).__name__} to show"
    return text if len(text) <= 60 else text[:60] + "..."


def is_plain(value: Any) -> bool:
    """Whether JSON stores the value: text, a finite number, true, false or None."""
    if isinstance(value, float):
        return math.isfinite(value)
    # TOML's hexadecimal form allows ints of any length, JSON's decimal form does not.
    return (
        value is None or isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**64)
    )
