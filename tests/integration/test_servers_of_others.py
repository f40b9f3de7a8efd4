"""Redis servers and RQ workers that other programs use, or that cannot serve a run: es-queue leaves
their jobs to them, and names what is wrong.
"""

from __future__ import annotations

import signal
from pathlib import Path

import redis
import rq

from master.services.private_server import server_binary
from tests.abuse.servers import WHEEL, serving
from tests.integration.processes import (
    BIN,
    CARTPOLE,
    Processes,
    Seen,
    Started,
    flags,
    wait_for,
)

LONG = {**CARTPOLE, "generations": 1_000_000}


def done(started: Started, code: int) -> str:
    assert started.wait() == code, started.said()
    return started.said()


def enqueue(client: redis.Redis, queue: str = "default", count: int = 3) -> set[bytes]:
    """Jobs of another program."""
    target = rq.Queue(queue, connection=client)
    return {target.enqueue_call("other_program.tasks.send").id.encode() for _ in range(count)}


def test_local_workers_leave_the_jobs_of_other_programs(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    jobs = enqueue(redis_client)
    words = (*flags(CARTPOLE), "--run", "guest", "--workers", 2)
    said = done(processes.master(*words, url=valkey_url), 0)
    assert set(redis_client.lrange("rq:queue:default", 0, -1)) == jobs
    assert not redis_client.exists("rq:failed:default")
    assert "queue 'default' of this Redis holds 3 jobs of other programs" in said
    assert "--queue NAME" in said


def test_a_seat_ends_when_jobs_wait_on_a_queue_that_its_worker_serves_first(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    master = processes.master(*flags(LONG), "--run", "second", url=valkey_url)
    worker = processes.worker(valkey_url, "high", "default")
    Seen(redis_client, "second").joined(worker)
    enqueue(redis_client, "low", 1)
    job = enqueue(redis_client, "high", 1)
    wait_for(lambda: set(redis_client.zrange("rq:failed:high", 0, -1)) == job, "the job was begun")
    assert redis_client.llen("rq:queue:low") == 1
    assert "jobs wait on a queue that its RQ worker serves first" in worker.said()
    assert master.process.poll() is None


def test_a_suspended_rq_is_named_as_the_reason_for_no_worker(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    redis_client.set("rq:suspended", 1)
    master = processes.master(*flags(CARTPOLE), "--run", "suspended", "--json", url=valkey_url)
    wait_for(lambda: "RQ is suspended on this Redis" in master.said(), "the reason is named")
    assert "no worker has joined" not in master.said()
    shown = processes.start(BIN / "es-status", "suspended", "--redis-url", valkey_url)
    shown.wait()
    assert "RQ is suspended" in shown.said() and "start rq worker" not in shown.said()
    redis_client.delete("rq:suspended")
    processes.worker(valkey_url)
    done(master, 0)


def test_a_server_without_room_for_workers_is_named_with_its_limit(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    master = processes.master(*flags(CARTPOLE), "--run", "crowded", "--json", url=valkey_url)
    wait_for(lambda: redis_client.exists("es:crowded:config"), "the run has begun")
    most = redis_client.info("clients")["connected_clients"]
    redis_client.config_set("maxclients", most)
    try:
        wait_for(lambda: f"of maxclients {most} are connected" in master.said(), "the limit")
        assert "no worker has joined" not in master.said()
    finally:
        redis_client.config_set("maxclients", 10_000)
    processes.worker(valkey_url)
    done(master, 0)


def test_es_worker_refuses_a_replica_and_waits_for_a_server_that_is_away(
    processes: Processes, tmp_path: Path
) -> None:
    with serving(WHEEL, tmp_path / "replica", "--replicaof", "127.0.0.1 1") as port:
        url = f"redis://127.0.0.1:{port}"
        said = done(processes.start(BIN / "es-worker", "--redis-url", url), 3)
        assert "is a read-only replica: give the URL of its master" in said
    waiting = processes.start(BIN / "es-worker", "--redis-url", url)
    wait_for(lambda: "the workers wait" in waiting.said(), "it waits")
    with serving(WHEEL, tmp_path / "late", "--replicaof", "127.0.0.1 1", port=port):
        assert "is a read-only replica" in done(waiting, 3)


def test_every_command_names_a_sentinel(processes: Processes, tmp_path: Path) -> None:
    socket, config = tmp_path / "socket", tmp_path / "conf"
    config.write_text("sentinel monitor other 127.0.0.1 1 1\n")
    words = (server_binary(), config, "--sentinel", "--port", 0, "--unixsocket", socket)
    sentinel = processes.start(*words)
    try:
        wait_for(socket.exists, "the Sentinel listens")
        for name, *more in (("es-status",), ("es-worker",), ("es-master", "--env", "CartPole-v1")):
            command = processes.start(BIN / name, *more, "--redis-url", f"unix://{socket}")
            said = done(command, 3)
            assert "Sentinel" in said and "give the URL of the server that it watches" in said
    finally:
        sentinel.signal(signal.SIGKILL)  # it overwrites the mark in its environment


def test_a_key_of_another_program_in_the_place_of_the_runs_is_named(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    redis_client.set("es:runs", "another program's")
    for name, *words in (("es-status",), ("es-worker",), ("es-master", "--env", "CartPole-v1")):
        said = done(processes.start(BIN / name, *words, "--redis-url", valkey_url), 3)
        assert "has a key es:runs of another program, not a sorted set" in said
        assert "another database number" in said


def test_a_server_without_scripts_is_refused_before_the_run(
    processes: Processes, tmp_path: Path
) -> None:
    with serving(WHEEL, tmp_path / "server", "--rename-command", "EVALSHA", "") as port:
        words = ("--env", "CartPole-v1", "--redis-url", f"redis://127.0.0.1:{port}")
        said = done(processes.master(*words), 3)
    assert "does not know EVALSHA, but es-queue needs Lua scripts" in said


def test_a_server_s_limit_on_values_is_named_with_both_figures(
    processes: Processes, tmp_path: Path
) -> None:
    large = {**CARTPOLE, "policy": "mlp", "hidden": "640,640", "noise_size": None}
    with serving(WHEEL, tmp_path / "server", "--proto-max-bulk-len", "1mb") as port:
        master = processes.master(*flags(large), url=f"redis://127.0.0.1:{port}")
        said = done(master, 3)
    assert "take 1.6 MB, but" in said or "take 3.2 MB, but" in said
    assert "at most 1.0 MB (proto-max-bulk-len)" in said


def test_a_worker_with_another_serializer_takes_few_seats_and_is_told_so(
    processes: Processes, valkey_url: str, redis_client: redis.Redis
) -> None:
    master = processes.master(*flags(CARTPOLE), "--run", "other", url=valkey_url)
    wait_for(lambda: redis_client.llen("rq:queue:default"), "a seat is open")
    processes.worker(valkey_url, "-S", "json")
    said = done(master, 3)
    assert "its serializer is not RQ's default: start it without -S" in said
    assert "install es-queue" not in said and "killed" not in said
    assert int(redis_client.get("es:other:seatno") or 0) < 20
