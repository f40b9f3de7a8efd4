"""A real run with simulated workers: a private server, the real es-master with its seats, the real
wire format.

Workers speak the protocol over real connections and wait where real ones play; RQ's seats stay open
and nobody sits on them, for what RQ does ends when a worker has joined. A worker has the real one's
two connections up to MOST_LINKS.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from es_queue.config.run_config import SYNC, RunConfig
from es_queue.numerics.noise_table import NoiseTable
from es_queue.numerics.slot_plan import max_slots
from es_queue.protocol import messages
from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from master.run.setup import prepare_run
from master.services.private_server import PrivateServer
from tools.benchmarks.cluster.costs import worker_cost
from tools.benchmarks.cluster.processes import Meter
from tools.benchmarks.cluster.simulation import stub_environment
from tools.benchmarks.cluster.simulation.durations import RECORDED, Durations
from tools.benchmarks.cluster.simulation.worker_process import PER_HOST, Order

RUN = "cluster"
ROOT = Path(__file__).resolve().parents[3]
MOST_LINKS = 18_000
GENERATION_SECONDS = 10.0
WALKER = {"env_arg": (("observation", 24), ("action", 4)), "policy": "linear", "strategy": "pgpe"}
HUMANOID = {
    "env_arg": (("observation", 376), ("action", 17)),
    "policy": "mlp",
    "hidden": (256, 256),
    "strategy": "openai_es",
}


def configuration(
    population: int, generations: int, shape: dict[str, Any], schedule: str = "sync", **more: Any
) -> RunConfig:
    """A run of nothing but training generations."""
    chosen = {} if schedule == "sync" else {"schedule": schedule}
    return RunConfig(
        **{
            "env": stub_environment.ID,
            "seed": 3,
            "population": population,
            "generations": generations,
            "eval_every": 0,
            "final_episodes": 0,
            "target_reward": "none",
            **shape,
            **chosen,
            **more,
        }
    )


def population_for(
    workers: int, episode_seconds: float, seconds: float = GENERATION_SECONDS
) -> int:
    """Individuals that take so many workers about ``seconds``; even, and no more than a run may
    have.
    """
    return min(1_000_000, max(2, 2 * round(workers * seconds / episode_seconds / 2)))


def flags(config: RunConfig) -> list[str]:
    """The command line that gives this configuration."""
    default, given = asdict(RunConfig()), asdict(config)
    found: list[str] = []
    for name, value in given.items():
        if value == default[name]:
            continue
        flag = f"--{name.replace('_', '-')}"
        if name == "env_arg":
            found += [part for key, one in value for part in (flag, f"{key}={one}")]
        else:
            found += [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return found


@contextmanager
def served(folder: Path, clients: int) -> Iterator[tuple[PrivateServer, Any]]:
    """A private server that takes so many clients, and a client of it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = PrivateServer(folder / "redis")
    server.start()
    try:
        with client_from_url(server.url) as client:
            if clients > 9_000:
                client.config_set("maxclients", min(hard - 100, clients + 500))
            yield server, client
    finally:
        server.stop()


