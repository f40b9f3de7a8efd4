"""Which names a mistyped one is answered with."""

from __future__ import annotations

from es_queue.util.suggestions import nearest_names
from tests.cases import each_case

FLAGS = ["--population-max", "--population", "--doctor", "--errors", "--seed", "--env"]


@each_case(
    ("word", "near"),
    [
        ("--popluation", ["--population"]),
        ("--pop", ["--population", "--population-max"]),
        ("--sed", ["--seed"]),
        ("--evn", ["--env"]),
        ("--foo", []),
        ("--", []),
        ("", []),
    ],
)
def test_a_mistyped_flag_is_answered_with_similar_ones_only(word: str, near: list[str]) -> None:
    assert nearest_names(word, FLAGS) == near
