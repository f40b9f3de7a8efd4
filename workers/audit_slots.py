"""Play slots for the es-master that started this process, over standard input and output (--audit).

The first frame contains the run's settings. Each later one is a request: [seconds after which this
process ends, task's bytes, parameters' bytes, blocks as text]. The reply is the results' bytes of
each block, or a text with the reason if nothing can be played.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from es_queue.errors import EsQueueError
from es_queue.files import read_frame, write_frame
from es_queue.numerics.fingerprint import fix_numeric_environment

if TYPE_CHECKING:
    from workers.player import Player


def main() -> int:
    argparse.ArgumentParser("python -m workers.audit_slots", description=__doc__).parse_args()
    fix_numeric_environment()
    questions, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints is no reply
    player: Player | None = None
    settings = read_frame(questions)
    while (question := read_frame(questions)) is not None:
        seconds, task, parameters, blocks = question
        signal.alarm(seconds)  # an episode that hangs ends this process
        try:
            if player is None:
                player = make_player(settings)
            write_frame(replies, play_blocks(player, task, parameters, blocks))
        except EsQueueError as error:
            write_frame(replies, str(error))
        except Exception as error:  # whatever a user's own code raises
            write_frame(replies, f"{type(error).__name__}: {error}")
        signal.alarm(0)
    return 0


def make_player(settings: Any) -> Player:
    """A player like a worker's. Raises EsQueueError."""
    # start-up: numpy
    from es_queue.config.parsing import config_from_json
    from workers.episode import EpisodeControl
    from workers.join import join

    return join(config_from_json(settings), EpisodeControl())


def play_blocks(player: Player, task: bytes, parameters: bytes, blocks: list[str]) -> list[bytes]:
    """The results of blocks of a publication."""
    # start-up: numpy
    import numpy as np

    from es_queue.protocol.messages import Block, Task

    vector = np.frombuffer(parameters, "<f4").astype(np.float32, copy=False)
    player.open(Task.decode(task), vector)
    return [player.play(Block.decode(text), 0).results.tobytes() for text in blocks]


if __name__ == "__main__":
    sys.exit(main())
