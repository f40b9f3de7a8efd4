"""A noise table that a program of the same user overwrites in place is noticed, at once
and later.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from es_queue.numerics import noise_table
from es_queue.numerics.noise_table import NoiseTable

SIZE = 2**18


def overwrite(path: Path, start: int = 0, stop: int = SIZE) -> None:
    """Zero the floats from start to stop in the same file, as code of the same user can."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(4 * start)
        file.write(bytes(4 * (stop - start)))


def stored(folder: Path) -> Path:
    path = NoiseTable.open(SIZE, folder).path
    assert path is not None
    return path


def is_genuine(table: NoiseTable) -> bool:
    return np.array_equal(table.row(0, SIZE), NoiseTable.in_memory(SIZE).row(0, SIZE))


def test_a_table_of_which_half_was_zeroed_is_found_out(tmp_path: Path) -> None:
    for start, stop in ((0, SIZE // 2), (SIZE // 2, SIZE)):
        overwrite(stored(tmp_path), start, stop)
        with pytest.warns(RuntimeWarning, match="does not contain"):
            assert is_genuine(NoiseTable.open(SIZE, tmp_path))


def test_a_table_that_is_overwritten_while_it_is_in_use_is_replaced_in_the_process(
    tmp_path: Path,
) -> None:
    table = NoiseTable.open(SIZE, tmp_path)
    assert [table.recheck() for _ in range(2 * noise_table.RECHECK_EVERY)] == [""] * (
        2 * noise_table.RECHECK_EVERY
    )
    overwrite(tmp_path / f"normals-{noise_table.RECIPE}-{noise_table.DEFAULT_SEED}-{SIZE}.f32")
    assert not table.row(0, SIZE).any(), "the mapping shows what was written"
    found = [text for text in (table.recheck() for _ in range(noise_table.RECHECK_EVERY)) if text]
    assert (
        len(found) == 1
        and "was changed while this process used it" in found[0]
        and "ES_QUEUE_NOISE_DIR" in found[0]
    )
    assert is_genuine(table)
    assert [table.recheck() for _ in range(2 * noise_table.RECHECK_EVERY)] == [""] * (
        2 * noise_table.RECHECK_EVERY
    )
