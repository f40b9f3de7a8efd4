"""What the master's modules log, as a list of sentences."""

from __future__ import annotations

import logging

import pytest

from master.display.notes import LOGGER, NoteHandler


def collect_notes(logger: logging.Logger = LOGGER) -> list[str]:
    """The sentences that are logged from now on, until the test ends (``tests/conftest.py``)."""
    notes: list[str] = []
    logger.addHandler(NoteHandler(notes.append, logger))
    return notes


def fail_on_notes() -> None:
    """The test fails with the first sentence that is logged."""
    LOGGER.addHandler(NoteHandler(pytest.fail))
