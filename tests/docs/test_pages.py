"""The pages say what the code and other pages say, in plain words; their links lead somewhere."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from es_queue.config.recipes import resolve
from es_queue.config.run_config import every_setting, resumable
from es_queue.protocol.messages import TASK_FIELDS, WIRE
from es_queue.slot_record import COLUMNS
from es_queue.strategies import make_strategy
from master.cli.flags import make_parser
from master.cli.options import parse_command_line
from master.plot.command import main as es_plot
from master.status.command import main as es_status
from tests.docs.pages import FENCE, HOUSE, LINK, anchors, named, pages, prose
from tests.memory import quick_config, run_ring
from tools.check_words import check_page
from tools.sentences import sentences, source_files
from workers.es_play import main as es_play
from workers.es_worker import main as es_worker

# --- no page of the project leads nowhere: files, and headings in them


def broken(page: Path) -> list[str]:
    """The targets in a page that are not there."""
    found = ["()"] * prose(page).count("]()")
    for target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in anchors(there)
        ):
            found.append(target)
    return found


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_link_between_files_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


# --- the pages keep to plain words, and what they quote of the program is there


TROUBLESHOOTING = HOUSE / "docs" / "troubleshooting.md"


@pytest.mark.parametrize("page", pages(), ids=named)
def test_a_page_keeps_to_plain_words(page: Path) -> None:
    assert [f"{found.line}: {found.found}" for found in check_page(page)] == []


@pytest.mark.parametrize("page", pages(), ids=named)
def test_a_page_has_one_title(page: Path) -> None:
    text = FENCE.sub("", page.read_text("utf-8"))
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def test_every_message_that_troubleshooting_quotes_is_in_the_source() -> None:
    quoted = re.findall(r"^### `(.+)`$", TROUBLESHOOTING.read_text("utf-8"), re.MULTILINE)
    known = [sentence.text for path in source_files() for sentence in sentences(path)]
    assert len(quoted) > 12
    assert [quote for quote in quoted if not any(quote in text for text in known)] == []


# --- the reference pages say what the code does


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


def test_each_option_of_the_everyday_help_has_a_line_that_says_when_to_use_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse_command_line(["--help"])
    shown = re.findall(r"^  (?:-h.*)?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    page = (REFERENCE / "flags.md").read_text("utf-8")
    lines = page.partition("## When to use")[2].partition("\n## ")[0]
    assert len(shown) > 15
    assert sorted(shown) == sorted(re.findall(r"^\| `(--[a-z-]+)` \| \S", lines, re.MULTILINE))


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


# --- every flag that a page gives to a command of ours is one that the command knows


COMMAND = re.compile(r"\b(es-master|es-status|es-play|es-plot|es-worker)\b([^`\n#&|]*)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
#: A command that trains, without what the shell does with it and without trackers, whose packages
#: may be missing.
TRAINS = re.compile(r"\bes-master (?P<words>(?=[^\n]*--env )[^\n|&;>…]*)")
TRACKER = re.compile(r"--track \S+")


@cache
def known() -> dict[str, set[str]]:
    parser_of = writer().parser_of
    commands: dict[str, Callable[[list[str]], int]] = {
        "es-status": es_status,
        "es-play": es_play,
        "es-plot": es_plot,
        "es-worker": es_worker,
    }
    found = {name: flags_of(parser_of(main)) for name, main in commands.items()}
    settings = {name.replace("_", "-") for name in every_setting()}
    own = {f"--{prefix}{name}" for name in settings for prefix in ("", "no-")}
    return {**found, "es-master": flags_of(make_parser()) | own}


def flags_of(parser: ArgumentParser) -> set[str]:
    """All that its help names."""
    return set(FLAG.findall(parser.format_help()))


def unknown(text: str) -> list[str]:
    """Commands with a flag that they do not know."""
    found = []
    for part in re.split(r"(?=\bes-(?:master|status|play|plot|worker)\b)", text):
        for name, words in COMMAND.findall(part.partition("`")[0]):
            found += [f"{name} {flag}" for flag in FLAG.findall(words) if flag not in known()[name]]
    return found


@pytest.mark.parametrize("page", pages(), ids=named)
def test_commands_of_ours_have_flags_that_they_know(page: Path) -> None:
    assert unknown(page.read_text("utf-8")) == []


def training_commands(text: str) -> list[str]:
    """The options of each command in a fenced block that trains in an environment."""
    blocks = [found["code"] for found in FENCE.finditer(text) if found["language"] == "sh"]
    joined = "".join(blocks).replace("\\\n", " ")
    return [TRACKER.sub("", found["words"]) for found in TRAINS.finditer(joined)]


@pytest.mark.parametrize("page", pages(), ids=named)
def test_a_pages_training_commands_have_settings_that_fit_together(page: Path) -> None:
    for command in training_commands(page.read_text("utf-8")):
        values, launch = parse_command_line(shlex.split(command, comments=True))
        config = resolve(values, launch.inherited)
        if ":" not in config.strategy:  # the page's own module is nowhere
            make_strategy(config, size=9)


# --- figures that the README takes from other pages are those of the pages


HOUSE = Path(__file__).resolve().parents[2]
README = (HOUSE / "README.md").read_text("utf-8")


def text_of(name: str) -> str:
    return (HOUSE / "docs" / name).read_text("utf-8")


def median(figure: str) -> float:
    """Of a row of docs/performance.md."""
    (found,) = re.findall(
        rf"^\| {re.escape(figure)} \|[^|]*\| ([\d.]+)", text_of("performance.md"), re.MULTILINE
    )
    return float(found)


def test_the_faults_are_as_many_as_the_table_has() -> None:
    table = (
        text_of("reliability.md").partition("<!-- table:")[2].partition("<!-- end of the table")[0]
    )
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in line.split("|")] for line in rows]
    equal = sum(row[7] == "equal" for row in cells)
    assert f" {len(rows)} kinds of fault " in README and {row[4] for row in cells} == {"0"}
    assert f" {equal} kinds of fault that compare them" in README
    assert f"({len(rows) - equal} of them check something other" in README


def test_the_figures_of_speed_are_those_that_were_measured() -> None:
    told = [
        (
            r"first result ([\d.]+) s after a worker starts",
            median("plain rq worker, launch to first result, lean"),
        ),
        (
            r"leaves ([\d.]+) s after SIGTERM",
            median("plain rq worker, SIGTERM while it plays to exit, lean"),
        ),
        (
            r"([\d.]+) % of the speed of bare episode loops",
            100 * median("CPU-seconds per counted step, bare loops ÷ whole run, lean"),
        ),
        (r"walker runs ([\d.]+) times", median("lean BipedalWalker ÷ stock loop, 32 episodes")),
        (
            r"or ([\d.]+) times with EnvPool",
            median("envpool BipedalWalker ÷ stock loop, 32 episodes"),
        ),
        (r"CartPole ([\d.]+) to", median("CartPole vectorised ÷ stock loop")),
        (r"CartPole [\d.]+ to ([\d.]+) times", median("CartPole vectorised ÷ stock loop, linear")),
        (
            r"\(([\d.]+) with an untrained policy",
            median("CartPole vectorised ÷ stock loop, untrained"),
        ),
    ]
    for words, measured in told:
        (figure,) = re.findall(words, README)
        last = 10.0 ** -len(figure.partition(".")[2])
        assert abs(float(figure) - measured) <= 0.501 * last, (words, measured)


def test_the_page_of_control_has_the_settings_that_a_resume_may_change() -> None:
    text = text_of("running.md")
    told = text.partition("With `--resume`, you can change")[2].partition("To begin a new run")[0]
    assert set(re.findall(r"`--([\w-]+)`", told)) == {
        name.replace("_", "-") for name in resumable()
    }


# --- sECURITY.md names the tests that hold what it promises


CREDENTIALS = {
    *("none", "viewer", "worker", "broken host", "scaler", "master", "account on a host"),
    *("stranger's file", "operator's tools"),
}


def test_what_a_credential_cannot_do_is_held_by_a_test() -> None:
    lines = (HOUSE / "SECURITY.md").read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in cells if len(row) == 4 and row[1] in ("can", "cannot")]
    bare = [what for _, can, what, held in rows if can == "cannot" and not LINK.search(held)]
    assert {row[0] for row in rows} == CREDENTIALS and bare == []
