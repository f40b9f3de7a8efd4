"""The master's own player: a process on its host that plays slots again, to check what workers
returned.

Workers that share a password cannot be told apart, and each can have any number of names. So no
second worker's word proves anything; an episode that this process plays does.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgpack

from es_queue.config import RunConfig
from es_queue.custom_code import allowing, named_modules
from es_queue.errors import EsQueueError
from es_queue.noise import FOLDER_VARIABLE
from es_queue.numerics import numeric_environment
from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, Block, SlotResult
from es_queue.protocol.passwords import without_redis
from master.household.embedded import bound_to_parent
from master.slots import ranges

LENGTH = struct.Struct(">I")
#: Seconds for the process to start and to make its environment, before those of its episodes.
START_SECONDS = 120.0
LONGEST_TROUBLE = 300

Slot = tuple[str, int]


class VerificationError(EsQueueError):
    """The master cannot play a slot itself; the sentence says why."""


@dataclass(frozen=True)
class Played:
    """What the master's own process returned. numerics: the fingerprint of its arithmetic"""

    numerics: str
    results: dict[Slot, SlotResult]


class Verifier:
    """Plays slots of the open publication in a process of its own.

    It starts with the first question.
    One question is played after the other. All methods are for one thread; the
    futures are done on another.
    """

    def __init__(self, config: RunConfig, noise_dir: Path | None = None) -> None:
        self._config = config
        noise = {} if noise_dir is None else {FOLDER_VARIABLE: str(noise_dir)}
        self._environment = {
            **numeric_environment(),
            **without_redis(os.environ),
            **noise,
            **allowing(named_modules(config)),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._queue: ThreadPoolExecutor | None = None

    def play(self, task: bytes, parameters: bytes, slots: Iterable[Slot]) -> Future[Played]:
        """The slots' results; VerificationError where this host cannot play them."""
        asked = sorted(slots)
        publication = messages.Task.decode(task).publication
        kinds = sorted({kind for kind, _ in asked})
        found = [
            Block(publication, *one)
            for kind in kinds
            for one in ranges((slot for own, slot in asked if own == kind), kind)
        ]
        blocks = [
            Block(publication, one.kind, start, min(one.stop, start + messages.MAX_BLOCK))
            for one in found
            for start in range(one.start, one.stop, messages.MAX_BLOCK)
        ]
        seconds = START_SECONDS + self._config.wall_limit * len(asked) * max(
            1, self._config.elite_episodes, self._config.episodes
        )
        return self._asked([task, parameters, [str(block) for block in blocks]], seconds)

    def fingerprint(self) -> Future[Played]:
        """Only the fingerprint of this host's arithmetic; VerificationError if the environment does not play here."""
        return self._asked([b"", b"", []], START_SECONDS + self._config.wall_limit)

    def _asked(self, question: list[Any], seconds: float) -> Future[Played]:
        self._queue = self._queue or ThreadPoolExecutor(1, "verifier")
        try:
            process = self._started()
        except OSError as error:
            failed: Future[Played] = Future()
            failed.set_exception(
                VerificationError(f"its process cannot be started: {error.strerror}")
            )
            return failed
        return self._queue.submit(ask, process, question, seconds)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            command = bound_to_parent([sys.executable, "-P", "-m", "workers.verify"])
            # A session of its own, so that Ctrl-C in the terminal reaches only the master.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
            )
            with suppress(OSError):  # it may have ended already; the first question finds that
                send(stdin_of(self._process), self._config.to_json())
        return self._process

    def close(self) -> None:
        """End the process, whatever it plays."""
        if self._process is not None:
            self._process.kill()
        if self._queue is not None:
            self._queue.shutdown(wait=True, cancel_futures=True)
        self._end()
        self._queue = None

    def _end(self) -> None:
        """Let go of a process that has ended."""
        if self._process is None:
            return
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was not sent yet
                    stream.close()
        self._process = None


def ask(process: subprocess.Popen[bytes], question: list[Any], seconds: float) -> Played:
    """Send a question and wait for its reply; a process slower than ``seconds`` is ended.

    Raises VerificationError.
    """
    alarm = threading.Timer(seconds, process.kill)
    alarm.daemon = True
    alarm.start()
    try:
        send(stdin_of(process), question)
        reply = received(process)
    except OSError as error:
        raise VerificationError(f"its process has ended: {error.strerror}") from None
    finally:
        alarm.cancel()
    if not isinstance(reply, list):
        raise VerificationError(
            "its process has ended" if reply is None else str(reply)[:LONGEST_TROUBLE]
        )
    answers = [Answer.decode(data) for data in reply[1:]]
    return Played(
        str(reply[0]),
        {(one.kind, result.slot): result for one in answers for result in one.results},
    )


def stdin_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None, "it was started with a pipe"
    return process.stdin


def send(stream: IO[bytes], frame: Any) -> None:
    data = msgpack.packb(frame)
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


def received(process: subprocess.Popen[bytes]) -> Any:
    """The next reply; None where the process has ended."""
    assert process.stdout is not None, "it was started with a pipe"
    head = process.stdout.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    data = process.stdout.read(size)
    return msgpack.unpackb(data, max_bin_len=size, max_str_len=size) if len(data) == size else None
