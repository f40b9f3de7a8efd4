"""Rehearse the loss of spot hosts: ``python -m tools.spot_rehearsal``

Workers of one run, each a host of its own, are killed and replaced by a seeded schedule. Then a
quiet run repeats the same generations, and the digests of all of them are compared. The exit code
is 1 if a digest differs. No sleep decides anything: digests do not depend on time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from es_queue.credentials import environment_without_redis
from master.services.private_server import PrivateServer

BIN = Path(sys.executable).parent
LOOK_SECONDS = 0.1
END_SECONDS = 120.0
#: A cheap environment whose returns never become equal, so that every generation learns. Its recipe
#: has a network: another policy leaves the recipe's search out.
RUN = (
    *("--env", "Pendulum-v1", "--policy", "linear", "--obs-norm", "--seed", "1"),
    *("--population", "32"),
    *("--eval-every", "10", "--final-episodes", "1", "--target-reward", "none", "--quiet"),
)
NOTICED, SUDDEN, STARTED = "noticed", "sudden", "started"
REPAIRS = ("recovered", "reissued", "late", "duplicate", "refused")


@dataclass(frozen=True)
class LossPlan:
    """How hosts are lost.

    up, down: mean seconds that a host lives, and until it is replaced; both are exponential
    notice: seconds between SIGTERM and SIGKILL of half of the losses; the others have none
    """

    hosts: int
    seconds: float
    seed: int
    up: float = 240.0
    down: float = 20.0
    notice: float = 2.0


class HostLife(NamedTuple):
    """Seconds until the host is lost, whether it has notice, and seconds until it is replaced."""

    up: float
    has_notice: bool
    down: float


def host_lives(plan: LossPlan, number: int) -> Iterator[HostLife]:
    """Every life of a host; they depend only on the plan and the host's number."""
    dice = random.Random(f"{plan.seed} {number}")
    while True:
        up, down = dice.expovariate(1 / plan.up), dice.expovariate(1 / plan.down)
        yield HostLife(up, dice.random() < 0.5, down)


class SpotHost:
    """A host with one worker."""

    def __init__(self, plan: LossPlan, number: int) -> None:
        self._notice, self._lives = plan.notice, host_lives(plan, number)
        self._life = next(self._lives)
        self._next_at, self._is_leaving = 0.0, False
        self.process: subprocess.Popen[bytes] | None = None

    def advance(self, now: float, environment: dict[str, str], log: Path) -> str:
        """What happens to the host now, empty if nothing does."""
        if now < self._next_at:
            return ""
        if self.process is None:
            self._life = next(self._lives)
            self._start(environment, log)
            self._next_at = now + self._life.up
            return STARTED
        if self._life.has_notice and not self._is_leaving:
            self._is_leaving = True
            self.process.terminate()
            self._next_at = now + self._notice
            return NOTICED
        self.kill()
        self._next_at = now + self._life.down
        was_leaving, self._is_leaving = self._is_leaving, False
        return "" if was_leaving else SUDDEN

    def _start(self, environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [str(BIN / "rq"), "worker"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL to the worker and its seat, as if the host was gone."""
        if self.process is None:
            return
        children: list[str] = []
        with suppress(OSError):
            path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            children = path.read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


def lose_hosts(
    plan: LossPlan, master: subprocess.Popen[bytes], environment: dict[str, str], log: Path
) -> tuple[Counter[str], list[int]]:
    """Follow the plan. Returns how often each thing happened, and the hosts alive at each look."""
    hosts, alive = [SpotHost(plan, number) for number in range(plan.hosts)], list[int]()
    events = Counter[str]()
    end = time.monotonic() + plan.seconds
    try:
        while (now := time.monotonic()) < end and master.poll() is None:
            events.update(filter(None, (host.advance(now, environment, log) for host in hosts)))
            alive.append(sum(host.process is not None for host in hosts))
            time.sleep(LOOK_SECONDS)
    finally:
        for host in hosts:
            host.kill()
    return events, alive


@contextmanager
def started_master(*words: object, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An es-master, which is ended in order, and killed if it does not end."""
    with (folder / "master.log").open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in (BIN / "es-master", *words)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment_without_redis(os.environ),
        )
    try:
        yield process
        process.terminate()
        process.wait(END_SECONDS)
    finally:
        process.kill()
        process.wait()


def records_of(folder: Path, run: str) -> list[dict[str, Any]]:
    lines = (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def rehearse(plan: LossPlan, folder: Path) -> dict[str, Any]:
    """Play the plan, then the same generations quietly. Returns the figures of both."""
    server = PrivateServer(folder / "redis")
    server.start()
    began = time.monotonic()
    try:
        words = ("--run", "spot", "--redis-url", server.url, "--generations", 10**6, *RUN)
        with started_master(*words, folder=folder) as master:
            workers = {
                **environment_without_redis(os.environ),
                "RQ_REDIS_URL": server.url,
            }
            events, alive = lose_hosts(plan, master, workers, folder / "workers.log")
    finally:
        server.stop()
    records = records_of(folder, "spot")
    seconds = time.monotonic() - began
    quietly = ("--run", "quiet", "--workers", 2, "--generations", len(records), *RUN)
    with started_master(*quietly, folder=folder) as master:
        master.wait()
    quiet = records_of(folder, "quiet")
    assert len(quiet) >= len(records), "the quiet run ended early"
    differing = [
        record["generation"]
        for record, other in zip(records, quiet, strict=False)  # the last has the final episodes
        if record["digest"] != other["digest"]
    ]
    times = [record["seconds"] for record in records]
    return {
        "hosts": plan.hosts,
        "seconds": round(seconds),
        "starts": events[STARTED],
        "lost without notice": events[SUDDEN],
        "lost with notice": events[NOTICED],
        "hosts alive, mean": round(mean(alive), 1),
        "hosts alive, fewest": min(alive[len(alive) // 10 :]),
        "generations": len(records),
        "environment steps": records[-1]["env_steps"],
        "longest generation, s": round(max(after - before for before, after in pairwise(times)), 1),
        **{name: records[-1][name] for name in REPAIRS},
        "digest": records[-1]["digest"],
        "distinct digests": len({record["digest"] for record in records}),
        "generations with another digest": len(differing),
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keeps the runs and logs")
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = LossPlan(given.hosts, 60 * given.minutes, given.seed)
    with tempfile.TemporaryDirectory(prefix="es-spot-") as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        figures = rehearse(plan, folder)
    for name, value in figures.items():
        print(f"{name:32} {value}")
    return 1 if figures["generations with another digest"] else 0


if __name__ == "__main__":
    sys.exit(main())
