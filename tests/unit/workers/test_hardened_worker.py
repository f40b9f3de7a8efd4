"""What the hardened classes replace in RQ, each piece by itself, without a server."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue, Worker
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError, StopRequested
from rq.executions import Execution
from rq.job import Job, JobStatus

from es_queue.errors import UsageError
from es_queue.protocol import keys
from es_queue.protocol.connection import CONNECT_SECONDS, SOCKET_SECONDS
from es_queue.protocol.seats import SEAT_FUNCTION, ReconnectBackoff, reconnecting_client
from master.services.local_workers import HARDENED_CLASSES, LocalWorkers, WorkerProcess
from tests.cases import each_case
from workers import hardened_worker
from workers.hardened_worker import NoSerializer, SeatJob, SeatQueue, SeatWorker
from workers.rq_job import DEFAULT_TIMEOUT, MAX_TIMEOUT, parse_timeout
from workers.seat import take

SEAT = "es-walk-abcdef-7"
NOWHERE = "redis://127.0.0.1:1"


class Hashes:
    """Enough of a client for a job: one hash, and the names of the commands that were sent."""

    def __init__(self, fields: dict[str, bytes] | None) -> None:
        self.fields, self.sent = fields, list[str]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self.sent.append(name)
        fields = self.fields or {}
        commands: dict[str, Callable[..., Any]] = {
            "exists": lambda key: self.fields is not None,
            "hstrlen": lambda key, field: len(fields.get(field, b"")),
            "hget": lambda key, field: fields.get(field),
            "persist": lambda key: True,
        }
        return commands[name]


def job(fields: dict[str, bytes] | None, name: str = SEAT) -> SeatJob:
    return SeatJob.fetch(name, connection=Hashes(fields), serializer=pickle)  # type: ignore[return-value, arg-type]


def worker(*queues: str, **options: Any) -> SeatWorker:
    return SeatWorker(
        list(queues or ("default",)),
        "w",
        connection=redis.Redis.from_url(NOWHERE),
        prepare_for_work=False,
        **options,
    )


def stopping_worker() -> SeatWorker:
    """One that was told to stop."""
    found = worker()
    found.pid = os.getpid()
    found.handle_warm_shutdown_request()
    return found


def test_a_worker_that_is_told_to_stop_as_a_seat_ends_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits(*_: object) -> None:
        pytest.fail("it waits for another seat")

    monkeypatch.setattr(redis.Redis, "blmove", waits)
    monkeypatch.setattr(SeatWorker, "should_run_maintenance_tasks", False)
    for quiet in ("heartbeat", "set_state"):
        monkeypatch.setattr(SeatWorker, quiet, lambda *_: None)
    with pytest.raises(StopRequested):
        stopping_worker().dequeue_job_and_maintain_ttl(1)


def test_the_names_that_users_type_are_these_classes() -> None:
    names = {
        name: getattr(hardened_worker, path.rpartition(".")[2])
        for name, path in HARDENED_CLASSES.items()
    }
    assert names == {"RQ_JOB_CLASS": SeatJob, "RQ_WORKER_CLASS": SeatWorker}
    assert {path.rpartition(".")[0] for path in HARDENED_CLASSES.values()} == {
        hardened_worker.__name__
    }


def test_a_seats_function_is_the_one_that_masters_enqueue() -> None:
    assert job({}).func is take
    assert f"{take.__module__}.{take.__qualname__}" == SEAT_FUNCTION == job({}).func_name


@each_case("name", ["some-job", "es-walk-abcdef", "es-walk-ABCDEF-1", f"{SEAT}x"])
def test_a_job_that_is_no_seat_has_no_function(name: str) -> None:
    with pytest.raises(UsageError, match="not a seat"):
        _ = job({}, name).func


def test_nothing_of_the_hash_is_read_but_the_time_limit() -> None:
    planted = dict.fromkeys(
        (
            "data",
            "meta",
            "result",
            "exc_info",
            "webhooks",
            "success_callback_name",
            "dependency_ids",
            "group_id",
            "retries_left",
            "repeats_left",
        ),
        b"x",
    )
    found = job({**planted, "timeout": b"77"})
    assert (found.timeout, found.data, found.args, found.kwargs, found.instance) == (
        77,
        b"",
        (),
        {},
        None,
    )
    assert (
        found.success_callback,
        found.failure_callback,
        found.stopped_callback,
        getattr(found, "webhooks", []),
    ) == (None, None, None, [])
    assert (
        found.retries_left,
        found.repeats_left,
        found.group_id,
        found._dependency_ids,
        found.meta,
        found.get_meta(),
    ) == (None, None, None, [], {}, {})
    assert (found.result_ttl, found.results(), found.return_value()) == (0, [], None)
    assert set(found.connection.sent) == {"exists", "hstrlen", "hget"}  # type: ignore[attr-defined]


def test_rqs_own_way_to_fill_a_job_fills_nothing() -> None:
    found = job({})
    found.restore(
        {
            b"data": pickle.dumps(("os.system", None, ("true",), {})),
            b"success_callback_name": b"os.system",
            b"timeout": b"x",
        }
    )
    assert found.data == b"" and found.success_callback is None and found.func is take


def test_a_field_that_is_too_long_is_not_fetched() -> None:
    found = job({"timeout": b"7" * 17, "status": b"s" * 17})
    assert found.timeout == DEFAULT_TIMEOUT and found.get_status() == JobStatus.CREATED
    assert "hget" not in found.connection.sent  # type: ignore[attr-defined]


@each_case(
    ("raw", "seconds"),
    [
        (b"77", 77),
        (b"0", 1),
        (b"-1", DEFAULT_TIMEOUT),
        (b"", DEFAULT_TIMEOUT),
        (b"1e9", DEFAULT_TIMEOUT),
        ("²".encode(), DEFAULT_TIMEOUT),
        ("٣".encode(), DEFAULT_TIMEOUT),
        (b"\xff", DEFAULT_TIMEOUT),
        (b"9999999999999999", MAX_TIMEOUT),
    ],
)
def test_a_time_limit_is_a_number_within_bounds(raw: bytes, seconds: int) -> None:
    assert parse_timeout(raw) == seconds


def test_a_status_is_one_of_rqs() -> None:
    assert job({"status": b"started"}).get_status() == JobStatus.STARTED
    assert job({"status": b"\xff"}).get_status() == JobStatus.CREATED


def test_a_job_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(NoSuchJobError):
        job(None)
    found = job({})
    found.connection.fields = None  # type: ignore[attr-defined]
    with pytest.raises(InvalidJobOperation):
        found.get_status()
    assert SeatJob.fetch_many([SEAT, "a/b"], Hashes(None)) == [None, None]  # type: ignore[arg-type]


def test_what_is_saved_of_a_job_leaves_its_data_alone() -> None:
    found = job({})
    found._exc_info = "why"
    assert set(found.to_dict()) == {"status", "exc_info"}


def test_a_job_is_performed_by_the_seats_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.seat.take", lambda: "sat")
    assert job({"data": b"x"}).perform() == "sat"


def test_the_serializer_refuses_to_load_whatever_rq_passes_in() -> None:
    assert job({}).serializer is NoSerializer
    assert worker(serializer="pickle").serializer is NoSerializer
    with pytest.raises(DeserializationError):
        NoSerializer.loads(b"x")


def test_a_worker_has_its_own_classes_and_timeouts_whatever_rq_passes_in() -> None:
    plain = Queue("named", connection=redis.Redis.from_url(NOWHERE))
    found = SeatWorker(
        [plain],
        connection=plain.connection,
        job_class=Job,
        queue_class=Queue,
        serializer="json",
        prepare_for_work=False,
    )
    assert (
        found.job_class,
        found.queue_class,
        [type(one) for one in found.queues],
        found.queue_names(),
    ) == (SeatJob, SeatQueue, [SeatQueue], ["named"])
    settings = found.connection.connection_pool.connection_kwargs
    assert (settings["socket_timeout"], settings["socket_connect_timeout"]) == (
        SOCKET_SECONDS,
        CONNECT_SECONDS,
    )
    assert (
        found.connection.connection_pool
        is found.queues[0].connection.connection_pool
        is not plain.connection.connection_pool
    )


def test_every_method_that_is_replaced_is_one_that_rq_has() -> None:
    """An RQ that calls it otherwise would do the dangerous thing again, silently."""
    own = {
        "hardened",
        "_should_stop",
        "_continue_after",
        "_pop",
        "_load_seat",
        "_drop_intermediate",
        "_reject_job",
        "_forget_dead_workers",
        "_read_short_field",
    }
    for ours, theirs in ((SeatJob, Job), (SeatWorker, Worker), (SeatQueue, Queue)):
        replaced = {name for name in vars(ours) if not name.startswith("__") and name not in own}
        # RQ 2.9 has no webhooks, and RQ 3 counts the time of a job and moves dependents otherwise.
        assert {name for name in replaced if not hasattr(theirs, name)} <= {
            "send_webhooks",
            "set_current_job_working_time",
            "move_dependents_to_ready",
        }
        for name in replaced:
            if inspect.isfunction(called := getattr(theirs, name, None)):
                wanted = inspect.signature(called).parameters.values()
                inspect.signature(getattr(ours, name)).bind(
                    *(one.name for one in wanted if one.kind is one.POSITIONAL_OR_KEYWORD),
                    **{one.name: None for one in wanted if one.kind is one.KEYWORD_ONLY},
                )


def test_a_worker_subscribes_to_nothing_and_runs_no_scheduler() -> None:
    found = worker()
    found.subscribe()
    found.unsubscribe()
    found._start_scheduler(burst=False)
    assert found.pubsub is None and found.pubsub_thread is None and found.scheduler is None


def test_a_warm_stop_is_passed_on_to_the_horse(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *about: sent.append(about))
    found = worker()
    found.pid, found._horse_pid = os.getpid(), 4321
    found.handle_warm_shutdown_request()
    assert sent == [(4321, signal.SIGTERM)]
    with pytest.raises(redis.exceptions.ConnectionError):  # it waits for Redis no longer
        found.connection.ping()


def test_a_stop_that_comes_while_the_horse_is_born_is_kept_for_the_seat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks: list[set[int]] = []
    monkeypatch.setattr(
        Worker,
        "fork_work_horse",
        lambda *_: masks.append({int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])}),
    )
    worker().fork_work_horse(job({}), None)  # type: ignore[arg-type]
    assert {int(signal.SIGTERM), int(signal.SIGINT)} <= masks[0]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_execution_that_redis_refused_is_not_left_for_the_next_seat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RQ 3 would give the horse the first of those that the worker holds."""
    found = stopping_worker()

    def refuse(own: Worker, *_: object) -> None:
        own.execution = Execution("0123", SEAT, own.connection)
        raise redis.exceptions.ResponseError("refused")

    monkeypatch.setattr(Worker, "execute_job", refuse)
    with pytest.raises(StopRequested):
        found.execute_job(job({}), SeatQueue("default", found.connection))
    held = vars(found)
    assert not held.get("execution") and not held.get("executions")


