"""Two ways in which a process begins to play, neither of which loads numpy at once: the seat, the
RQ job by which one ``rq worker`` serves one run for a while; and, as a program, the slots that
es-master plays itself (--audit).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from es_queue.errors import EsQueueError
from es_queue.files import read_frame, write_frame
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.protocol.keys import PAUSED, RUNNING, clocks_from_environment, parse_seat_id
from es_queue.text import sanitize

if TYPE_CHECKING:
    from workers.player import Player


def take() -> None:
    """Serve the run in the job's id until the worker must leave. RQ calls this. It opens the next
    seat first, so that the next worker need not wait. It always returns normally: errors are
    reported to the run, not to RQ.
    """
    # start-up: rq, which its worker has loaded
    from rq import get_current_job

    job: Any = get_current_job()
    if job is None:
        raise EsQueueError("workers.seat.take runs as an RQ job: start it with rq worker")
    run, nonce = parse_seat_id(job.id)
    # start-up: redis
    from es_queue.protocol.connection import clone_client

    client, queue = clone_client(job.connection), job.origin
    if reason := open_next(client, queue, run, nonce, int(job.timeout)):
        with suppress(OSError, ValueError):  # the terminal may be closed
            print(f"es-queue {run}: left: {sanitize(reason, 400)}", flush=True)
        return
    fix_numeric_environment()
    # start-up: after the next seat was opened
    from es_queue.user_code import without_current_folder

    with without_current_folder():
        # start-up: numpy, whose threads must be fixed before it loads
        from es_queue.protocol.seats import is_other_run_waiting
        from workers.serving import Seat

        # If RQ has forked this process for the job, SIGTERM has its default effect, and the process
        # may end itself.
        is_forked = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        Seat(
            client,
            run,
            clocks_from_environment(),
            job.worker_name or "",
            rq_name=job.worker_name or "",
            owns_process=is_forked,
            parent=os.getppid() if is_forked else None,
            has_other_work=lambda client: is_other_run_waiting(client, queue, run),
            queues_before=queues_before(client, job.worker_name or "", queue),
        ).join_and_serve()


def queues_before(client: Any, worker: str, queue: str) -> list[str]:
    """The queues that the RQ worker serves before this one, as far as its user may read them."""
    # start-up: redis
    from es_queue.protocol import keys
    from es_queue.protocol.connection import ANY_ERROR, read_field

    with suppress(ANY_ERROR):
        served = read_field(client, keys.rq_worker(worker), "queues") or b""
        names = served.decode("utf-8", "replace").split(",")
        before = names[: names.index(queue)] if queue in names else []
        for name in before:
            client.llen(keys.rq_queue(name))
        return before
    return []


def open_next(client: Any, queue: str, run: str, nonce: str, timeout: int) -> str:
    """Open the next seat, while the run is running; if that fails, the master opens one.

    Returns why this worker should not take this seat; usually empty. Seats outlive a killed
    master, and would keep workers from live runs. A master takes its lease before it opens seats.
    """
    # start-up: redis
    from es_queue.protocol.connection import ANY_ERROR
    from es_queue.protocol.seats import open_seats, run_status

    with suppress(ANY_ERROR):
        state, led = run_status(client, run)
        if not led:
            has_ended = state not in (None, RUNNING, PAUSED)
            return f"the run is {state}" if has_ended else "the run has no master"
        if state == RUNNING:
            open_seats(client, queue, run, nonce, 1, timeout)
    return ""


# --- the master's own slots


def audit() -> None:
    """Play slots for the es-master that started this process, over standard input and output.

    The first frame contains the run's settings. Each later one is a request: [seconds after which
    this process ends, task's bytes, parameters' bytes, blocks as text]. The reply is the results'
    bytes of each block, or a text with the reason if nothing can be played.
    """
    fix_numeric_environment()
    questions, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an environment prints is no reply
    player: Player | None = None
    settings = read_frame(questions)
    while (question := read_frame(questions)) is not None:
        seconds, *request = question
        signal.alarm(seconds)  # an episode that hangs ends this process
        try:
            # start-up: numpy
            from es_queue.config.run_config import RunConfig
            from workers.heartbeat import EpisodeControl
            from workers.player import join

            player = player or join(RunConfig.from_json(settings), EpisodeControl())
            write_frame(replies, play_blocks(player, *request))
        except EsQueueError as error:
            write_frame(replies, str(error))
        except Exception as error:  # whatever a user's own code raises
            write_frame(replies, f"{type(error).__name__}: {error}")
        signal.alarm(0)


def play_blocks(player: Player, task: bytes, parameters: bytes, blocks: list[str]) -> list[bytes]:
    """The results of blocks of a publication."""
    # start-up: numpy
    import numpy as np

    from es_queue.protocol.messages import Block, Task

    vector = np.frombuffer(parameters, "<f4").astype(np.float32, copy=False)
    player.open(Task.decode(task), vector)
    return [player.play(Block.decode(text), 0).results.tobytes() for text in blocks]


if __name__ == "__main__":
    audit()
