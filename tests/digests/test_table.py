"""Each row of the table of digests: a configuration ends with the bits that were recorded for it,
with any number of workers, and whatever happens to them.

``python -m tools.digests`` prints the table, and records it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.digests import doors
from tests.digests.doors import ROOT, Row
from tests.integration.conftest import processes, short_folder
from tests.integration.processes import ALLOW, NERVOUS, Processes, Seen, Started, wait_for

__all__ = ["processes", "short_folder"]

ROWS = doors.rows_by_name()
SMALL = [name for name, row in ROWS.items() if row.get("tier") != "full"]
LARGE = [name for name, row in ROWS.items() if row.get("tier") == "full"]
#: The row that the faults befall: statistics, growing batches, adaptive limits, evaluations.
WALKER = {**ROWS["walker v2"], "name": "faults"}
REPEATED = {**ROWS["ga"], "name": "repeated"}


def given(name: str) -> Row:
    """The row, if this machine can compare it. A row that must equal another can be compared
    everywhere, with the other.
    """
    row = ROWS[name]
    reason = doors.reason_to_skip(row)
    if reason:
        pytest.skip(reason)
    return row


def check(name: str) -> None:
    row = ROWS[name]
    reason = doors.reason_to_skip(row)
    if reason.startswith("other") and "same_as" in row:
        assert doors.play(row) == doors.play(ROWS[row["same_as"]])
        return
    assert doors.play(given(name)) == doors.expected_of(row)


@pytest.mark.fast
@pytest.mark.parametrize("name", SMALL)
def test_a_small_run_in_memory_has_the_recorded_digest(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", LARGE)
def test_a_run_with_optional_packages_has_the_recorded_digest(name: str) -> None:
    check(name)


@pytest.mark.fast
def test_no_two_rows_have_one_digest_unless_they_are_declared_equal() -> None:
    rows = [row for row in ROWS.values() if "same_as" not in row]
    assert len({row["expected"]["digest"] for row in rows}) == len(rows) >= 60


# --- with real workers


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "processes" in row])
def test_es_master_and_real_workers_give_the_recorded_digest(name: str, tmp_path: Path) -> None:
    row = given(name)
    found = doors.play_by_command(row, tmp_path, row["processes"])
    assert found == doors.expected_of(row)


Begin = Callable[..., Started]


@pytest.fixture
def begin(processes: Processes, valkey_url: str) -> Begin:
    """Starts an es-master of a row, whose workers are others'; or resumes it."""

    def start(row: Row, *more: object, resume: bool = False) -> Started:
        words = (
            ("--resume", "row", "--json") if resume else doors.command_of(row, "--run", "row")[1:]
        )
        folder = processes.folder / "run"
        return processes.master(
            *words, "--workers", 0, "--run-dir", folder, *more, url=valkey_url, clocks=NERVOUS
        )

    return start


def worker(processes: Processes, url: str) -> Started:
    allowed = {"PYTHONPATH": str(ROOT), ALLOW: "installed,tests"}
    return processes.worker(url, clocks=NERVOUS, **allowed)


def assert_as_recorded(row: Row, *masters: Started) -> None:
    assert masters[-1].wait() == 0, masters[-1].said()
    lines = [line for master in masters for line in master.out.read_text().splitlines()]
    assert doors.found_in(lines) == row["expected"]


@pytest.mark.parametrize("row", [WALKER, REPEATED], ids=["walker", "ga"])
def test_a_master_killed_in_a_generation_and_resumed_changes_no_bit(
    row: Row,
    begin: Begin,
    processes: Processes,
    valkey_url: str,
    redis_client: redis.Redis,
) -> None:
    given("walker v2")
    seen = Seen(redis_client, "row")
    one = worker(processes, valkey_url)
    first = begin(row)
    seat = seen.joined(one)
    wait_for(seen.has_reached(1), "generation 1")
    horse = seen.freeze_holding(seat)
    first.signal(signal.SIGKILL)
    first.process.wait()
    os.kill(horse, signal.SIGCONT)
    second = begin(row, resume=True)
    assert_as_recorded(row, first, second)
    left, taken = first.events("generation")[-1], second.events("generation")[0]
    assert taken["generation"] == left["generation"] + 1
    tokens = {record["publication"].partition(".")[2] for record in (left, taken)}
    assert len(tokens) == 1, "the second master took over the open publication"
