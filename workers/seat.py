"""The seat: the RQ job by which one ``rq worker`` serves one run for a while.

Before numpy is imported, it opens the next seat, so that the next worker need not wait. It always
returns normally: errors are reported to the run, not to RQ.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

from es_queue.errors import EsQueueError
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.protocol.keys import PAUSED, RUNNING, clocks_from_environment, parse_seat_id
from es_queue.text import sanitize


def take() -> None:
    """Serve the run in the job's id until the worker must leave. RQ calls this."""
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
        from workers.join import Seat

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
        ).join_and_serve()


def open_next(client: Any, queue: str, run: str, nonce: str, timeout: int) -> str:
    """Open the next seat, while the run is running; if that fails, the master's SeatManager opens
    one.

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
