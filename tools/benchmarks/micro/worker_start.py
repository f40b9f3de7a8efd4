"""A plain ``rq worker``: from launch to its first result, and from SIGTERM to its exit while it
plays; EnvPool's import.

The master waits with an open generation on a server of its own. Launch is when the process is
started; the first result is there when Redis has an answer by a worker that was not there before.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import Clocks, RunKeys
from es_queue.protocol.messages import Task
from master.services.private_server import PrivateServer
from tests.integration.processes import Processes, Started, wait_for
from tools.benchmarks import machine
from tools.benchmarks.figures import Row
from tools.benchmarks.runs import ENV, RUN, SEED, Bench, processes_of

FEWEST = 5
FIRST = "plain rq worker, launch to first result, {}"
LAST = "plain rq worker, SIGTERM while it plays to exit, {}"
IMPORT = "import envpool, in a process that has numpy"


def measured(bench: Bench, backend: str) -> list[Row]:
    """One worker after the other on one waiting run."""
    firsts, lasts = [], []
    server = PrivateServer(bench.fresh("server"))
    with processes_of(bench) as processes:
        server.start()
        try:
            client: Any = client_from_url(server.url)
            given = (
                "--env",
                ENV,
                "--seed",
                SEED,
                "--backend",
                backend,
                "--run",
                RUN,
                "--noise-dir",
                bench.noise,
                "--run-dir",
                bench.fresh("start") / "run",
                "--workers",
                0,
                "--json",
            )
            processes.master(*given, url=server.url, clocks=Clocks())
            wait_for(lambda: client.get(RunKeys(RUN).task), "the master publishes")
            for _ in range(1 if bench.quick else max(FEWEST, bench.repeats)):
                worker, seconds = launched(bench, processes, client, server.url)
                firsts.append(seconds)
                lasts.append(terminated(client, worker))
        finally:
            processes.end()
            server.stop()
    target = 2.0 if backend == "lean" else None
    return [
        Row(f"first-result-{backend}", FIRST.format(backend), tuple(firsts), " s", target, "<"),
        Row(f"exit-{backend}", LAST.format(backend), tuple(lasts), " s", 0.5, "<"),
    ]


def launched(bench: Bench, processes: Processes, client: Any, url: str) -> tuple[Started, float]:
    """A worker that has answered, and the seconds until then. Nobody else answers meanwhile."""
    before, began = answers(client), time.perf_counter()
    worker = processes.start(
        processes.rq, "worker", "--url", url, ES_QUEUE_NOISE_DIR=str(bench.noise)
    )
    wait(lambda: answers(client) != before, worker)
    return worker, time.perf_counter() - began


def terminated(client: Any, worker: Started) -> float:
    """Seconds from SIGTERM, sent while it holds a block, until its process has ended."""
    keys = RunKeys(RUN)
    wait(
        lambda: any(
            client.llen(keys.claims(one.decode())) for one in client.smembers(keys.workers)
        ),
        worker,
    )
    began = time.perf_counter()
    worker.signal(signal.SIGTERM)
    if not machine.wait_gone(worker.pid, 30):
        raise AssertionError(f"the worker did not end: {worker.said()[-1000:]}")
    took = time.perf_counter() - began
    worker.wait()
    return took


def answers(client: Any) -> tuple[bytes, int]:
    """(open publication, bytes of its results): both stay as they are while nobody answers."""
    publication = Task.decode(client.get(RunKeys(RUN).task)).publication
    return publication.encode(), int(client.strlen(RunKeys(RUN).results(publication, 0)))


def wait(condition: Callable[[], bool], worker: Started, seconds: float = 60.0) -> None:
    """Look every two milliseconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert worker.process.poll() is None and time.monotonic() < until, worker.said()[-2000:]
        time.sleep(0.002)


def imported(bench: Bench) -> list[Row]:
    """Seconds of EnvPool's own import, a fresh process each."""
    code = (
        "import time, numpy; began = time.perf_counter(); import envpool; "
        "print(time.perf_counter() - began)"
    )
    run = [sys.executable, "-c", code]
    found = [
        float(subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()[-1])
        for _ in range(1 if bench.quick else max(FEWEST, bench.repeats))
    ]
    return [Row("import-envpool", IMPORT, tuple(found), " s")]
