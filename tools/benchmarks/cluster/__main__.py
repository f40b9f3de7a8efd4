"""``python -m tools.benchmarks.cluster``: a real server and es-master with simulated workers.

Workers speak the protocol over real connections, many in each process, and wait as long as their
episodes last. RQ's seats stay open, because what RQ does ends when a worker has joined. Figures are
printed, never asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from es_queue.config.run_config import RunConfig, every_setting
from es_queue.config.schedules import ASYNC, SYNC
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from master.services.private_server import PrivateServer
from tools.benchmarks import machine
from tools.benchmarks.cluster import stub_environment
from tools.benchmarks.cluster.durations import HEAVY, KINDS, RECORDED, SLOW, Durations
from tools.benchmarks.cluster.fleet import Order

RUN, ROOT = "cluster", Path(__file__).resolve().parents[3]
SCHEDULES = (SYNC, ASYNC)
#: A worker has the real one's two connections up to so many in all.
MOST_LINKS = 18_000
WALKER = {"env_arg": (("observation", 24), ("action", 4)), "policy": "linear", "strategy": "pgpe"}
HUMANOID = {
    "env_arg": (("observation", 376), ("action", 17)),
    "policy": "mlp",
    "hidden": (256, 256),
    "strategy": "openai_es",
}
SHAPES: dict[str, dict[str, Any]] = {"walker": WALKER, "humanoid": HUMANOID}
#: The rows of ``--all``: workers, durations, and seconds of a generation.
ROWS = (
    *((workers, durations, 10.0) for durations in (RECORDED, SLOW, HEAVY) for workers in (18, 180)),
    *((1440, durations, 10.0) for durations in (SLOW, HEAVY)),
    (8192, HEAVY, 5.0),
)
ROW_HEAD = (
    "| workers | episodes | schedule | population | efficiency | gap, s | blocks per second | "
    "master | Redis | simulator |"
)


def configuration(
    population: int, generations: int, shape: dict[str, Any], schedule: str = SYNC
) -> RunConfig:
    """A run of only training generations."""
    return RunConfig(
        **{
            "env": stub_environment.ID,
            "seed": 3,
            "population": population,
            "generations": generations,
            "eval_every": 0,
            "final_episodes": 0,
            "target_reward": "none",
            "schedule": schedule,
            # an asynchronous run of several million slots needs a place in the table for each
            "noise_size": max(2**22, 16 * population),
            **shape,
        }
    )


def population_for(workers: int, episode_seconds: float, seconds: float) -> int:
    """Individuals that take so many workers about ``seconds``: even, and at most as many as a run
    may have.
    """
    return min(1_000_000, max(2, 2 * round(workers * seconds / episode_seconds / 2)))


def flags(config: RunConfig) -> list[str]:
    """The command line that gives this configuration."""
    found = list[str]()
    for name in config.to_dict():
        flag, value = every_setting()[name].flag, getattr(config, name)
        if name == "env_arg":
            found += [part for key, one in value for part in (flag, f"{key}={one}")]
        elif value != every_setting()[name].default:
            found += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return found


class Meter(threading.Thread):
    """Samples the CPU seconds and the memory of processes by name."""

    def __init__(self, pids: dict[str, list[int]]) -> None:
        super().__init__(daemon=True)
        self._pids, self._over = pids, threading.Event()
        self._samples: list[tuple[float, dict[str, float]]] = []
        self.peak: dict[str, int] = dict.fromkeys(pids, 0)

    def run(self) -> None:
        while not self._over.wait(0.1):
            now = {
                name: sum(sum(machine.cpu_seconds([pid]).values()) for pid in pids)
                for name, pids in self._pids.items()
            }
            self._samples.append((time.monotonic(), now))
            for name, pids in self._pids.items():
                self.peak[name] = max(
                    self.peak[name], sum(machine.resident(pid)[1] for pid in pids)
                )

    def end(self) -> None:
        self._over.set()
        self.join()

    def used(self, start: float, stop: float) -> dict[str, float]:
        """Share of a core by name, between two moments of the monotonic clock."""
        inside = [sample for sample in self._samples if start <= sample[0] <= stop]
        (began, before), (ended, after) = inside[0], inside[-1]
        return {name: (after[name] - before[name]) / (ended - began) for name in before}


def real(
    workers: int,
    durations: str,
    *,
    schedule: str = SYNC,
    population: int = 0,
    seconds: float = 10.0,
    generations: int = 5,
    shape: dict[str, Any] = WALKER,
    per_host: int = 48,
    deadline: float = 300.0,
) -> dict[str, Any]:
    """One run. Its first generation, in which workers arrive, and its last are not counted.

    population: 0 for generations of about ``seconds``
    """
    drawn = Durations(durations)
    population = population or population_for(workers, drawn.mean(), seconds)
    config = configuration(population, generations, shape, schedule)
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        server = PrivateServer(folder / "redis")
        server.start()
        held.callback(server.stop)
        client: Any = held.enter_context(client_from_url(server.url))
        client.config_set("maxclients", min(hard - 100, 2 * workers + 500))
        master = subprocess.Popen(
            [
                *(sys.executable, "-m", "master.cli.main", *flags(config), "--run", RUN),
                *("--run-dir", folder / "run", "--noise-dir", folder / "noise"),
                *("--redis-url", server.url, "--quiet"),
            ],
            cwd=ROOT,
            stdout=(folder / "master.log").open("wb"),
            stderr=subprocess.STDOUT,
        )
        held.callback(end, master)
        fleets = [start_fleet(order) for order in orders(server, workers, durations, per_host)]
        for fleet in fleets:
            held.callback(end, fleet)
        pids = {
            "master": [master.pid],
            "redis": [int(client.info("server")["process_id"])],
            "simulator": [fleet.pid for fleet in fleets],
        }
        hurry(pids)
        meter = Meter(pids)
        meter.start()
        with suppress(subprocess.TimeoutExpired):
            master.wait(deadline)
        meter.end()
        if master.returncode != 0:
            log = (folder / "master.log").read_text()[-2000:]
            raise RuntimeError(f"es-master has ended with {master.returncode} (or not): {log}")
        seen = [json.loads(fleet.communicate(timeout=60)[0]) for fleet in fleets]
        refused = {
            name.decode(): int(n) for name, n in client.hgetall(RunKeys(RUN).refused).items()
        }
    about = {
        "workers": workers,
        "schedule": schedule,
        "durations": durations,
        "population": population,
        "refused": refused,
        "peak_bytes": meter.peak,
    }
    return {**about, **figures(config, workers, drawn, seen, meter, refused)}


def orders(server: PrivateServer, workers: int, durations: str, per_host: int) -> list[Order]:
    """At most two processes, cut at hosts."""
    processes, hosts = min(2, -(-workers // 400)), -(-workers // per_host)
    cuts = [min(workers, per_host * (hosts * at // processes)) for at in range(processes + 1)]
    links = min(2 * workers, MOST_LINKS) - workers
    return [
        Order(
            *(server.url, str(server.socket_path), RUN, first, stop - first),
            *(max(1, links * (stop - first) // workers), per_host, durations),
        )
        for first, stop in pairwise(cuts)
    ]


def start_fleet(order: Order) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.benchmarks.cluster.fleet"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process: subprocess.Popen[str] = subprocess.Popen(command, cwd=ROOT, **pipes)
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(order)))
    process.stdin.close()
    process.stdin = None
    return process


def end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()


def hurry(pids: dict[str, list[int]]) -> None:
    """Let these processes go before others of the machine (SCHED_RR), if the user may do so."""
    with suppress(OSError, AttributeError):
        for pid in (pid for each in pids.values() for pid in each):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))


def figures(
    config: RunConfig,
    workers: int,
    drawn: Durations,
    seen: Sequence[dict[str, Any]],
    meter: Meter,
    refused: dict[str, int],
) -> dict[str, Any]:
    """efficiency: seconds of play that counted ÷ those of all workers; gap: median seconds from a
    generation's last result to the first claim of the next; cpu: shares of a core
    """
    parts: dict[int, list[dict[str, float]]] = {}
    for each in seen:
        for number, part in each["generations"].items():
            parts.setdefault(int(number), []).append(part)
    first = {number: min(one["first_claim"] for one in each) for number, each in parts.items()}
    last = {number: max(one["last_answer"] for one in each) for number, each in parts.items()}
    measured = range(1, config.generations - 1)
    start, stop = first[measured[0]], first[measured[-1] + 1]  # as many gaps as generations
    total = {
        name: sum(one[name] for number in measured for one in parts[number])
        for name in ("answers", "late", "played")
    }
    if config.schedule == SYNC:  # each slot once
        each_slot = [drawn.slots(number, config.population // 2) for number in measured]
        busy = sum(float(one.sum() + one[0] / 2) for one in each_slot)
    else:  # seconds of the episodes within the measured time, without those of refused results
        plays = [play for one in seen for play in one["plays"]]
        inside = (max(0.0, min(stop, at + took) - max(start, at)) for at, took in plays)
        busy = sum(inside) - 2 * drawn.mean() * sum(refused.values())
    return {
        "generations": len(measured),
        "seconds": stop - start,
        "efficiency": busy / (workers * (stop - start)),
        "gap": statistics.median(first[number] - last[number - 1] for number in measured),
        "blocks_per_second": total["answers"] / (stop - start),
        "late": total["late"],
        "played_twice": total["played"] / busy - 1,
        "cpu": meter.used(start, stop),
        "timers_late": statistics.fmean(one["timers_late"] for one in seen),
    }


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    gap = f"{row['gap']:.3f}" if row["schedule"] == SYNC else ""
    cells = (
        *(f"{row['workers']:,}", row["durations"], row["schedule"], f"{row['population']:,}"),
        *(f"{row['efficiency']:.1%}", gap, f"{row['blocks_per_second']:,.0f}"),
        *(f"{row['cpu'][name]:.0%}" for name in ("master", "redis", "simulator")),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.cluster", description=__doc__)
    parser.add_argument("--all", action="store_true", help="every row, in half an hour")
    parser.add_argument("--workers", type=int, default=18)
    parser.add_argument("--durations", choices=KINDS, default=RECORDED)
    parser.add_argument("--schedule", choices=SCHEDULES, default=SYNC)
    parser.add_argument("--shape", choices=SHAPES, default="walker", help="sizes of the task")
    parser.add_argument("--population", type=int, default=0, help="0: of generations of --seconds")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--generations", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    given, rows = parser.parse_args(), list[dict[str, Any]]()
    chosen = [(given.workers, given.durations, given.seconds)]
    print(f"{ROW_HEAD}\n{'|---' * (ROW_HEAD.count('|') - 1)}|", flush=True)
    for workers, durations, seconds in ROWS if given.all else chosen:
        for schedule in SCHEDULES if given.all else [given.schedule]:
            row = real(
                *(workers, durations),
                schedule=schedule,
                population=0 if given.all else given.population,
                seconds=seconds,
                generations=given.generations,
                shape=SHAPES[given.shape],
            )
            rows.append(row)
            print(line(row), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
