"""A run controlled from other terminals: real es-master commands against a real run with a real
worker.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from tests.integration.processes import CARTPOLE, Processes, Seen, Started, flags, wait_for

LONG: dict[str, Any] = {**CARTPOLE, "strategy": "openai_es", "generations": 1_000_000}


@dataclass
class Live:
    """A run that goes on, and the means to ask something of it."""

    processes: Processes
    url: str
    master: Started
    worker: Started
    seen: Seen

    def ask(self, *words: object, code: int = 0) -> str:
        """Run an es-master command against the same Redis; its output."""
        asked = self.processes.master(*words, url=self.url)
        assert asked.wait() == code, asked.said()
        return asked.said()

    def state(self) -> str:
        return self.seen.progress().get("state", "")


@pytest.fixture
def live(processes: Processes, valkey_url: str, redis_client: redis.Redis) -> Callable[..., Live]:
    def start(run: str = "live", **values: Any) -> Live:
        worker = processes.worker(valkey_url)
        master = processes.master(
            *flags({**LONG, **values}), "--run", run, "--json", url=valkey_url
        )
        seen = Seen(redis_client, run)
        wait_for(seen.has_reached(2), "the run is under way")
        return Live(processes, valkey_url, master, worker, seen)

    return start


def test_stop_ends_a_run_in_order_and_it_can_be_resumed(live: Callable[..., Live]) -> None:
    run = live()
    assert "continue it: " in run.ask("--stop", "live")
    assert run.master.wait() == 130
    assert (run.state(), run.seen.client.exists(run.seen.keys.master)) == ("stopped", 0)
    assert "run live is stopped: there is nothing to stop" in run.ask("--stop", "live")
    for words in (
        ("--pause", "live"),
        ("--continue", "live"),
        ("--attach", "live", "--set", "sigma=1"),
    ):
        assert "run live is stopped: " in run.ask(*words, code=2), (
            "nothing was done, and the code says so"
        )
    generation = run.seen.generation()
    run.ask("--resume", "live", "--generations", generation + 2, "--json")
    assert run.state() == "finished"


def test_a_paused_run_stands_still_with_its_workers_until_it_is_let_go_on(
    live: Callable[..., Live],
) -> None:
    run = live()
    assert "is paused" in run.ask("--pause", "live")
    wait_for(lambda: run.state() == "paused", "progress says so")
    wait_for(
        lambda: not run.seen.todo() and not run.seen.all_claims(),
        "its worker has finished what it held",
    )
    looks_again(run.seen, 0.5)  # what was answered last is counted by then
    generation, answered = run.seen.generation(), run.seen.progress()["answered_at"]
    looks_again(run.seen, 1.0)
    assert (run.seen.generation(), run.seen.progress()["answered_at"]) == (generation, answered)
    assert len(run.seen.workers()) == 1, "its worker waits"
    assert "continues" in run.ask("--continue", "live")
    wait_for(run.seen.has_reached(generation + 2), "it goes on")
    assert run.state() == "running"


def looks_again(seen: Seen, seconds: float) -> None:
    """Wait until the master, by its own clock, has looked after its run for so long."""
    updated = float(seen.progress()["updated"])
    wait_for(
        lambda: float(seen.progress()["updated"]) > updated + seconds,
        "the master looks after its run",
    )


def test_a_paused_run_whose_master_is_killed_and_resumed_is_still_paused(
    live: Callable[..., Live],
) -> None:
    run = live()
    run.ask("--pause", "live")
    generation = run.seen.generation()
    os.kill(run.master.pid, signal.SIGKILL)
    again = run.processes.master("--resume", "live", "--json", url=run.url)
    wait_for(lambda: any("is paused" in one["text"] for one in again.events("note")), "it says so")
    assert run.seen.generation() <= generation + 1
    run.ask("--continue", "live")
    wait_for(run.seen.has_reached(generation + 3), "it goes on")
    waited = [one["seconds_wait"] for one in again.events("generation")]
    assert waited and all(0 <= seconds < 60 for seconds in waited), "the pause counts as no wait"


def test_a_setting_is_changed_from_a_generation_on_and_the_history_says_by_whom(
    live: Callable[..., Live], redis_client: redis.Redis
) -> None:
    run = live()
    run.ask("--pause", "live")
    at = run.seen.generation() + 5
    settings = ("--set", "learning_rate=0.3", "--set", f"generations={at + 5}")
    said = run.ask("--attach", "live", *settings, "--at", at)
    assert f"from generation {at}" in said
    run.ask("--continue", "live")
    assert run.master.wait() == 0
    entries: Any = redis_client.xrange(run.seen.keys.history)
    (change,) = (entry for _, entry in entries if b"changed" in entry)
    assert change[b"generation"] == str(at).encode()
    assert b" by " in change[b"changed"] and b"UTC" in change[b"changed"]


REFUSED: list[tuple[tuple[str, ...], int, str]] = [
    (
        ("--attach", "live", "--set", "l2=high"),
        2,
        "l2 is 'high' in --set: use a finite number",
    ),
    (
        ("--attach", "live", "--set", "population=8"),
        2,
        "population cannot change during a run, but --set sets it: set only ",
    ),
    (
        ("--attach", "live", "--set", "sigam=1"),
        2,
        "'sigam' in --set is no setting: did you mean sigma?",
    ),
    (("--stop", "nobody"), 6, "; existing runs: live"),
    (("--purge", "live", "--yes"), 4, "run live is live"),
    (("--stop", "live", "--env", "X-v0"), 2, "trains nothing, so leave --env out"),
]


def test_what_cannot_be_is_refused_in_one_sentence_and_the_run_goes_on(
    live: Callable[..., Live], subtests: pytest.Subtests
) -> None:
    run = live()
    for words, code, sentence in REFUSED:
        with subtests.test(" ".join(words)):
            said = run.ask(*words, code=code)
            assert sentence in said and len(said.strip().splitlines()) == 1
    wait_for(run.seen.has_reached(run.seen.generation() + 1), "the run goes on")


def test_a_run_that_lost_its_master_can_be_stopped_and_purged_and_leaves_no_key(
    live: Callable[..., Live],
) -> None:
    run = live()
    os.kill(run.master.pid, signal.SIGKILL)
    wait_for(lambda: not run.seen.client.exists(run.seen.keys.master), "its lease lapses")
    assert "no master to carry this out" in run.ask("--pause", "live", code=4)
    assert "had no master and is now marked as stopped" in run.ask("--stop", "live")
    wait_for(lambda: not run.seen.workers(), "its worker leaves at once")
    assert "add --yes" in run.ask("--purge", "live", code=2)
    assert "was removed from Redis" in run.ask("--purge", "live", "--yes")
    left = {
        name
        for name in run.seen.client.scan_iter("es:*")
        if not name.startswith(b"es:live:worker:")
    }
    assert (
        left == {run.seen.keys.epoch.encode()}
        and 0 < run.seen.client.ttl(run.seen.keys.epoch) <= 600
    )
    assert run.seen.client.llen("rq:queue:default") == 0
    assert "there is no run live" in run.ask("--purge", "live", "--yes", code=6)


def test_a_private_run_is_controlled_from_its_folder(processes: Processes) -> None:
    master = processes.master(*flags(LONG), "--run", "own", "--workers", 1, "--json")
    url = wait_for(lambda: master.events("started"), "the run starts")[0]["redis"]
    with redis.Redis.from_url(url) as client:
        wait_for(Seen(client, "own").has_reached(1), "the run is under way")
    for words, sentence in (
        (("--pause", "own"), "is paused"),
        (("--continue", "own"), "continues"),
        (("--stop", "own"), "has stopped"),
    ):
        asked = processes.master(*words)
        assert asked.wait() == 0 and sentence in asked.said()
    assert master.wait() == 130
    stopped = processes.master("--stop", "own")
    assert stopped.wait() == 0 and "there is nothing to stop" in stopped.said()
    purged = processes.master("--purge", "own", "--yes")
    assert purged.wait() == 0 and not (processes.folder / "runs/own/redis").exists()
    assert (processes.folder / "runs/own/checkpoints").is_dir()


def test_a_run_is_replayed_from_its_folder(processes: Processes) -> None:
    master = processes.master(
        *flags({**CARTPOLE, "generations": 4}), "--run", "again", "--workers", 1, "--json"
    )
    assert master.wait() == 0, master.said()
    replayed = processes.master("--replay", "again")
    assert replayed.wait() == 0
    assert (
        "every digest of the parameters agrees, the last is "
        f"{master.events('summary')[0]['digest']}" in replayed.said()
    )
    log = processes.folder / "runs/again/replay/00000000.log"
    whole = bytearray(log.read_bytes())
    whole[-40] ^= 1
    log.write_bytes(whole)
    found = processes.master("--replay", "again")
    assert found.wait() == 6 and "is damaged or incomplete from byte" in found.said()


def test_a_run_begins_warm_from_another_s_folder(processes: Processes) -> None:
    first = processes.master(
        *flags({**CARTPOLE, "generations": 2}), "--run", "cold", "--workers", 1, "--json"
    )
    assert first.wait() == 0
    warm = processes.master(
        *flags({**CARTPOLE, "generations": 1, "seed": 8}),
        "--run",
        "warm",
        "--warm-start",
        "runs/cold",
        "--workers",
        1,
        "--json",
    )
    assert warm.wait() == 0, warm.said()
    about = warm.events("started")[0]
    assert (
        about["begun with"].startswith("generation ")
        and " of run cold, digest " in about["begun with"]
    )
    unfit = processes.master(
        *flags({**CARTPOLE, "policy": "mlp"}),
        "--run",
        "no",
        "--warm-start",
        "runs/cold",
        "--workers",
        1,
    )
    assert unfit.wait() == 2 and "a linear policy cannot become a mlp one" in unfit.said()
    assert not (processes.folder / "runs/no").exists()
