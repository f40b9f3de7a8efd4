"""Nothing is left for ever, and nothing ends too soon: the private server and local workers of a
master that was killed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from es_queue.protocol.timing import Clocks
from es_queue.util.file_lock import read_pid
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
ENDLESS = {**CARTPOLE, "generations": 100_000}
RESTARTED = "the supervisor of the server and the local workers ended: all of them were restarted"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@dataclass
class House:
    """The processes of a run that its master has started, by their pids."""

    guardian: int
    server: int
    workers: list[int]

    @property
    def all(self) -> list[int]:
        return [self.guardian, self.server, *self.workers]

    def living(self) -> list[int]:
        return [pid for pid in self.all if state_of(pid) not in ("", "Z")]

    def gone(self) -> bool:
        return self.living() == []


def house_of(folder: Path, workers: int = 2) -> House:
    """Wait until everything of the run in ``folder`` is there."""

    def look() -> House | None:
        guardian, server = (
            read_pid(folder / "guardian/guardian.lock"),
            read_pid(folder / "redis/server.lock"),
        )
        if not guardian or not server or parent_of(server) != guardian:
            return None
        children = [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if parent_of(int(path.name)) == guardian
        ]
        return (
            House(guardian, server, sorted(set(children) - {server}))
            if len(children) == workers + 1
            else None
        )

    return wait_for(look, "guardian, server and workers are there")


def begun(
    processes: Processes, run: str, values: dict[str, object], clocks: Clocks, generation: int = 2
) -> tuple[Started, House]:
    """A run of two local workers that has come to ``generation``."""
    master = processes.master(*flags(values), "--run", run, "--workers", 2, "--json", clocks=clocks)
    wait_for(lambda: len(master.events("generation")) >= generation, f"generation {generation}")
    return master, house_of(processes.folder / "runs" / run)


def state_in(folder: Path) -> str:
    """What the supervisor of a run's folder says of itself."""
    return str(json.loads((folder / "guardian/state.json").read_text())["state"])


def killed(master: Started) -> None:
    master.signal(signal.SIGKILL)
    master.process.wait()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def nothing_lives(processes: Processes, house: House) -> bool:
    """Neither what carries the mark, nor the server, whose title has overwritten its own."""
    return house.gone() and not processes.living()


def test_what_a_killed_master_leaves_goes_on_for_the_grace_and_then_ends(
    processes: Processes,
) -> None:
    master, house = begun(processes, "left", ENDLESS, SHORT)
    killed(master)
    with redis.Redis.from_url(f"unix://{processes.folder}/runs/left/redis/redis.sock") as client:
        wait_for(
            lambda: not client.exists(Seen(client, "left").keys.master), "the lease has lapsed"
        )
    lapsed = time.monotonic()
    assert house.living() == house.all
    wait_for(
        lambda: state_in(processes.folder / "runs/left") == "ending", "the grace is over", DEADLINE
    )
    assert time.monotonic() - lapsed > SHORT.grace / 2
    wait_for(lambda: nothing_lives(processes, house), "every process of the run is gone", DEADLINE)
    said = (processes.folder / "runs/left/guardian/guardian.log").read_text()
    assert "run left has had no master for 2 s: it ends now" in said


def test_resume_adopts_server_and_workers_and_ends_with_the_undisturbed_bits(
    processes: Processes,
) -> None:
    master, house = begun(processes, "heir", WALKER, LONG)
    killed(master)
    heir = processes.master("--resume", "heir", "--workers", 2, "--json", clocks=LONG)
    wait_for(lambda: heir.events("started"), "the run goes on")
    assert house_of(processes.folder / "runs/heir") == house
    assert heir.wait() == 0, heir.said()
    assert heir.events()[-1]["digest"] == quiet_digest(WALKER)
    assert nothing_lives(processes, house)


