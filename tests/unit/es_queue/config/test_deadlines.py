"""The written form of deadlines, and the settings that they fit."""

from __future__ import annotations

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.errors import UsageError
from tests.cases import each_case
from tests.memory import quick_config


@each_case(
    "text",
    ["", "8e5", "8e5=", "=200", "1=2=3", "0=1", "-1=1", "2=1,1=2", "1=1,1=2", "nan=1", "1=inf"],
)
def test_other_forms_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"restart_deadlines is .*: use STEPS=RETURN"):
        RunConfig(restart_deadlines=text)


@each_case(
    ("values", "sentence"),
    [
        ({"eval_every": 0, "target_reward": "none"}, "eval_every is 0, and deadlines"),
        (
            {"rollback": True, "eval_episodes": 50},
            "rollback replaces searches by its own rule: leave restart_deadlines or rollback out",
        ),
        (
            {"strategy": "snes", "schedule": "async"},
            "restart_deadlines is 1=2, but the schedule async does not use it",
        ),
    ],
)
def test_deadlines_are_refused_where_they_come_to_nothing(
    values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        quick_config(**{"eval_every": 1, "restart_deadlines": "1=2", **values}).check()
