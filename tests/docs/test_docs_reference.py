"""The reference pages say what the code does."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from typing import Any

from es_queue.protocol.messages import TASK_FIELDS, WIRE
from es_queue.slot_record import COLUMNS
from tests.docs.pages import HOUSE
from tests.ring import quick_config, run_ring

REFERENCE = HOUSE / "docs" / "reference"


def writer() -> Any:
    spec = importlib.util.spec_from_file_location(
        "write_reference", HOUSE / "tools" / "write_reference.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fields_of_tables(page: str) -> list[set[str]]:
    """For each table of a page the names in code in its first column."""
    text = (REFERENCE / page).read_text("utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        {
            name
            for row in table.splitlines()[2:]
            for name in re.findall(r"`(\w+)`", row.split("|")[1])
        }
        for table in tables
    ]


def test_flags_keys_and_exit_codes_are_those_of_the_code() -> None:
    for name, text in writer().written().items():
        assert (HOUSE / "docs" / name).read_text("utf-8") == text, (
            f"docs/{name} is not current: python -m tools.write_reference"
        )


def test_a_real_record_has_exactly_the_fields_that_the_page_tells() -> None:
    records = run_ring(quick_config(generations=3, eval_every=1, target_reward="none"))[1].records
    always, learnt = fields_of_tables("metrics.md")
    assert set(records[0]) == always | learnt
    assert all(always <= set(one) <= always | learnt for one in records)


def test_formats_name_every_field_of_a_task_and_every_column_of_a_slot_record() -> None:
    wire = (HOUSE / "docs" / "protocol.md").read_text("utf-8")
    files = (REFERENCE / "formats.md").read_text("utf-8")
    assert f"`wire` ({WIRE})" in wire
    assert [name for name in TASK_FIELDS if f"`{name}`" not in wire] == []
    assert [name for name in (*COLUMNS, "published") if f"`{name}`" not in files] == []


def test_the_page_of_the_api_names_what_is_there() -> None:
    named = re.findall(r"^::: ([\w.]+)$", (REFERENCE / "api.md").read_text("utf-8"), re.MULTILINE)
    assert len(named) > 8
    for name in named:
        pkgutil.resolve_name(name)
