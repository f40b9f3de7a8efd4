"""No page names a removed flag or setting, and one that is given is answered with its successor."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from es_queue.config.changeable import validate_changes
from es_queue.config.removed import REMOVED
from es_queue.config.run_config import RunConfig, flag_name
from es_queue.errors import UsageError
from master.cli.flags import make_parser
from master.cli.main import main as es_master
from master.plot.command import main as es_plot
from master.run.training import train
from master.status.command import main as es_status
from tests.docs.pages import named, pages
from tests.docs.test_docs_reference import writer
from workers.es_worker import main as es_worker
from workers.play.cli import main as es_play

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "es-master": es_master,
    "es-status": es_status,
    "es-play": es_play,
    "es-plot": es_plot,
    "es-worker": es_worker,
}
REMOVED_FLAG = re.compile(
    rf"(?<![\w-])--(?:no-)?(?:{'|'.join(map(flag_name, sorted(REMOVED)))})(?![\w-])"
)


def removed_flags(text: str) -> list[str]:
    return REMOVED_FLAG.findall(text)


@pytest.mark.parametrize("page", [one for one in pages() if one.name != "CHANGELOG.md"], ids=named)
def test_no_page_names_a_removed_flag(page: Path) -> None:
    assert removed_flags(page.read_text("utf-8")) == []


def test_no_help_text_names_a_removed_flag() -> None:
    parsers = {name: writer().parser_of(command) for name, command in COMMANDS.items()}
    texts = [make_parser().format_everyday_help(), *(one.format_help() for one in parsers.values())]
    assert "--target-reward" in "".join(texts)
    assert removed_flags("".join(texts)) == []


def test_a_removed_flag_on_a_page_is_found() -> None:
    flag = f"--{flag_name(min(REMOVED))}"
    assert removed_flags(f"es-master {flag}=3, {flag}-of-another") == [flag]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_flag_is_answered_with_what_to_use_instead(
    name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = f"--{flag_name(name)}"
    assert COMMANDS[command]([flag, "1"]) == 2
    assert capsys.readouterr().err == f"{command}: {flag} was removed: {REMOVED[name]}\n"


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_setting_is_answered_with_what_to_use_instead(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = f": {name} was removed: {re.escape(REMOVED[name])}$"
    with pytest.raises(UsageError, match=f"^RunConfig{sentence}"):
        RunConfig(**{name: 1})
    with pytest.raises(UsageError, match=rf"^train\(\){sentence}"):
        train(RunConfig(env="X-v0"), **{name: 1})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"^--set{sentence}"):
        validate_changes({name: "1"}, "--set")
    settings = tmp_path / "settings.toml"
    settings.write_text(f"{name} = 1\n")
    assert es_master(["--env", "X-v0", "--config", str(settings)]) == 2
    assert re.search(sentence[:-1], capsys.readouterr().err)