def test_a_heartbeat_keeps_the_worker_and_its_list_of_executions() -> None:
    sent: list[tuple[object, ...]] = []

    class Pipeline:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *words, **_: sent.append((name, *words))

    worker().heartbeat(90, pipeline=Pipeline())
    assert {("expire", f"rq:worker:w{kind}", 90) for kind in ("", ":executions")} <= set(sent)


def test_a_job_has_no_dependents_to_enqueue_however_rq_asks() -> None:
    queue = SeatQueue("default", worker().connection)
    queue.enqueue_dependents(job({}))
    assert queue.move_dependents_to_ready(job({})) == {}


def test_a_horse_whose_worker_died_waits_for_redis_no_longer() -> None:
    found = worker()
    found._is_horse, found.pid = True, os.getppid() + 1
    with pytest.raises(redis.exceptions.ConnectionError):
        found.connection.ping()


def test_a_worker_that_is_to_stop_bears_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise redis.exceptions.ResponseError("refused")

    monkeypatch.setattr(Worker, "check_for_suspension", refuse)
    with pytest.raises(StopRequested):
        stopping_worker().check_for_suspension(False)


def test_patience_waits_a_second_at_most_and_says_so_once_a_minute() -> None:
    said: list[str] = []
    patience = ReconnectBackoff(lambda: False, said.append)
    waits = [patience.compute(failures) for failures in range(1, 121)]
    assert max(waits) == 1.0 and waits[0] < 0.2 and sum(waits) > 100 and len(said) == 2
    assert copy.deepcopy(patience) is patience


