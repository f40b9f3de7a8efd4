"""What es-master prints at the start for workers on other terminals."""

from __future__ import annotations

from pathlib import Path

from es_queue.util.run_folder import NamedRun
from master.services.start_lines import start_lines


def test_the_join_line_allows_the_loose_modules_of_a_run_and_no_installed_ones() -> None:
    def join(*modules: str) -> str:
        return start_lines("redis://h", "default", NamedRun("r", Path("f")), None, modules)["join"]

    assert join("my_maze", "numpy") == (
        "ES_QUEUE_ALLOW=installed,my_maze rq worker --url redis://h"
    )
    assert join("numpy") == join() == "rq worker --url redis://h"
