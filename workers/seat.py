"""The seat: the RQ job by which one ``rq worker`` serves one run for a while.

Before numpy is imported, it opens the next seat, so that the next worker need not wait. It always
returns normally: errors are reported to the run, not to RQ.
"""

from __future__ import annotations

import os
from typing import Any

from es_queue.errors import EsQueueError
from es_queue.numerics.fingerprint import fix_numeric_environment
from es_queue.protocol.keys import parse_seat_id
from es_queue.protocol.timing import clocks_from_environment
from workers.open_seat import is_horse, open_next, print_line, supervisor_of_local_worker


def take() -> None:
    """Serve the run in the job's id until told to leave. RQ calls this."""
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
        print_line(run, f"left: {reason}")
        return
    fix_numeric_environment()
    # start-up: after the next seat was opened
    from es_queue.security.user_code import without_current_folder

    with without_current_folder():
        # start-up: numpy, whose threads must be fixed before it loads
        from es_queue.protocol.seats import is_other_run_waiting
        from workers.serving import Seat

        forked = is_horse()
        Seat(
            client,
            run,
            clocks_from_environment(),
            job.worker_name or "",
            rq_name=job.worker_name or "",
            owns_process=forked,
            parent=os.getppid() if forked else None,
            supervisor=supervisor_of_local_worker(),
            has_other_work=lambda client: is_other_run_waiting(client, queue, run),
        ).join_and_serve()
