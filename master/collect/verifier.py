"""A process on the master's host that plays slots again, to check workers' results.

Workers that share a password cannot be told apart, and each can use any number of names. A second
worker's result therefore proves nothing; this process's result does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from es_queue.config.run_config import RunConfig
from es_queue.errors import EsQueueError
from es_queue.numerics.fingerprint import numeric_environment
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from es_queue.protocol import messages
from es_queue.protocol.messages import Answer, SlotResult
from es_queue.security.passwords import environment_without_redis
from es_queue.security.user_code import environment_allowing, named_modules
from es_queue.util.pipe_frames import read_frame, write_frame
from master.collect.blocks.block_scheduler import blocks_of_slots
from master.services.child_process import bind_to_parent

#: Seconds for the process to start and to make its environment, before those of its episodes.
START_SECONDS = 120.0
LONGEST_TROUBLE = 300

Slot = tuple[str, int]


class VerificationError(EsQueueError):
    """The master cannot play a slot itself; the sentence says why."""


@dataclass(frozen=True)
class VerifierReply:
    """What the master's own process returned. numerics: the fingerprint of its arithmetic"""

    numerics: str
    results: dict[Slot, SlotResult]


class Verifier:
    """Plays slots of the open publication in a process of its own, which starts with the first
    question.

    Questions are played in turn. Methods are for one thread; futures complete on another.
    """

    def __init__(self, config: RunConfig, noise_dir: Path | None = None) -> None:
        self._config = config
        noise = {} if noise_dir is None else {FOLDER_VARIABLE: str(noise_dir)}
        self._environment = {
            **numeric_environment(),
            **environment_without_redis(os.environ),
            **noise,
            **environment_allowing(named_modules(config)),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._queue: ThreadPoolExecutor | None = None

    def play(self, task: bytes, parameters: bytes, slots: Iterable[Slot]) -> Future[VerifierReply]:
        """The slots' results; VerificationError if this host cannot play them."""
        requested = sorted(slots)
        publication = messages.Task.decode(task).publication
        blocks = blocks_of_slots(publication, requested, messages.MAX_BLOCK, ())
        seconds = START_SECONDS + self._config.wall_limit * len(requested) * max(
            self._config.elite_episodes,
            self._config.episodes,
            self._config.behaviour_episodes,
        )
        return self._submit_request([task, parameters, [str(block) for block in blocks]], seconds)

    def fingerprint(self) -> Future[VerifierReply]:
        """This host's fingerprint; VerificationError if the environment does not run here."""
        return self._submit_request([b"", b"", []], START_SECONDS + self._config.wall_limit)

    def _submit_request(self, question: list[Any], seconds: float) -> Future[VerifierReply]:
        self._queue = self._queue or ThreadPoolExecutor(1, "verifier")
        try:
            process = self._ensure_process()
        except OSError as error:
            failed: Future[VerifierReply] = Future()
            failed.set_exception(
                VerificationError(f"its process cannot be started: {error.strerror}")
            )
            return failed
        return self._queue.submit(request_results, process, question, seconds)

    def _ensure_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._release_process()
            command = bind_to_parent([sys.executable, "-P", "-m", "workers.play.verify"])
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
                write_frame(stream_of(self._process.stdin), self._config.to_json())
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
        if self._queue is not None:
            self._queue.shutdown(wait=True, cancel_futures=True)
        self._release_process()
        self._queue = None

    def _release_process(self) -> None:
        if self._process is None:
            return
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):  # what was not sent yet
                    stream.close()
        self._process = None


def request_results(
    process: subprocess.Popen[bytes], question: list[Any], seconds: float
) -> VerifierReply:
    """Send a question and wait for its reply; a process slower than ``seconds`` is ended.

    Raises VerificationError.
    """
    alarm = threading.Timer(seconds, process.kill)
    alarm.daemon = True
    alarm.start()
    try:
        write_frame(stream_of(process.stdin), question)
        reply = read_frame(stream_of(process.stdout))
    except OSError as error:
        raise VerificationError(f"its process has ended: {error.strerror}") from None
    finally:
        alarm.cancel()
    if not isinstance(reply, list):
        raise VerificationError(
            "its process has ended" if reply is None else str(reply)[:LONGEST_TROUBLE]
        )
    answers = [Answer.decode(data) for data in reply[1:]]
    return VerifierReply(
        str(reply[0]),
        {(answer.kind, result.slot): result for answer in answers for result in answer.results},
    )


def stream_of(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "it was started with pipes"
    return pipe
