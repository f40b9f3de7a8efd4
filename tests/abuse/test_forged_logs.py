"""Replay logs that a stranger wrote, their chain of digests made anew: what they say is checked
before it is used, and shown harmless.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from es_queue.errors import EsQueueError
from es_queue.slots import Shape
from master.cli.main import main as es_master
from master.storage.replay import chain_digest, list_log_files, read_frames
from tests.unit.master.storage.test_replay import RUN, logged, replayed

ESCAPE = "\x1b]0;mine\x07"
EMPTY = np.zeros(1, Shape(2, 2, 0).result)


def forged(folder: Path, place: int, **fields: Any) -> None:
    """Other fields in one generation of the log, under digests that agree."""
    (path,) = list_log_files(folder / "replay")
    payloads = [one.payload for one in read_frames(path, strict=True)]
    payloads[place] = msgpack.packb({**msgpack.unpackb(payloads[place]), **fields})
    path.write_bytes(framed(payloads))


def framed(payloads: list[bytes]) -> bytes:
    digest, data = b"", b""
    for payload in payloads:
        digest = chain_digest(digest, payload)
        data += len(payload).to_bytes(4, "little") + digest + payload
    return data


@pytest.mark.parametrize(
    "fields",
    [
        {"spans": np.array([[3, 0, 2**30]], "<i4").tobytes()},
        {"spans": b"torn"},
        {"results": [[0, b"torn"]]},
        {"changes": [{"generation": 0, "settings": 5}]},
    ],
    ids=["many rows", "torn rows", "torn", "settings"],
)
def test_a_generation_that_cannot_be_is_refused_in_one_sentence(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    logged(tmp_path)
    forged(tmp_path, 1, **fields)
    with pytest.raises(EsQueueError):
        replayed(tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"mean": b"", "m2": b""},
        {"count": "x"},
        {"count": 1e9},
        {"changes": [{"generation": 0, "settings": {"policy": "evil:Evil"}}]},
    ],
    ids=["moments", "text for a count", "count", "policy"],
)
def test_what_differs_from_the_newest_checkpoint_is_not_said_to_agree(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    """The checkpoint, too, has the observation statistics of the last generation, which are no
    part of the digest of the parameters.
    """
    logged(tmp_path)
    (path,) = list_log_files(tmp_path / "replay")
    forged(tmp_path, len(list(read_frames(path))) - 1, **fields)
    with pytest.raises(EsQueueError):
        replayed(tmp_path)


@pytest.mark.parametrize("field", ["digest", "generation"])
def test_a_log_says_nothing_to_the_terminal(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / RUN
    logged(folder)
    forged(folder, 1, **{field: ESCAPE})
    assert es_master(["--replay", str(folder), "--noise-dir", str(tmp_path / "noise")]) == 6
    assert "\x1b" not in capsys.readouterr().err
