"""--audit P: the master plays a share of the slots itself and compares the bits.

An episode depends only on its slot, so two results of one slot are equal unless a host computes
wrongly. Processes on the master's host play while the workers do. Nothing is learnt from a
generation before its audit has ended.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.credentials import environment_without_redis
from es_queue.errors import EnvironmentFailure
from es_queue.files import read_frame, write_frame
from es_queue.numerics.fingerprint import numeric_environment
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from es_queue.slots import OWED, Rows, Slots, Table, format_slot
from master.loop.blocks import blocks_of_rows
from master.processes import Child, ProcessGroup

LOGGER = logging.getLogger("es_queue.loop")
ADVICE = (
    "one of the two hosts computes wrongly or has other packages: compare them, and test their "
    "memory; nothing was learnt from this generation"
)


class Audit:
    """checked: slots whose results were equal"""

    def __init__(self, config: RunConfig, noise_dir: Path | None = None) -> None:
        self._config, self.checked = config, 0
        noise = {} if noise_dir is None else {FOLDER_VARIABLE: str(noise_dir)}
        shell = environment_without_redis(os.environ)
        self._environment = {**numeric_environment(), **shell, **noise}
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, "audit")
        self._group = ProcessGroup(grace=0)
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._replays: list[Future[list[bytes]]] = []
        self._parameters, self._begun = b"", 0

    def begin(self, parameters: bytes) -> None:
        """Another publication is open."""
        for replay in self._replays:
            replay.cancel()
        self._parameters, self._replays, self._begun = parameters, [], 0

    def follow(self, slots: Slots, task: bytes, workers: int) -> None:
        """Begin to play the audited ones among new rows of the table; task: its header."""
        rows = audited_rows(self._config, slots)
        rows, self._begun = rows[rows >= self._begun], len(slots)
        share = math.ceil(self._config.audit * workers)  # so many keep up with them
        count = min(share, len(rows), os.cpu_count() or 1)
        while len(self._group.children) < count:
            self._start_process()
        for first in range(count):
            blocks = [str(block) for block in blocks_of_rows(slots, rows[first::count].tolist())]
            question = [self._seconds(len(blocks)), task, self._parameters, blocks]
            self._replays.append(self._threads.submit(self._ask, question))

    @property
    def is_pending(self) -> bool:
        """Whether audited rows are still being played."""
        return not all(replay.done() for replay in self._replays)

    def compare(self, slots: Slots, name_of: Callable[[int], str]) -> None:
        """Compare the audited rows. Raises EnvironmentFailure if any differs.

        name_of: the worker with a ``worker_mark``
        """
        for replay in self._replays:
            for data in replay.result():
                self._compare(slots, np.frombuffer(data, slots.shape.result), name_of)
        self._replays = []

    def _seconds(self, slots: int) -> int:
        config = self._config
        counts = ("episodes", "elite_episodes", "behaviour_episodes")
        episodes = max(getattr(config, name, 1) for name in counts)
        return math.ceil(config.wall_limit * (1 + slots * episodes))

    def _start_process(self) -> None:
        words = [sys.executable, "-P", "-m", "workers.seat"]
        log = Path(os.devnull)
        place = Child("an audit", lambda: words, log, self._environment, pipes=True)
        child = self._group.start(place).process
        assert child is not None, "it was just started"
        with suppress(OSError):  # it has ended already: the first question finds that
            write_frame(stream_of(child.stdin), self._config.to_json())
        self._idle.put(child)

    def _ask(self, question: list[object]) -> list[bytes]:
        """Have one of the processes play, on a thread. Raises EnvironmentFailure."""
        child = self._idle.get()
        try:
            write_frame(stream_of(child.stdin), question)
            reply = read_frame(stream_of(child.stdout))
        except OSError as error:
            reply = error.strerror
        finally:
            self._idle.put(child)
        if isinstance(reply, list):
            return [bytes(data) for data in reply]
        why = reply or "its process has ended, or an episode exceeds the wall limit"
        raise EnvironmentFailure(
            f"--audit: the master cannot play slots itself ({str(why)[:300]}): make the "
            "environment work on its host, or leave out --audit"
        )

    def _compare(self, slots: Slots, own: Table, name_of: Callable[[int], str]) -> None:
        counted = slots.table[own["row"]]
        played, differ = counted["state"] != OWED, np.zeros(len(own), np.bool_)
        self.checked += int(np.count_nonzero(played))
        for name in ("failure", "fitness", "returns", "steps", "at_limit", "cut", "behaviour"):
            ours, theirs = (each[name].reshape(len(own), -1) for each in (own, counted))
            differ |= ((ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))).any(1)
        for row in np.flatnonzero(differ & played)[:1].tolist():
            named = format_slot(slots, own["row"][row])
            worker = name_of(int(counted["worker"][row]))
            first, second = format_difference(counted[row], own[row])
            raise EnvironmentFailure(
                f"--audit: {named}: {worker} returned {first}, but the master's own episode gives "
                f"{second}: {ADVICE}"
            )

    def close(self) -> None:
        self._group.end()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._group.__exit__()


def stream_of(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "it was started with pipes"
    return pipe


def audited_rows(config: RunConfig, slots: Slots) -> Rows:
    """Rows that are audited: a pure function of seed, generation, kind and slot."""
    chosen = np.zeros(len(slots), np.bool_)
    for kind in np.unique(slots.table["kind"]).tolist():
        rows = slots.rows(kind)
        numbers = slots.table["number"][rows]
        counter = [0, kind, slots.generation, 0]
        words = np.random.Philox(key=config.seed, counter=counter).random_raw(numbers.max() + 1)
        chosen[rows] = (words / 2.0**64 < config.audit)[numbers]
    return np.flatnonzero(chosen)


def warn_of_conflict(slots: Slots, name_of: Callable[[int], str]) -> None:
    """Name two results of one slot: on equal hardware, they are a sign of a broken host."""
    assert slots.tally.conflict is not None, "there is one"
    first, second = slots.tally.conflict
    one, other = format_difference(first, second)
    LOGGER.warning(
        f"two workers returned different results of {format_slot(slots, first['row'])}: "
        f"{name_of(int(first['worker']))} {one}, {name_of(int(second['worker']))} {other}; the "
        "first counts, and more of these are only counted (refused: conflict): compare the hosts' "
        "packages and test their memory, or find the broken one with --audit"
    )


def format_difference(first: Any, second: Any) -> tuple[str, str]:
    """Two results of one slot in words."""
    one, other = map(format_result, (first, second))
    hidden = " (its behaviour or observation statistics differ)" if one == other else ""
    return one, other + hidden


def format_result(result: Any) -> str:
    if result["failure"]:
        return "a failure"
    played = result["steps"] > 0  # some kinds of slots have fewer individuals than others
    columns = (result[name][played].tolist() for name in ("fitness", "returns", "steps"))
    fitness, returns, steps = (" and ".join(map(repr, column)) for column in columns)
    return f"fitness {fitness}, return {returns}, {steps} steps"
