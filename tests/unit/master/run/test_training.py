"""What ``train`` gives its caller."""

from __future__ import annotations

from typing import Any

import pytest

from master.display.log_view import CallbackView
from master.run.training import TrainResult


def test_a_callback_that_has_returned_false_is_not_called_again() -> None:
    records: list[dict[str, Any]] = []

    def callback(record: dict[str, Any]) -> bool | None:
        records.append(record)
        return None if len(records) == 1 else False

    view = CallbackView(callback)
    for generation in range(4):
        view.generation({"generation": generation})
    assert [record["generation"] for record in records] == [0, 1] and not view.keeps_going


def test_a_result_is_a_mapping_with_attributes_and_shows_what_it_came_to() -> None:
    result = TrainResult(
        run="walker", state="finished", generation=7, eval_mean=301.25, eval_std=2.0
    )
    assert result["eval_mean"] == result.eval_mean == 301.25 and "digest" not in result
    assert repr(result) == (
        "<TrainResult of run walker: finished at generation 7, evaluation 301.2 ± 2.0>"
    )
    with pytest.raises(AttributeError, match="no 'digest'"):
        _ = result.digest
