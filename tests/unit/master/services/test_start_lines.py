"""What es-master prints at the start for workers on other terminals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from es_queue.config.run_config import RunConfig
from es_queue.run_folder import NamedRun
from es_queue.user_code import loose_modules
from master.services.local_services import start_lines


def join_line(**settings: Any) -> str:
    modules = loose_modules(RunConfig(backend="stock", **settings))
    return start_lines("redis://h", "default", NamedRun("r", Path("f")), None, modules)["join"]


def test_the_join_line_allows_the_loose_modules_of_a_run_and_no_installed_ones() -> None:
    settings = {"env": "my_maze:Maze-v0", "policy": "numpy.lab:Policy"}
    assert join_line(**settings) == "ES_QUEUE_ALLOW=installed,my_maze rq worker --url redis://h"
    packaged = {"env": "numpy.lab:Maze-v0", "policy": "numpy.lab:Policy"}
    assert join_line(**packaged) == join_line(env="CartPole-v1") == "rq worker --url redis://h"


@pytest.mark.parametrize("by_flag", [True, False])
def test_a_password_file_is_named_where_a_command_needs_it(
    by_flag: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_flag:
        monkeypatch.setenv("ES_QUEUE_REDIS_PASSWORD_FILE", "/keys/es pass")
    url, file = "redis://ada:secret@h:7/1", "/keys/es pass" if by_flag else None
    lines = start_lines(url, "night", NamedRun("r", Path("f")), None, ["maze"], file)
    assert lines["watch"].endswith(
        "es-status ./f --redis-url redis://ada@h:7/1 --redis-password-file '/keys/es pass'"
    )
    assert lines["join"] == (
        "ES_QUEUE_REDIS_PASSWORD_FILE='/keys/es pass' "
        "RQ_CONNECTION_CLASS=es_queue.protocol.connection.RedisWithPassword "
        "ES_QUEUE_ALLOW=installed,maze rq worker --url redis://ada@h:7/1 night"
    )
    assert lines["stay"] == (
        "ES_QUEUE_ALLOW=installed,maze es-worker night --redis-url redis://ada@h:7/1 "
        "--redis-password-file '/keys/es pass'"
    )
