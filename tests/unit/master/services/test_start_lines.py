"""What es-master prints at the start for workers on other terminals."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_queue.util.run_folder import NamedRun
from master.services.start_lines import start_lines


def test_the_join_line_allows_the_loose_modules_of_a_run_and_no_installed_ones() -> None:
    def join(*modules: str) -> str:
        return start_lines("redis://h", "default", NamedRun("r", Path("f")), None, modules)["join"]

    assert join("my_maze", "numpy") == (
        "ES_QUEUE_ALLOW=installed,my_maze rq worker --url redis://h"
    )
    assert join("numpy") == join() == "rq worker --url redis://h"


@pytest.mark.parametrize("by_flag", [True, False])
def test_a_password_file_is_named_where_a_command_needs_it(
    by_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_flag:
        monkeypatch.setenv("ES_QUEUE_REDIS_PASSWORD_FILE", "/keys/es pass")
    url, file = "redis://ada:secret@h:7/1", "/keys/es pass" if by_flag else None
    lines = start_lines(url, "night", NamedRun("r", Path("f")), None, ["maze"], file)
    assert lines["watch"].endswith(
        "es-status f --redis-url redis://ada@h:7/1 --redis-password-file '/keys/es pass'"
    )
    assert lines["join"] == (
        "ES_QUEUE_REDIS_PASSWORD_FILE='/keys/es pass' "
        "RQ_CONNECTION_CLASS=es_queue.protocol.connection.RedisWithPassword "
        "ES_QUEUE_ALLOW=installed,maze rq worker --url redis://ada@h:7/1 night"
    )


def test_a_password_without_a_file_leaves_a_command_that_a_shell_accepts() -> None:
    lines = start_lines("redis://:secret@h", "night", NamedRun("r", Path("f")), None)
    assert lines["join"] == "rq worker night  # RQ_REDIS_URL must hold this server's URL"
    assert "secret" not in str(lines)