def orders(
    server: PrivateServer,
    config: RunConfig,
    workers: int,
    processes: int,
    durations: Durations,
    cost: dict[str, float],
    per_host: int,
) -> list[Order]:
    """One for each simulator process, cut at hosts."""
    setup = prepare_run(
        replace(config, noise_size=config.noise_size or 2**22), table=NoiseTable.in_memory(2**22)
    )
    hosts = -(-workers // per_host)
    cuts = [
        min(workers, per_host * (hosts * number // processes)) for number in range(processes + 1)
    ]
    links = min(2 * workers, MOST_LINKS)
    found = []
    for first, stop in pairwise(cuts):
        lives = max(1, min(stop - first, (links - workers) * (stop - first) // workers))
        found.append(
            Order(
                server.url,
                str(server.socket_path),
                RUN,
                first,
                stop - first,
                lives,
                setup.strategy.size,
                setup.strategy.per_slot,
                setup.spec.observation_size,
                config.generations + 2,
                durations.kind,
                durations.seed,
                cost,
                per_host,
            )
        )
    return found


def real(
    workers: int,
    durations: str = RECORDED,
    *,
    population: int = 0,
    generations: int = 5,
    shape: dict[str, Any] = WALKER,
    schedule: str = "sync",
    processes: int = 0,
    per_host: int = PER_HOST,
    seed: int = 0,
    deadline: float = 240.0,
) -> dict[str, Any]:
    """One run; generation 0, in which workers arrive, is not counted, nor is the last, which no
    generation follows. Plain values, with everything that the fits need.

    A run that has not ended after ``deadline`` seconds is ended: its row has no more than where it
    stood.

    population: 0 for a generation of about ten seconds; processes: of the simulator, 0 for one for
    each 400 workers, two at most
    """
    drawn = Durations(durations, seed)
    config = configuration(
        population or population_for(workers, drawn.mean()), generations, shape, schedule
    )
    count = processes or min(2, -(-workers // 400))
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        server, client = held.enter_context(served(folder, 2 * workers))
        cost = asdict(worker_cost(server.url, config))
        client.flushall()
        master = _master(folder, server.url, config, folder / "calls")
        held.callback(_ended, master)
        asked = orders(server, config, workers, count, drawn, cost, per_host)
        fleets = [_fleet(one) for one in asked]
        for fleet in fleets:
            held.callback(_ended, fleet)
        pids = {
            "master": [master.pid],
            "redis": [int(client.info("server")["process_id"])],
            "simulator": [fleet.pid for fleet in fleets],
        }
        first = hurry(pids)
        meter = Meter(pids)
        meter.start()
        watched = _watched(client, master, time.monotonic() + deadline)
        meter.end()
        if master.poll() is None:
            return {
                **_about(config, workers, drawn, count, cost),
                "completed": False,
                "stood": _stood(client, deadline),
            }
        if master.returncode:
            raise RuntimeError(
                f"es-master ended with code {master.returncode}: "
                f"{(folder / 'master.log').read_text()[-2000:]}"
            )
        seen = [json.loads(fleet.communicate(timeout=60)[0]) for fleet in fleets]
        calls = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
        refused = {
            name.decode(): int(count)
            for name, count in client.hgetall(RunKeys(RUN).refused).items()
        }
        records = [
            json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
        ]
    about = {
        **_about(config, workers, drawn, count, cost),
        "size": asked[0].size,
        "per_host": per_host,
    }
    return {
        **about,
        **_figures(config, workers, drawn, seen, calls, meter, watched, refused, records),
        "redis_peak_rss": meter.peak["redis"],
        "before_others": first,
    }


def hurry(pids: dict[str, list[int]]) -> bool:
    """What is measured goes before what else the machine does (SCHED_RR), where the user may say
    so; whether it does.
    """
    try:
        for pid in (pid for each in pids.values() for pid in each):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    except (OSError, AttributeError):
        return False
    return True


def _about(
    config: RunConfig, workers: int, drawn: Durations, count: int, cost: dict[str, float]
) -> dict[str, Any]:
    return {
        "workers": workers,
        "schedule": config.schedule,
        "durations": drawn.kind,
        "episode_seconds": drawn.mean(),
        "population": config.population,
        "processes": count,
        "cost": cost,
        "completed": True,
    }


def _master(folder: Path, url: str, config: RunConfig, calls: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "tools.benchmarks.cluster.timed_master",
        str(calls),
        *flags(config),
    ]
    command += [
        "--run",
        RUN,
        "--run-dir",
        str(folder / "run"),
        "--noise-dir",
        str(folder / "noise"),
        "--redis-url",
        url,
        "--quiet",
    ]
    log = (folder / "master.log").open("wb")
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=dict(os.environ))


def _ended(process: subprocess.Popen[Any]) -> None:
    """No process outlives its run."""
    process.kill()
    process.wait()


def _fleet(order: Order) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.benchmarks.cluster.simulation.worker_process"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(order)))
    process.stdin.close()
    process.stdin = None
    return process


def _stood(client: Any, seconds: float) -> dict[str, Any]:
    """How far a run had come that was ended."""
    own = RunKeys(RUN)
    generation, answered, publication = (
        one.decode() for one in client.hmget(own.progress, "generation", "answered", "publication")
    )
    return {
        "seconds": seconds,
        "generation": int(generation),
        "answered": answered,
        "answers_in_stream": client.xlen(own.results(publication)),
        "blocks_waiting": client.llen(own.todo),
    }


def _watched(client: Any, master: subprocess.Popen[bytes], until: float) -> list[dict[str, float]]:
    """Redis' own counters about twice a second, with the open generation, until the master ends or
    the time is over.
    """
    found: list[dict[str, float]] = []
    while master.poll() is None and time.monotonic() < until:
        now, information = time.monotonic(), client.info("all")
        generation = client.get(RunKeys(RUN).iteration)
        names = (
            "used_memory",
            "used_memory_dataset",
            "total_net_output_bytes",
            "total_net_input_bytes",
            "total_commands_processed",
            "connected_clients",
        )
        stats = {name: about for name, about in information.items() if name.startswith("cmdstat_")}
        commands = {f"calls {name}": about["calls"] for name, about in stats.items()}
        usec = {f"usec {name}": about["usec"] for name, about in stats.items()}
        found.append(
            {
                "at": now,
                "generation": float(generation or -1),
                **{name: information[name] for name in names},
                **commands,
                **usec,
            }
        )
        time.sleep(0.5)
    return found


def _figures(
    config: RunConfig,
    workers: int,
    drawn: Durations,
    seen: list[dict[str, Any]],
    calls: list[list[Any]],
    meter: Meter,
    watched: list[dict[str, float]],
    refused: dict[str, int],
    records: list[dict[str, Any]],
) -> dict[str, Any]:
    played = sorted({int(number) for one in seen for number in one["generations"]})
    measured = [number for number in played if 1 <= number < config.generations - 1]
    parts = {
        number: [
            one["generations"][str(number)] for one in seen if str(number) in one["generations"]
        ]
        for number in played
    }
    first = {number: min(one["first_claim"] for one in parts[number]) for number in played}
    last = {number: max(one["last_answer"] for one in parts[number]) for number in played}
    start, stop = (
        first[measured[0]],
        first[measured[-1] + 1],
    )  # whole cycles: as many gaps as generations
    total = {
        name: sum(one[name] for number in measured for one in parts[number])
        for name in ("answers", "late", "played", "sent")
    }
    busy = counted_seconds(
        config,
        drawn,
        measured,
        [tuple(play) for one in seen for play in one["plays"]],
        start,
        stop,
        refused,
    )
    return {
        "generations": len(measured),
        "seconds": stop - start,
        "efficiency": busy / (workers * (stop - start)),
        "each": [
            {"first_claim": first[number] - start, "last_answer": last[number] - start}
            for number in measured
        ],
        "overheads": _overheads(first, last, measured, calls),
        "answers": total["answers"],
        "late": total["late"],
        "blocks_per_second": total["answers"] / (stop - start),
        "played_twice": total["played"] / busy - 1,
        "refused": refused,
        "lag": statistics.fmean(record.get("lag_mean", 0.0) for record in records),
        "result_bytes": total["sent"],
        "cpu": {
            name: meter.used(name, start, stop) / (stop - start)
            for name in ("master", "redis", "simulator")
        },
        "timers_late": statistics.fmean(one["timers"]["mean_late"] for one in seen),
        "trips": _summed(seen, "trips"),
        "received": _summed(seen, "received"),
        "master": phases(calls, measured),
        "redis": _between(watched, start, stop),
    }


def counted_seconds(
    config: RunConfig,
    drawn: Durations,
    measured: list[int],
    plays: Sequence[tuple[float, ...]],
    start: float,
    stop: float,
    refused: dict[str, int],
) -> float:
    """Seconds of play that counted: of each generation's slots, once; in the asynchronous schedule
    what lies in the window of the blocks that were answered in time, less what the master refused
    in the whole run.
    """
    if config.schedule == SYNC:
        each = [drawn.slots(number, max_slots(config, 2)[messages.TRAIN]) for number in measured]
        return sum(float(one.sum() + one[0] / 2) for one in each)
    lost = 2 * drawn.mean() * sum(refused.values())
    return within(plays, start, stop) - lost


def within(plays: Sequence[tuple[float, ...]], start: float, stop: float) -> float:
    """Seconds of (began, seconds) between two moments."""
    return sum(max(0.0, min(stop, began + seconds) - max(start, began)) for began, seconds in plays)


def _summed(seen: list[dict[str, Any]], name: str) -> dict[str, int]:
    """Over the simulator's processes, the whole run."""
    return {
        key: sum(one[name].get(key, 0) for one in seen)
        for key in sorted({key for one in seen for key in one[name]})
    }


def _overheads(
    first: dict[int, float], last: dict[int, float], measured: list[int], calls: list[list[Any]]
) -> list[dict[str, float]]:
    """Between two generations: last answer in Redis, published, first claimed."""
    done = {call[1]: call[3] for call in calls if call[0] == "publish"}
    return [
        {
            "last_answer_to_published": done[number] - last[number - 1],
            "published_to_first_claim": first[number] - done[number],
            "gap": first[number] - last[number - 1],
        }
        for number in measured
        if number - 1 in last and number in done
    ]


def phases(calls: list[list[Any]], measured: list[int]) -> dict[str, dict[str, float]]:
    """By phase, over the measured generations: calls, CPU seconds, wall seconds, and the sum of
    sizes.
    """
    found: dict[str, dict[str, float]] = {}
    for phase, generation, began, ended, cpu, size, more in calls:
        if generation not in measured:
            continue
        one = found.setdefault(
            phase, {"calls": 0, "cpu": 0.0, "wall": 0.0, "size": 0.0, "more": 0.0}
        )
        for name, value in (
            ("calls", 1),
            ("cpu", cpu),
            ("wall", ended - began),
            ("size", size),
            ("more", more),
        ):
            one[name] += value
    return found


def _between(watched: list[dict[str, float]], start: float, stop: float) -> dict[str, float]:
    """What Redis counted, a second, and its most memory. From the last look before the window to
    the last one in it: parameters are fetched right after the window begins, and once more right
    after it ends.
    """
    first = max((one["at"] for one in watched if one["at"] <= start), default=start)
    inside = [one for one in watched if first <= one["at"] <= stop]
    if len(inside) < 2:
        return {}
    seconds = inside[-1]["at"] - inside[0]["at"]
    names = [name for name in inside[-1] if name.startswith(("calls ", "usec ", "total_"))]
    rates = {name: (inside[-1][name] - inside[0].get(name, 0.0)) / seconds for name in names}
    most = {
        f"most_{name}": max(one[name] for one in inside)
        for name in ("used_memory", "used_memory_dataset", "connected_clients")
    }
    return {**rates, **most, "least_used_memory": min(one["used_memory"] for one in watched)}