def test_resume_with_other_workers_ends_what_is_there_first(processes: Processes) -> None:
    master, house = begun(processes, "other", WALKER, LONG)
    killed(master)
    heir = processes.master("--resume", "other", "--workers", 1, "--json", clocks=LONG)
    wait_for(lambda: heir.events("started"), "the run goes on")
    assert house.gone()
    assert heir.wait() == 0, heir.said()
    assert heir.events()[-1]["digest"] == quiet_digest(WALKER)
    assert processes.living() == {}


def test_a_killed_guardian_takes_all_with_it_and_comes_back(processes: Processes) -> None:
    master, house = begun(processes, "ward", WALKER, LONG)
    kill(house.guardian)
    assert master.wait() == 0, master.said()
    assert RESTARTED in [one["text"] for one in master.events("note")]
    assert master.events()[-1]["digest"] == quiet_digest(WALKER)
    assert nothing_lives(processes, house)


def test_when_master_and_guardian_are_killed_everything_ends_at_once(processes: Processes) -> None:
    master, house = begun(processes, "both", ENDLESS, LONG)
    master.signal(signal.SIGSTOP)  # so that it cannot start another
    kill(house.guardian)
    killed(master)
    wait_for(lambda: nothing_lives(processes, house), "every process of the run is gone", 30)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_nothing(processes: Processes, times: int) -> None:
    master, house = begun(processes, "ended", ENDLESS, LONG)
    if times == 2:
        os.kill(house.workers[0], signal.SIGSTOP)  # an orderly end would have to wait for it
    master.signal(signal.SIGINT)
    if times == 2:
        wait_for(lambda: state_in(processes.folder / "runs/ended") == "ending", "it ends")
        master.signal(signal.SIGINT)
    assert master.wait(30) == 130, master.said()
    wait_for(
        lambda: nothing_lives(processes, house),
        "every process of the run is gone",
        10 if times == 2 else 0.1,
    )


def test_a_stopped_master_counts_as_gone_and_starts_all_again_when_it_wakes(
    processes: Processes,
) -> None:
    master, house = begun(processes, "asleep", WALKER, SHORT)
    master.signal(signal.SIGSTOP)
    wait_for(house.gone, "guardian, server and workers are gone", DEADLINE)
    master.signal(signal.SIGCONT)
    assert master.wait() == 0, master.said()
    assert RESTARTED in [one["text"] for one in master.events("note")]
    assert master.events()[-1]["digest"] == quiet_digest(WALKER)
    assert processes.living() == {}


def test_a_run_that_was_taken_over_from_a_stopped_master_keeps_its_server_when_that_one_wakes(
    processes: Processes,
) -> None:
    values = {**WALKER, "generations": 40}
    master, house = begun(processes, "taken", values, LONG)
    master.signal(signal.SIGSTOP)
    heir = processes.master("--resume", "taken", "--workers", 2, "--json", clocks=LONG)
    wait_for(lambda: heir.events("generation"), "the run goes on")
    master.signal(signal.SIGCONT)
    assert master.wait() == 4, master.said()
    assert house.living() == house.all
    assert heir.wait() == 0, heir.said()
    assert heir.events()[-1]["digest"] == quiet_digest(values)
    assert nothing_lives(processes, house)


def test_local_workers_on_a_shared_redis_end_with_the_grace_too(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    seen = Seen(redis_client, "shared")
    master = processes.master(
        *flags(ENDLESS), "--run", "shared", "--workers", 1, "--json", url=valkey_url, clocks=SHORT
    )
    wait_for(lambda: seen.workers(), "its worker joins")
    killed(master)
    wait_for(lambda: not processes.living(), "guardian and worker are gone", DEADLINE)


def test_a_worker_of_anybody_leaves_a_run_without_a_master_after_the_grace(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    seen = Seen(redis_client, "lost")
    master = processes.master(*flags(ENDLESS), "--run", "lost", url=valkey_url, clocks=SHORT)
    worker = processes.worker(valkey_url, clocks=SHORT)
    seen.joined(worker)
    killed(master)
    wait_for(
        lambda: "left: the run has no master" in worker.out.read_text(),
        "the seat is left",
        DEADLINE,
    )
    assert worker.process.poll() is None
