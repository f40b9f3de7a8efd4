"""What all es- commands do with their command lines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from es_queue.command_line import CommandParser, add_options
from es_queue.errors import UsageError
from tests.cases import each_case

SENTENCES = [
    (["--count", "x/y"], "argument --count: invalid int value: 'x/y'"),
    (["--kind", "c"], "argument --kind: invalid choice: 'c' (choose from "),
    (["--old", "--new"], "argument --new: not allowed with argument --old"),
    ([], "the following arguments are required: RUN"),
]


@each_case(("words", "sentence"), SENTENCES)
def test_what_argparse_refuses_is_one_sentence_with_option_value_and_advice(
    words: list[str], sentence: str
) -> None:
    parser = CommandParser("es-test", "A test.")
    add_options(
        parser,
        "run RUN\n  a run\n--count N\n  a number\n--kind\n  a or b\n--file PATH\n  a file",
        count={"type": int},
        kind={"choices": ["a", "b"]},
    )
    add_options(parser.add_mutually_exclusive_group(), "--old\n  a\n--new\n  b")
    with pytest.raises(UsageError) as refusal:
        parser.parse_words(["walker", *words] if words else [])
    assert str(refusal.value).startswith(sentence)
    assert str(refusal.value).endswith("; es-test --help lists all options")


def test_help_that_nobody_reads_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-c", "from master.cli.main import main; main(['--help-all'])"],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, b"")
