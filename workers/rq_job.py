"""SeatJob: an RQ job that reads only its id and time limit from Redis."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from rq import Queue
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.utils import utcformat

from es_queue.protocol import keys
from es_queue.protocol.connection import ANY_ERROR, is_outage
from es_queue.protocol.seats import FAILURE_SECONDS, SEAT_FUNCTION

if TYPE_CHECKING:
    import redis

#: Seconds for a seat whose job does not say, or says nonsense; and the most that one may ask for.
DEFAULT_TIMEOUT, MAX_TIMEOUT = 1200, 7 * 24 * 3600
MAX_NUMBER_TEXT, MAX_STATUS_TEXT = 16, 16


class NoSerializer:
    """Refuses to load anything, and has nothing to store."""

    @staticmethod
    def dumps(*_: object, **__: object) -> bytes:
        return b""

    @staticmethod
    def loads(*_: object, **__: object) -> NoReturn:
        raise DeserializationError("a hardened worker loads nothing from Redis")


class SeatJob(Job):
    """A job whose id is a seat's, and whose function is always the seat's, whatever Redis contains.

    It reads only the time limit and the status of the hash, in a few bytes: no data, meta, result,
    callback, webhook, dependency, group, retry or repeat. Performing a job whose id is not a seat's
    raises UsageError.
    """

    hardened = True

    def __init__(
        self,
        id: str | None = None,
        connection: redis.Redis | None = None,
        serializer: object = None,
    ) -> None:
        super().__init__(id, connection=connection, serializer=NoSerializer)
        self.timeout, self.result_ttl, self.failure_ttl = DEFAULT_TIMEOUT, 0, FAILURE_SECONDS
        self.description = f"es-queue: {self._id}"

    # --- what it runs

    @property
    def func(self) -> Callable[[], None]:
        keys.parse_seat_id(self.id)
        # start-up: in the child process, so that the RQ worker stays small
        from workers.seat import take

        return take

    func_name: Any = property(lambda _: SEAT_FUNCTION, lambda *_: None)
    instance: Any = property(lambda _: None, lambda *_: None)
    args: Any = property(lambda _: (), lambda *_: None)
    kwargs: Any = property(lambda _: {}, lambda *_: None)
    data: Any = property(lambda _: b"", lambda *_: None)
    success_callback: Any = property(lambda _: None)
    failure_callback: Any = property(lambda _: None)
    stopped_callback: Any = property(lambda _: None)

    def send_webhooks(self, *_: object, **__: object) -> None:
        """A seat has none."""

    # --- what it reads

    def refresh(self) -> None:
        """Read the time limit. Raises NoSuchJobError if there is no such hash."""
        try:
            if not self.connection.exists(self.key):
                raise NoSuchJobError(f"No such job: {self.key}")
            self.timeout = parse_timeout(self._read_short_field("timeout", MAX_NUMBER_TEXT))
        except ANY_ERROR as error:
            if is_outage(error):
                raise
            raise NoSuchJobError(f"no job: {self.key}") from None

    def restore(self, raw_data: Any) -> None:
        """Ignores data that RQ has already read."""

    def _read_short_field(self, field: str, longest: int) -> bytes:
        """A field of the hash; empty if it is longer than a valid one."""
        length: Any = self.connection.hstrlen(self.key, field)
        value: Any = self.connection.hget(self.key, field) if 0 < length <= longest else b""
        return value or b""

    def get_status(self, refresh: bool = True) -> JobStatus:
        """The status; CREATED for a value that RQ lacks. Raises InvalidJobOperation if the job is
        gone.
        """
        if refresh:
            try:
                there = self.connection.exists(self.key)
                text = self._read_short_field("status", MAX_STATUS_TEXT)
            except ANY_ERROR as error:
                if is_outage(error):
                    raise
                there, text = 0, b""
            if not there:
                raise InvalidJobOperation(f"Failed to retrieve status for job: {self.id}")
            known = {status.value.encode(): status for status in JobStatus}
            self._status = known.get(text, JobStatus.CREATED)
        return self._status

    @classmethod
    def fetch_many(
        cls, job_ids: Iterable[str], connection: redis.Redis, serializer: object = None
    ) -> list[Job | None]:
        jobs: list[Job | None] = []
        for job_id in job_ids:
            try:
                jobs.append(cls.fetch(job_id, connection))
            except (NoSuchJobError, ValueError):
                jobs.append(None)
        return jobs

    def get_meta(self, refresh: bool = True) -> dict[str, Any]:
        return {}

    def results(self) -> list[Any]:
        return []

    def latest_result(self, timeout: int = 0) -> None:
        return None

    # --- what it writes

    def to_dict(self, include_meta: bool = True, include_result: bool = True) -> dict[str, Any]:
        """The job's outcome; the other fields of the hash stay unchanged."""
        ended = {"ended_at": utcformat(self.ended_at)} if self.ended_at else {}
        reason = {"exc_info": zlib.compress(self._exc_info.encode())} if self._exc_info else {}
        return {"status": self._status, **ended, **reason}

    def delete(
        self, pipeline: Any = None, remove_from_queue: bool = True, delete_dependents: bool = False
    ) -> None:
        """Remove the job's own keys; the worker takes its execution out of RQ's registries."""
        to: Any = self.connection if pipeline is None else pipeline
        to.delete(
            self.key,
            self.dependents_key,
            self.dependencies_key,
            keys.rq_executions(self.id),
            keys.rq_results(self.id),
        )


def parse_timeout(raw: bytes) -> int:
    """The time limit of a job in seconds, from any text in Redis."""
    text = raw.decode("ascii", "replace")
    if text.isascii() and text.isdecimal():
        return max(1, min(int(text), MAX_TIMEOUT))
    return DEFAULT_TIMEOUT


class SeatQueue(Queue):
    """A queue whose jobs have no dependents."""

    def enqueue_dependents(self, *_: object, **__: object) -> None:
        """A seat has none."""

    def move_dependents_to_ready(self, *_: object, **__: object) -> dict[str, list[str]]:
        """RQ 3 calls this after a success; a seat has no dependents."""
        return {}
