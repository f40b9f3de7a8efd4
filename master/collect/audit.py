"""--audit P: the master plays a share of the slots itself and compares the bits.

An episode depends only on its slot, so two results of one slot are equal unless a host computes
wrongly. Processes on the master's host play while the workers do. Nothing is learnt from a
generation before its audit has ended.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, NamedTuple

import numpy as np

from es_queue.config.run_config import RunConfig
from es_queue.errors import EnvironmentFailure
from es_queue.numerics.fingerprint import numeric_environment
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from es_queue.protocol.messages import KINDS, MAX_BLOCK, Answer, SlotResult
from es_queue.security.passwords import environment_without_redis
from es_queue.util.pipe_frames import read_frame, write_frame
from master.collect.blocks.block_scheduler import blocks_of_slots
from master.collect.ledger import Ledger, format_difference
from master.services.child_process import bind_to_parent

ADVICE = (
    "one of the two hosts computes wrongly or has other packages: compare them, and test their "
    "memory; nothing was learnt from this generation"
)


class Replay(NamedTuple):
    """What one of the master's processes played. numerics: its fingerprint"""

    numerics: str
    answers: list[Answer]


class Audit:
    """checked: slots whose results were equal"""

    def __init__(self, config: RunConfig, noise_dir: Path | None = None) -> None:
        self._config, self.checked = config, 0
        noise = {} if noise_dir is None else {FOLDER_VARIABLE: str(noise_dir)}
        shell = environment_without_redis(os.environ)
        self._environment = {**numeric_environment(), **shell, **noise}
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, "audit")
        self._children: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._replays: list[Future[Replay]] = []
        self._required: dict[str, Sequence[int]] = {}

    def begin(self, task: bytes, parameters: bytes) -> None:
        """Another publication is open."""
        for replay in self._replays:
            replay.cancel()
        self._task, self._parameters = task, parameters
        self._replays, self._required = [], {}

    def is_pending(self, ledger: Ledger, workers: int) -> bool:
        """Begin to play the audited slots that the ledger requires by now. Once all have results,
        compare. Raises EnvironmentFailure if any differs.
        """
        for kind in ledger.required:
            required, before = ledger.required_slots(kind), self._required.get(kind, ())
            if required != before:
                self._required[kind] = required
                audited = audited_slots(self._config, ledger.checker.generation, kind, required)
                self._begin_replay(ledger, kind, sorted(audited.difference(before)), workers)
        if not all(replay.done() for replay in self._replays):
            return True
        if ledger.is_complete():
            for replay in self._replays:
                self._compare(ledger, replay.result())
            self._replays = []
        return False

    def _begin_replay(self, ledger: Ledger, kind: str, slots: list[int], workers: int) -> None:
        share = math.ceil(self._config.audit * workers)  # of the work: so many processes keep up
        count = min(share, len(slots), os.cpu_count() or 1)
        while len(self._children) < count:
            self._start_process()
        for first in range(count):
            part = [(kind, slot) for slot in slots[first::count]]
            blocks = map(str, blocks_of_slots(ledger.publication, part, MAX_BLOCK, ()))
            question = [self._seconds(len(part)), self._task, self._parameters, list(blocks)]
            self._replays.append(self._threads.submit(self._ask, question))

    def _seconds(self, slots: int) -> int:
        config = self._config
        episodes = max(config.episodes, config.elite_episodes, config.behaviour_episodes)
        return math.ceil(config.wall_limit * (1 + slots * episodes))

    def _start_process(self) -> None:
        child = subprocess.Popen(
            bind_to_parent([sys.executable, "-P", "-m", "workers.audit_slots"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,  # Ctrl-C in the terminal reaches only the master
        )
        self._children.append(child)
        with suppress(OSError):  # it has ended already: the first question finds that
            write_frame(stream_of(child.stdin), self._config.to_json())
        self._idle.put(child)

    def _ask(self, question: list[object]) -> Replay:
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
            return Replay(str(reply[0]), [Answer.decode(data) for data in reply[1:]])
        why = reply or "its process has ended, or an episode exceeds the wall limit"
        raise EnvironmentFailure(
            f"--audit: the master cannot play slots itself ({str(why)[:300]}): make the "
            "environment work on its host, or leave out --audit"
        )

    def _compare(self, ledger: Ledger, replay: Replay) -> None:
        for answer in replay.answers:
            own: dict[int, SlotResult | str] = {result.slot: result for result in answer.results}
            for slot, result in (own | dict(answer.failures)).items():
                counted = ledger.results[answer.kind].get(slot)
                if counted not in (None, result):
                    named = ledger.checker.format_slot(answer.kind, slot)
                    worker = ledger.answerer(answer.kind, slot)
                    first, second = format_difference(counted, result)
                    raise EnvironmentFailure(
                        f"--audit: {named}: {worker} returned {first}, but the master's own "
                        f"episode gives {second}: {ADVICE}"
                    )
                self.checked += 1

    def progress_fields(self) -> dict[str, str]:
        return {"audited": str(self.checked)}

    def close(self) -> None:
        for child in self._children:
            child.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self._children:
            child.wait()
            for stream in (child.stdin, child.stdout):
                with suppress(OSError):  # what was not sent yet
                    stream_of(stream).close()


def stream_of(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "it was started with pipes"
    return pipe


def audited_slots(config: RunConfig, generation: int, kind: str, slots: Sequence[int]) -> set[int]:
    """Those of ``slots`` that are audited: a pure function of seed, generation and slot."""
    if not slots:
        return set()
    stream = np.random.Philox(key=config.seed, counter=[0, KINDS.index(kind), generation, 0])
    chosen = stream.random_raw(slots[-1] + 1) / 2.0**64 < config.audit
    return {slot for slot in slots if chosen[slot]}