def test_patience_ends_when_nobody_needs_the_answer() -> None:
    client = reconnecting_client(redis.Redis.from_url(NOWHERE), lambda: True, lambda _: None)
    with pytest.raises(redis.exceptions.ConnectionError, match="is stopping"):
        client.ping()


def test_a_command_is_tried_until_redis_answers() -> None:
    left = iter([False] * 3)
    said: list[str] = []
    client = reconnecting_client(
        redis.Redis.from_url(NOWHERE), lambda: next(left, True), said.append
    )
    with pytest.raises(redis.exceptions.ConnectionError, match="is stopping"):
        client.ping()
    assert next(left, "all used") == "all used" and said == [
        "Redis is unreachable; retrying until it returns"
    ]


def test_the_keys_are_rqs() -> None:
    queue, seat = Queue("q", connection=redis.Redis.from_url(NOWHERE)), job({})
    assert keys.rq_workers("q") == "rq:workers:q" and Worker.redis_workers_keys == keys.RQ_WORKERS
    assert keys.rq_failed("q") == queue.failed_job_registry.key and keys.rq_job(SEAT) == seat.key
    assert (
        keys.rq_executions(SEAT) == seat.execution_registry.key
        and keys.rq_worker("w") == worker().key
    )


def test_a_masters_own_workers_are_hardened_unless_the_user_names_other_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in HARDENED_CLASSES:
        monkeypatch.delenv(name, raising=False)
    given: list[dict[str, str]] = []
    monkeypatch.setattr(
        WorkerProcess,
        "start",
        lambda process, command, log, environment, url: given.append(environment),
    )
    LocalWorkers(1, "default", NOWHERE, Path()).start()
    monkeypatch.setenv("RQ_WORKER_CLASS", "rq.SimpleWorker")
    LocalWorkers(1, "default", NOWHERE, Path()).start()
    assert HARDENED_CLASSES.items() <= given[0].items()
    assert given[1]["RQ_WORKER_CLASS"] == "rq.SimpleWorker" and "RQ_JOB_CLASS" not in given[1]
