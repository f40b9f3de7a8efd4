"""Tables of a terminal: what a narrow one leaves out, and what a pipe gets."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from master.display.terminal import FittingTable, format_plain_table, make_fields
from tests.cases import each_case


def printed(width: int, table: FittingTable) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def columns_at(width: int, table: FittingTable) -> str:
    return " ".join(printed(width, table)[0].split())


def test_what_does_not_fit_a_narrow_terminal_goes_in_the_given_order() -> None:
    rows = [("r" * 10, "e" * 10, "b" * 10, "1")]
    table = FittingTable(("run", "env", "best", "n"), rows, (), ("best", "env"))
    shown = [columns_at(width, table) for width in (37, 36, 23)]
    assert shown == ["run env best n", "run env n", "run n"]


def test_the_last_column_gives_way_before_another_one_goes() -> None:
    rows = [("k" * 10, "string", "c" * 80)]
    table = FittingTable(("key", "type", "content"), rows, (), ("type",))
    assert columns_at(32, table) == "key type content" and columns_at(31, table) == "key content"
    assert f"{'k' * 10}  string  {'c' * 19}…" in printed(40, table)


@each_case("width", [10, 20, 40])
def test_the_first_column_is_whole_wherever_it_fits(width: int) -> None:
    rows = [("r" * 10, "e" * 30, "b" * 30)]
    table = FittingTable(("run", "env", "best"), rows, (), ())
    assert printed(width, table)[1].startswith("r" * 10)


def test_a_pipe_gets_whole_rows_and_no_blanks_at_their_ends() -> None:
    table = FittingTable(("run", "n"), [("a" * 200, "1"), ("b", "22")], ("n",), ("n",))
    assert list(format_plain_table(table)) == [
        f"run{' ' * 197}   n",
        f"{'a' * 200}   1",
        f"b{' ' * 199}  22",
    ]
    fields = make_fields([("  label", Text("text")), ("  b", Text(""))], 9)
    assert list(format_plain_table(fields)) == ["  label  text", "  b"]
