"""Record how long BipedalWalker's episodes are: the real run, one real worker, and an observer of
its answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import redis

from es_queue.protocol.connection import client_from_url
from es_queue.protocol.keys import RunKeys
from es_queue.protocol.messages import TRAIN, Answer
from master.services.private_server import PrivateServer

ENVIRONMENT, RUN, PAIRS = "BipedalWalker-v2", "recorded", 3000


class Observer:
    """Reads each publication's answers beside the master, which removes them when it opens the
    next.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._keys = RunKeys(RUN)
        self._publication, self._cursor = "", "0"
        self.pairs: list[tuple[int, ...]] = []
        self.seconds: list[float] = []

    def update(self) -> None:
        """Take in what is new; waits for up to a tenth of a second."""
        open_now = self._client.hget(self._keys.progress, "publication")
        if open_now is None:
            time.sleep(0.05)
            return
        if open_now.decode() != self._publication:
            self._publication, self._cursor = open_now.decode(), "0"
        found = self._client.xread(
            {self._keys.results(self._publication): self._cursor}, count=1000, block=100
        )
        for entries in (
            found.values() if isinstance(found, dict) else [one for _, one in found or []]
        ):
            for name, fields in (
                entries
                if not entries or not isinstance(entries[0], list) or len(entries[0]) == 2
                else entries[0]
            ):
                self._cursor = name.decode()
                self._take(fields.get(b"answer"))

    def _take(self, payload: bytes | None) -> None:
        if payload is None:
            return
        answer = Answer.decode(payload)
        if answer.kind == TRAIN and answer.results:
            self.pairs += [one.steps for one in answer.results]
            self.seconds.append(answer.seconds / sum(sum(one.steps) for one in answer.results))


def record(path: Path, seconds: float) -> dict[str, float]:
    """Train for so long and write the steps of both episodes of each pair, evenly thinned, with the
    seconds a step.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = PrivateServer(Path(folder) / "redis")
        server.start()
        common: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL}
        master = [
            sys.executable,
            "-m",
            "master.cli.main",
            "--env",
            ENVIRONMENT,
            "--seed",
            "4",
            "--run",
            RUN,
            "--run-dir",
            f"{folder}/run",
        ]
        processes = [
            subprocess.Popen(
                [
                    *master,
                    "--redis-url",
                    server.url,
                    "--max-seconds",
                    str(seconds),
                    "--final-episodes",
                    "0",
                ],
                **common,
            ),
            subprocess.Popen(
                [sys.executable, "-m", "rq.cli", "worker", "--url", server.url],
                env=dict(os.environ),
                **common,
            ),
        ]
        try:
            with client_from_url(server.url) as client:
                observer = Observer(client)
                while processes[0].poll() is None:
                    observer.update()
        finally:
            for process in processes:
                process.terminate()
                process.wait()
            server.stop()
    steps = np.array(observer.pairs, np.int16)
    kept = steps[np.linspace(0, len(steps) - 1, min(PAIRS, len(steps))).astype(int)]
    each = float(
        np.quantile(observer.seconds, 0.1)
    )  # the machine may be busy: what it takes when it is not
    np.savez_compressed(
        path, steps=kept, seconds_per_step=each, environment=ENVIRONMENT, recorded=len(steps)
    )
    return {
        "pairs": len(steps),
        "kept": len(kept),
        "seconds_per_step": each,
        "median": float(np.median(observer.seconds)),
        "mean_steps": float(steps.mean()),
    }


if __name__ == "__main__":
    print(record(Path(sys.argv[1]), float(sys.argv[2])))
