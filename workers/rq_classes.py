"""The old name of ``workers.hardened_worker``, for scripts with
``RQ_JOB_CLASS=workers.rq_classes.SeatJob RQ_WORKER_CLASS=workers.rq_classes.SeatWorker``.
"""

from workers.hardened_worker import SeatJob as SeatJob
from workers.hardened_worker import SeatWorker as SeatWorker
