"""The seat: the RQ job by which one ``rq worker`` serves one run for a while.

Before numpy is imported, it opens the next seat, so that the next worker need not wait. It always
returns normally: errors are reported to the run, not to RQ.
"""

from __future__ import annotations

from es_queue.errors import EsQueueError
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.protocol.keys import parse_seat_id
from es_queue.protocol.timing import clocks_from_environment
from workers.open_seat import Seat


def take() -> None:
    """Serve the run in the job's id until told to leave. RQ calls this."""
    # start-up: rq, which its worker has loaded
    from rq import get_current_job

    job = get_current_job()
    if job is None:
        raise EsQueueError("workers.seat.take runs as an RQ job: start it with rq worker")
    run, nonce = parse_seat_id(job.id)
    # start-up: redis
    from es_queue.protocol.connection import clone_client

    arguments = clone_client(job.connection), run, nonce, job, clocks_from_environment()
    seat = Seat(*arguments)
    reason = seat.open_next()
    if reason:
        seat.print_line(f"left: {reason}")
        return
    fix_numeric_environment()
    # start-up: after the next seat was opened
    from es_queue.security.user_code import without_current_folder

    with without_current_folder():
        # start-up: numpy, whose threads must be fixed before it loads
        from workers.serving import ServedSeat

        ServedSeat(*arguments).join_and_serve()
