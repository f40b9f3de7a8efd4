"""Hardened RQ classes: ``RQ_JOB_CLASS=workers.hardened_worker.SeatJob
RQ_WORKER_CLASS=workers.hardened_worker.SeatWorker rq worker``.

Anyone who can write to Redis can make a plain worker run any function. These workers run only
seats, and read only a job's id and time limit, so plain and hardened workers can share a queue. The
methods that they replace depend on RQ's internals; ``tests/unit/workers/test_hardened_worker.py``
checks each.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rq import Queue, Worker
from rq.defaults import DEFAULT_FAILURE_TTL
from rq.exceptions import NoSuchJobError, StopRequested
from rq.job import JOB_ID_PATTERN, Job, JobStatus
from rq.utils import now, utcformat

from es_queue.errors import EsQueueError
from es_queue.protocol import keys
from es_queue.protocol.connection import ANY_ERROR, first_line, is_outage
from es_queue.protocol.seats import reconnecting_client
from workers.rq_job import NoSerializer as NoSerializer
from workers.rq_job import SeatJob as SeatJob
from workers.rq_job import SeatQueue as SeatQueue

if TYPE_CHECKING:
    import redis

MAX_ID = 200
#: Below the socket's timeout.
BLOCK_SECONDS = 2
BEAT_SECONDS = 5.0
PAUSE_SECONDS = 1.0
#: Every so many of the refused jobs are said, once there were a few.
LOGGED_REFUSALS, LOG_REFUSALS_EVERY = 10, 1000
WORKER_BATCH = 1000
STOPPING = (signal.SIGTERM, signal.SIGINT)


class SeatWorker(Worker):
    """An ``rq worker`` that runs seats and ignores every other request from Redis.

    It waits for Redis without limit, passes a warm stop on to its seat, and does not subscribe to
    pub/sub commands. Jobs that are not seats are moved to the failed ones, unread. RQ's registries
    are left to the masters.
    """

    hardened = True

    def __init__(
        self,
        queues: Any,
        name: str | None = None,
        *,
        connection: redis.Redis | None = None,
        **options: Any,
    ) -> None:
        """``options``: of ``rq.Worker``, except its classes and serializer."""
        self._stopping = mmap.mmap(-1, 1)  # shared with the horse
        given = [queues] if isinstance(queues, str | Queue) else list(queues)
        link: Any = connection or next(
            (queue.connection for queue in given if isinstance(queue, Queue)), None
        )
        if link is None:
            raise EsQueueError("a SeatWorker needs a connection: start it with rq worker")
        self._last_beat, self._refused = 0.0, 0
        options |= {"job_class": SeatJob, "queue_class": SeatQueue, "serializer": NoSerializer}
        super().__init__(
            [queue.name if isinstance(queue, Queue) else queue for queue in given],
            name,
            connection=link,
            **options,
        )

    # --- Redis

    def _set_connection(self, connection: Any) -> Any:
        """RQ would raise the socket's timeout to seven minutes."""
        return reconnecting_client(
            connection,
            self._should_stop,
            lambda text: self.log.warning("Worker %s: %s", getattr(self, "name", "?"), text),
        )

    def _should_stop(self) -> bool:
        """Whether Redis is no longer needed: this worker must stop, or it is a horse without its
        worker.
        """
        return bool(self._stopping[0]) or (
            getattr(self, "_is_horse", False) and os.getppid() != self.pid
        )

    def _continue_after(self, error: Exception, what: str) -> None:
        """Continue after Redis refused a command. Raises StopRequested if this worker must stop."""
        if self._should_stop():
            raise StopRequested
        self.log.warning("Worker %s: Redis refused %s: %s", self.name, what, first_line(error))
        with suppress(ANY_ERROR):
            if self.connection.type(self.key) not in (b"hash", b"none"):
                self.connection.delete(self.key)  # it is ours by name, whoever wrote it
        time.sleep(PAUSE_SECONDS)

    # --- what it says of itself

    def serialize(self) -> dict[str, Any]:
        return {
            **super().serialize(),
            "state": self._state,
            "hardened": "yes",
            "refused": self._refused,
        }

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Also registers again, because Redis may have lost its data."""
        self._last_beat, self.last_heartbeat = time.monotonic(), now()
        to: Any = self.connection.pipeline(transaction=False) if pipeline is None else pipeline
        if self.birth_date is None:
            self.birth_date = self.last_heartbeat
        to.hset(self.key, mapping=self.serialize())  # first: RQ looks at this reply
        to.expire(self.key, timeout or self.worker_ttl + 60)
        to.expire(f"{self.key}:executions", timeout or self.worker_ttl + 60)  # of RQ 3
        to.sadd(keys.RQ_WORKERS, self.key)
        for queue in self.queue_names():
            to.sadd(keys.rq_workers(queue), self.key)
        if pipeline is None:
            with suppress(ANY_ERROR):
                to.execute()

    def set_state(self, state: str, pipeline: Any = None) -> None:
        with suppress(ANY_ERROR):
            super().set_state(state, pipeline)

    def set_current_job_working_time(
        self, current_job_working_time: float, pipeline: Any = None
    ) -> None:
        with suppress(ANY_ERROR):
            super().set_current_job_working_time(current_job_working_time, pipeline)

    def maintain_heartbeats(self, job: Job, *execution: Any) -> None:  # RQ 3 has the latter
        with suppress(ANY_ERROR):
            super().maintain_heartbeats(job, *execution)

    def set_shutdown_requested_date(self) -> None:
        rq: Any = super()
        with suppress(ANY_ERROR):
            rq.set_shutdown_requested_date()

    def register_death(self) -> None:
        rq: Any = super()
        with suppress(ANY_ERROR):
            rq.register_death()

    # --- who may tell it what to do: its own user by signals, and rq suspend

    def subscribe(self) -> None:
        """Does not subscribe: any publisher could stop the worker."""

    def unsubscribe(self) -> None:
        """Nothing to unsubscribe."""

    def handle_payload(self, message: Any) -> None:
        """Ignore all commands."""

    def check_for_suspension(self, burst: bool) -> None:
        try:
            super().check_for_suspension(burst)
        except ANY_ERROR as error:
            self._continue_after(error, "the check for suspension")

    def handle_warm_shutdown_request(self) -> None:
        rq: Any = super()
        rq.handle_warm_shutdown_request()
        self._stopping[0] = 1
        if self.horse_pid:
            with suppress(OSError):
                os.kill(self.horse_pid, signal.SIGTERM)

    # --- jobs

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """The next seat; None if there is none and RQ would stop waiting."""
        self.set_state("idle")
        title: Any = self.procline
        title("Listening on " + ",".join(self.queue_names()))
        self.heartbeat()
        since = time.monotonic()
        while True:
            if self._stopping[0]:  # told so between the end of a seat and the state "idle"
                raise StopRequested
            try:
                if time.monotonic() - self._last_beat > BEAT_SECONDS:
                    self.heartbeat()
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()
                popped = self._pop(wait=timeout is not None)
                seat = None if popped is None else self._load_seat(*popped)
            except ANY_ERROR as error:
                self._continue_after(error, "a job")
                continue
            if seat is not None:
                self.reorder_queues(reference_queue=seat[1])
                return seat
            if popped is None and (
                timeout is None
                or (max_idle_time is not None and time.monotonic() - since >= max_idle_time)
            ):
                return None

    def _pop(self, *, wait: bool) -> tuple[Queue, bytes] | None:
        """(queue, the entry at its head). With one queue it uses RQ's intermediate queue, as RQ
        does.
        """
        queues = self._ordered_queues
        redis: Any = self.connection
        if len(queues) == 1:
            key, between = queues[0].key, queues[0].intermediate_queue_key
            raw = redis.blmove(key, between, BLOCK_SECONDS) if wait else redis.lmove(key, between)
            return None if raw is None else (queues[0], raw)
        if wait:
            popped = redis.blpop([queue.key for queue in queues], BLOCK_SECONDS)
            if popped is None:
                return None
            return next(queue for queue in queues if queue.key.encode() == popped[0]), popped[1]
        for queue in queues:
            raw = redis.lpop(queue.key)
            if raw is not None:
                return queue, raw
        return None

    def _load_seat(self, queue: Queue, raw: bytes) -> tuple[Job, Queue] | None:
        name = raw.decode("ascii", "replace") if len(raw) <= MAX_ID else ""
        if not keys.SEAT_ID.fullmatch(name):
            self._reject_job(queue, raw, name)
            return None
        job = SeatJob(name, self.connection)
        try:
            job.refresh()
        except NoSuchJobError:  # its run has closed it
            self._drop_intermediate(queue, raw)
            return None
        job.origin = queue.name
        self.log.info("Worker %s: %s: %s", self.name, queue.name, job.id)
        return job, queue

    def _drop_intermediate(self, queue: Queue, raw: bytes) -> None:
        if len(self.queues) == 1:
            redis: Any = self.connection
            redis.lrem(queue.intermediate_queue_key, 1, raw)

    def _reject_job(self, queue: Queue, raw: bytes, name: str) -> None:
        """Move a job that is not a seat to the failed jobs, and remove an id without a job."""
        self._refused += 1
        if self._refused <= LOGGED_REFUSALS or self._refused % LOG_REFUSALS_EVERY == 0:
            self.log.warning(
                "Worker %s: %s: refused a job that is not a seat: %s",
                self.name,
                queue.name,
                ascii(raw[:60]),
            )
        self._drop_intermediate(queue, raw)
        if JOB_ID_PATTERN.fullmatch(name) and self.connection.type(keys.rq_job(name)) == b"hash":
            reason = zlib.compress(
                b"a hardened es-queue worker runs seats alone: serve this job by plain "
                b"workers on a queue of its own"
            )
            pipeline: Any = self.connection.pipeline(transaction=True)
            pipeline.hset(
                keys.rq_job(name),
                mapping={
                    "status": JobStatus.FAILED.value,
                    "ended_at": utcformat(now()),
                    "exc_info": reason,
                },
            )
            pipeline.zadd(keys.rq_failed(queue.name), {name: time.time() + DEFAULT_FAILURE_TTL})
            pipeline.execute()
        self.connection.hset(self.key, "refused", self._refused)

    def execute_job(self, job: Job, queue: Queue) -> None:
        try:
            super().execute_job(job, queue)
        except ANY_ERROR as error:  # the horse has ended, or never began
            self._continue_after(error, "the records of a seat")
        finally:
            self.execution = None  # RQ 3 would give one that was left to the next seat

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """A stop during the fork waits until the seat has its own handler."""
        former = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            super().fork_work_horse(job, queue)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    # --- what RQ's workers do beside their jobs

    def run_maintenance_tasks(self) -> None:
        """Only tasks that read no job: masters clear the registries of seats, and plain workers
        those of other jobs.
        """
        self.clean_registries()

    def clean_registries(self) -> None:
        self.last_cleaned_at: Any = now()
        for queue in self.queues:
            lock: Any = queue
            if not lock.acquire_maintenance_lock():
                continue
            try:
                self.connection.zremrangebyscore(keys.rq_failed(queue.name), 0, time.time())
                self._forget_dead_workers(queue)
            except ANY_ERROR as error:
                if is_outage(error):
                    raise
            finally:
                lock.release_maintenance_lock()

    def _forget_dead_workers(self, queue: Queue) -> None:
        redis: Any = self.connection
        _, names = redis.sscan(keys.rq_workers(queue.name), 0, count=WORKER_BATCH)
        for name in (
            key for key in names[:WORKER_BATCH] if len(key) <= MAX_ID and not redis.exists(key)
        ):
            redis.srem(keys.rq_workers(queue.name), name)
            redis.srem(keys.RQ_WORKERS, name)

    def _start_scheduler(self, *_: Any, **__: Any) -> None:
        self.log.info("Worker %s: hardened workers run no scheduler: seats need none", self.name)
