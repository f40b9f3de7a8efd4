"""A killed master leaves no process behind, and its run resumes with the same bits."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from es_queue.protocol.keys import Clocks
from tests.integration.processes import (
    CARTPOLE,
    CLOCKS,
    WALKER,
    Processes,
    Seen,
    Started,
    flags,
    parent_of,
    quiet_digest,
    state_of,
    wait_for,
)

#: A grace in which a resume surely comes, and one whose end a test can wait for.
LONG = replace(CLOCKS, lease=1.0, grace=120.0)
SHORT = replace(CLOCKS, lease=1.0, grace=2.0)
DEADLINE = 5 * (SHORT.lease + SHORT.grace) + 15
#: Promised: no process is left so many seconds after a master was killed.
PROMISE = 5.0
ENDLESS = {**CARTPOLE, "generations": 100_000}

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


def descendants(root: int) -> dict[int, str]:
    """The command lines of a process's children, and of theirs."""
    parents = {int(path.name): parent_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    found, new = set[int](), {root}
    while new := {pid for pid, parent in parents.items() if parent in new} - found:
        found |= new
    return {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        for pid in found
    }


def living(pids: dict[int, str]) -> list[int]:
    return [pid for pid in pids if state_of(pid) not in ("", "Z")]


def begun(
    processes: Processes,
    run: str,
    values: dict[str, object],
    clocks: Clocks = LONG,
    generation: int = 2,
    url: str | None = None,
) -> tuple[Started, dict[int, str]]:
    """A run of two local workers that has come to ``generation``, and all its processes."""
    more = {} if url is None else {"url": url}
    words = (*flags(values), "--run", run, "--workers", 2, "--json")
    master = processes.master(*words, clocks=clocks, **more)  # type: ignore[arg-type]
    wait_for(lambda: len(master.events("generation")) >= generation, f"generation {generation}")
    return master, descendants(master.pid)


def pid_of_server(house: dict[int, str]) -> int:
    return next(pid for pid, text in house.items() if "unixsocket:" in text or "redis.sock" in text)


def worker_of(house: dict[int, str]) -> int:
    """An RQ worker: neither its wrapper nor its horse."""
    workers = {pid for pid, text in house.items() if " rq.cli " in text or "rq: " in text}
    return next(pid for pid in workers if "bound.py" in house.get(parent_of(pid), ""))


def killed(master: Started, house: dict[int, str]) -> None:
    """Kill the master, and see all its processes end as soon as is promised."""
    master.signal(signal.SIGKILL)
    master.process.wait()
    died = time.monotonic()
    wait_for(lambda: not living(house), "every process of the run is gone", PROMISE)
    assert time.monotonic() - died < PROMISE


@pytest.mark.parametrize("server", ["private", "own"])
def test_a_killed_master_leaves_no_process_and_resumes_with_the_undisturbed_bits(
    processes: Processes, server: str, valkey_url: str
) -> None:
    url = valkey_url if server == "own" else None
    master, house = begun(processes, f"heir-{server}", WALKER, url=url)
    assert len(house) >= (4 if url else 6)  # of each a wrapper, too; es-worker forks its seats
    killed(master, house)
    more = {} if url is None else {"url": url}
    heir = processes.master(
        "--resume", f"heir-{server}", "--workers", 1, "--json", clocks=LONG, **more
    )
    assert heir.wait() == 0, heir.said()
    assert heir.events()[-1]["digest"] == quiet_digest(WALKER)
    assert processes.living() == {}


@pytest.mark.parametrize("victim", ["server", "worker"])
def test_what_dies_while_the_master_lives_is_started_again(
    processes: Processes, victim: str
) -> None:
    values = {**WALKER, "generations": 40}
    master, house = begun(processes, victim, values)
    pid = worker_of(house) if victim == "worker" else pid_of_server(house)
    os.kill(pid, signal.SIGKILL)
    assert master.wait() == 0, master.said()
    what = "local worker" if victim == "worker" else "the private server"
    notes = [one["text"] for one in master.events("note")]
    assert [text for text in notes if what in text and "ended with code 137 and starts" in text]
    assert master.events()[-1]["digest"] == quiet_digest(values)
    assert not living(house) and processes.living() == {}


def test_a_run_that_was_taken_over_from_a_stopped_master_outlives_that_ones_server(
    processes: Processes,
) -> None:
    values = {**WALKER, "generations": 40}
    master, house = begun(processes, "taken", values)
    master.signal(signal.SIGSTOP)
    heir = processes.master("--resume", "taken", "--workers", 2, "--json", clocks=LONG)
    wait_for(lambda: heir.events("generation"), "the run goes on")
    master.signal(signal.SIGCONT)
    assert master.wait() == 4, master.said()
    assert not living(house)
    assert heir.wait() == 0, heir.said()
    assert heir.events()[-1]["digest"] == quiet_digest(values)
    assert processes.living() == {}


def test_a_worker_of_anybody_leaves_a_run_without_a_master_after_the_grace(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    seen = Seen(redis_client, "lost")
    master = processes.master(*flags(ENDLESS), "--run", "lost", url=valkey_url, clocks=SHORT)
    worker = processes.worker(valkey_url, clocks=SHORT)
    seen.joined(worker)
    killed(master, {})
    wait_for(
        lambda: "left: the run has no master" in worker.out.read_text(),
        "the seat is left",
        DEADLINE,
    )
    assert worker.process.poll() is None
