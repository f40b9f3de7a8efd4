"""Notes: what modules log, and who shows it."""

from __future__ import annotations

import logging

import pytest

from master.display.notes import LOGGER, TERMINAL, NoteHandler

FLEET = logging.getLogger("es_queue.fleet")


def test_a_note_of_any_module_is_shown_as_one_line_without_control_characters() -> None:
    shown: list[str] = []
    with NoteHandler(shown.append):
        FLEET.warning("host \x1b[2Jevil\n100 %s")
        FLEET.info("and on")
    FLEET.warning("nobody shows this")
    assert shown == ["host \\x1b[2Jevil\\n100 %s", "and on"]


def test_notes_from_before_there_is_a_view_are_shown_in_it_once_and_in_order() -> None:
    shown: list[str] = []
    with NoteHandler() as handler:
        for text in ("first", "second", "first"):
            FLEET.warning(text)
        handler.show_in(shown.append)
        FLEET.warning("third")
    assert shown == ["first", "second", "third"]


def test_what_the_terminal_shows_at_once_is_not_shown_in_the_view_again() -> None:
    at_once, shown = list[str](), list[str]()
    with NoteHandler(at_once.append, TERMINAL), NoteHandler(shown.append):
        TERMINAL.info("standing by \x07")
    assert (at_once, shown) == (["standing by \\x07"], [])


def test_no_other_handler_gets_what_is_not_sanitised(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.StreamHandler()
    logging.getLogger().addHandler(root)
    try:
        FLEET.warning("\x1b[2J")
    finally:
        logging.getLogger().removeHandler(root)
    assert capsys.readouterr() == ("", "") and not LOGGER.propagate
