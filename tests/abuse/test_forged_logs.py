"""Replay logs that a stranger wrote, their chain of digests made anew: what they say is checked before it is used, and shown harmless."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from es_queue.errors import EsQueueError
from master.replay_log import chained, files, frames
from tests.unit.test_replay import RUN, logged, replayed

ESCAPE = "\x1b]0;mine\x07"
SLOTS = np.arange(4, dtype="<i8").tobytes()
EIGHT = np.zeros(1).tobytes()


def forged(folder: Path, place: int, **fields: Any) -> None:
    """Other fields in one generation of the log, under digests that agree."""
    (path,) = files(folder / "replay")
    payloads = [one.payload for one in frames(path, strict=True)]
    payloads[place] = msgpack.packb({**msgpack.unpackb(payloads[place]), **fields})
    digest, data = b"", b""
    for payload in payloads:
        digest = chained(digest, payload)
        data += len(payload).to_bytes(4, "little") + digest + payload
    path.write_bytes(data)


@pytest.mark.parametrize(
    "fields",
    [
        {"publication": "x", "used": [["x", SLOTS]], "tried": []}, {"publication": 5, "used": [[5, SLOTS]], "tried": []},
        {"publication": "9" * 5000, "used": [["9" * 5000, SLOTS]], "tried": []}, {"individuals": 1}, {"again": EIGHT},
        {"changes": [{"generation": "x", "settings": {}}]}, {"changes": [{"generation": 0, "settings": 5}]},
    ],
    ids=["publication", "number", "digits", "individuals", "again", "when", "settings"],
)  # fmt: skip
def test_a_generation_that_cannot_be_is_refused_in_one_sentence(fields: dict[str, Any], tmp_path: Path) -> None:
    logged(tmp_path)
    forged(tmp_path, 1, **fields)
    with pytest.raises(EsQueueError):
        replayed(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [{"mean": b"", "m2": b""}, {"count": "x"}, {"count": 1e9}, {"step_limit": "x"}, {"step_limit": 1}, {"changes": [{"generation": 0, "settings": {"policy": "evil:Evil"}}]}],
    ids=["moments", "text for a count", "count", "text for a limit", "limit", "policy"],
)
def test_what_differs_from_the_newest_checkpoint_is_not_said_to_agree(fields: dict[str, Any], tmp_path: Path) -> None:
    """Observation statistics and step limit of the last generation stand in the checkpoint too; they are no part of the digest of the parameters."""
    logged(tmp_path)
    (path,) = files(tmp_path / "replay")
    forged(tmp_path, len(list(frames(path))) - 1, **fields)
    with pytest.raises(EsQueueError):
        replayed(tmp_path)


@pytest.mark.parametrize("fields", [{"digest": ESCAPE}, {"generation": ESCAPE}, {"back": ESCAPE}], ids=list)
@pytest.mark.parametrize("told", [pytest.param(lambda error: _shown_by_master(error), id="es-master")])
def test_a_log_says_nothing_to_the_terminal(fields: dict[str, Any], told: Callable[[EsQueueError], str], tmp_path: Path) -> None:
    logged(tmp_path)
    forged(tmp_path, 1, **fields)
    with pytest.raises(EsQueueError) as raised:
        replayed(tmp_path)
    assert "\x1b" not in told(raised.value)


def _shown_by_master(error: EsQueueError) -> str:
    """What ``master.cli.main`` prints of an error."""
    import contextlib
    import io
    from unittest.mock import patch

    from master import cli

    def fail(*_: object) -> int:
        raise error

    out = io.StringIO()
    with patch.object(cli, "study_or_run", fail), patch.object(cli, "refuse_shadowed", lambda: None), patch.object(cli, "collect_garbage_seldom", lambda: None), patch.object(cli, "end_at_once_on_ctrl_c", lambda: None), contextlib.redirect_stderr(out):
        cli.main(["--resume", RUN])
    return out.getvalue()


def test_a_files_name_says_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An archive may bring a checkpoint of any name, which the folder's name alone leads to."""
    from workers.play import main

    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / f"generation-{ESCAPE}.npz").write_bytes(b"x")
    assert main([str(tmp_path), "--which", "last"]) == 6
    assert "\x1b" not in capsys.readouterr().err


def test_a_password_that_came_with_a_folder_opens_no_door(tmp_path: Path) -> None:
    """Whoever gave the folder knows it, and --resume --listen would let him in; a folder's own password is known by a mark of this account, or made anew."""
    from master.household.listen import open_door, parse, password_in

    known = "A" * 32
    (tmp_path / "password").write_text(known + "\n")
    (tmp_path / "password").chmod(0o644)  # as an archive has it
    open_door(tmp_path, parse("127.0.0.1:18777"))
    assert password_in(tmp_path) != known


def test_a_package_that_runs_texts_is_no_objective_of_a_file() -> None:
    """numpy.testing.measure(code, times) compiles what it is given, and a vector's bytes are a text to it.

    Today only the trial with zeros, which no text may hold, keeps es-play from calling it with a
    checkpoint's parameters.
    """
    from es_queue.custom_code import guarded_imports
    from es_queue.environments.objective import load

    with guarded_imports(trust=False), pytest.raises(EsQueueError, match="trust"):
        load("numpy.testing:measure")
