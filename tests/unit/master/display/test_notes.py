"""Notes: what modules log, and who shows it."""

from __future__ import annotations

import logging

import pytest

from master.display.notes import LOGGER, NoteHandler

FLEET = logging.getLogger("es_queue.fleet")


def test_a_note_of_any_module_is_shown_as_one_line_without_control_characters() -> None:
    shown: list[str] = []
    with NoteHandler(shown.append):
        FLEET.warning("host \x1b[2Jevil\n100 %s")
        FLEET.info("and on")
    FLEET.warning("nobody shows this")
    assert shown == ["host \\x1b[2Jevil\\n100 %s", "and on"]


def test_no_other_handler_gets_what_is_not_sanitised(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.StreamHandler()
    logging.getLogger().addHandler(root)
    try:
        FLEET.warning("\x1b[2J")
    finally:
        logging.getLogger().removeHandler(root)
    assert capsys.readouterr() == ("", "") and not LOGGER.propagate
