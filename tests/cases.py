"""One test over many cases: each that fails is reported by itself, with its values."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from pathlib import Path
from reprlib import Repr
from typing import Any

import pytest

Test = Callable[..., None]
SHORT = Repr()
SHORT.maxstring = SHORT.maxother = 60


def each_case(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """What ``pytest.mark.parametrize`` does, within one test: a case that fails stops no other.

    Two of them give every pair of their cases. Each case has a ``tmp_path`` and a ``monkeypatch``
    of its own, and ``capsys`` without what the cases before have printed; any other fixture is
    shared by all of them.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    rows = [(case,) if len(columns) == 1 else tuple(case) for case in cases]

    def decorate(test: Test) -> Test:
        more, other, function = getattr(test, "cases", ([], [()], test))
        crossed = [row + rest for row, rest in itertools.product(rows, other)]
        return _over_cases([*columns, *more], crossed, function, test)

    return decorate


def short_repr(value: Any) -> str:
    """At most a line; the type of what Python cannot show, as an integer of too many digits."""
    try:
        return SHORT.repr(value)
    except ValueError:
        return f"<{type(value).__name__}>"


def _over_cases(columns: list[str], rows: list[Any], function: Test, decorated: Test) -> Test:
    """``function`` with every row; ``decorated`` carries the marks."""
    parameters = inspect.signature(function).parameters
    fixtures = [name for name in parameters if name not in columns]

    def run_cases(subtests: pytest.Subtests, **given: Any) -> None:
        for number, row in enumerate(rows):
            values = dict(zip(columns, row, strict=True))
            shown = ", ".join(f"{name}={short_repr(value)}" for name, value in values.items())
            with subtests.test(shown), _renewed(given, number) as fresh:
                function(**fresh, **values)

    test = update_wrapper(run_cases, decorated)
    del test.__wrapped__  # pytest asks for the fixtures of this signature
    keyword = inspect.Parameter.KEYWORD_ONLY
    test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, keyword) for name in ("subtests", *fixtures)]
    )
    test.cases = (columns, rows, function)  # type: ignore[attr-defined]
    return test


@contextmanager
def _renewed(given: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures as a case finds them."""
    fresh = dict(given)
    with pytest.MonkeyPatch.context() as patches:
        if "monkeypatch" in fresh:
            fresh["monkeypatch"] = patches
        if isinstance(folder := fresh.get("tmp_path"), Path):
            fresh["tmp_path"] = folder / f"case{number}"
            fresh["tmp_path"].mkdir()
        for name in {"capsys", "capfd"} & fresh.keys():
            fresh[name].readouterr()
        yield fresh
