"""Every flag that a page gives to a command of ours is one that the command knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from es_queue.config.resolution import resolve
from es_queue.strategies import make_strategy
from master.cli.flags import make_parser
from master.cli.options import parse_command_line
from master.plot.command import main as es_plot
from master.status.command import main as es_status
from tests.docs.pages import FENCE, named, pages
from tests.docs.test_docs_reference import writer
from workers.es_play import main as es_play
from workers.es_worker import main as es_worker

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
    found = {name: set(parser_of(main)._option_string_actions) for name, main in commands.items()}
    return {**found, "es-master": set(make_parser()._option_string_actions)}


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
