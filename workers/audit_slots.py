"""Play slots for the es-master that started this process, over standard input and output (--audit).

The first frame contains the run's settings. Each later one is a request: [seconds after which this
process ends, task's bytes, parameters' bytes, blocks as text]. The reply is [fingerprint, an
answer's bytes per block], or a text with the reason if nothing can be played.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from es_queue.errors import EsQueueError
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.util.pipe_frames import read_frame, write_frame

if TYPE_CHECKING:
    from workers.slots import Evaluator

#: An id as a worker has it, for answers that nobody sends.
NAME = "master-0-000000"


def main() -> int:
    argparse.ArgumentParser("python -m workers.audit_slots", description=__doc__).parse_args()
    fix_numeric_environment()
    questions, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints is no reply
    evaluator: Evaluator | None = None
    numerics, settings = "", read_frame(questions)
    while (question := read_frame(questions)) is not None:
        seconds, task, parameters, blocks = question
        signal.alarm(seconds)  # an episode that hangs ends this process
        try:
            if evaluator is None:
                evaluator, numerics = make_evaluator(settings)
            write_frame(replies, [numerics, *play_blocks(evaluator, task, parameters, blocks)])
        except EsQueueError as error:
            write_frame(replies, str(error))
        except Exception as error:  # whatever a user's own code raises
            write_frame(replies, f"{type(error).__name__}: {error}")
        signal.alarm(0)
    return 0


def make_evaluator(settings: Any) -> tuple[Evaluator, str]:
    """An evaluator like a worker's, and this process's fingerprint. Raises EsQueueError."""
    # start-up: numpy
    from es_queue.config.parsing import config_from_json
    from workers.episode import EpisodeControl
    from workers.join import join

    result = join(config_from_json(settings), EpisodeControl())
    return result.evaluator, result.numerics


def play_blocks(
    evaluator: Evaluator, task: bytes, parameters: bytes, blocks: list[str]
) -> list[bytes]:
    """The answers to blocks of a publication."""
    # start-up: numpy
    import numpy as np

    from es_queue.protocol.messages import Block, Task

    known = Task.decode(task)
    vector = np.frombuffer(parameters, "<f4").astype(np.float32, copy=False)
    return [
        evaluator.evaluate(known, vector, Block.decode(text), NAME, lambda _: None).encode()
        for text in blocks
    ]


if __name__ == "__main__":
    sys.exit(main())
