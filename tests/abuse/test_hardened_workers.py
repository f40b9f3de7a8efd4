"""An attacker with a worker's rights, against real workers: plain ones run what is planted,
hardened ones do not.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import redis
from rq.registry import StartedJobRegistry

from tests.abuse.planted import AFTER, HARM, RUN, SEAT, Attack, Attacker
from tests.abuse.servers import HARDENED
from tests.integration.processes import (
    BIN,
    CARTPOLE,
    Master,
    Processes,
    Seen,
    Started,
    flags,
    wait_for,
)

ENDLESS = {**CARTPOLE, "generations": 100_000}
MEMORY_KB = 64 * 1024
#: What a worker takes that nobody attacked.
quiet_kb: Callable[[], list[int]] = cache(list)
#: A process's peak survives its replacement by another program: this small one stands between the
#: tests' and the worker's.
MEASURED = """
import resource, signal, subprocess, sys

worker = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
code = worker.wait()
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, flush=True)
sys.exit(code)
"""


def named(attack: Attack) -> str:
    return attack.__name__


@pytest.fixture
def attacker(redis_client: redis.Redis, processes: Processes) -> Attacker:
    return Attacker(redis_client, processes.folder)


def hardened(processes: Processes, url: str, name: str = "hard") -> Started:
    return processes.worker(url, "--name", name, **HARDENED)


def measured(processes: Processes, url: str, name: str) -> Started:
    return processes.start(
        sys.executable,
        "-c",
        MEASURED,
        processes.rq,
        "worker",
        "--url",
        url,
        "--name",
        name,
        **HARDENED,
    )


def takes_a_seat(attacker: Attacker, worker: Started) -> None:
    """The worker has dealt with what stood in the queue, and serves."""
    attacker.enqueue(AFTER, data=attacker.data("workers.seat.take"))
    wait_for(
        lambda: "es-queue after: left" in worker.said() or worker.process.poll() is not None,
        "a seat is taken",
        60,
    )
    assert worker.process.poll() is None, worker.said()[-2000:]


def peak_kb(worker: Started) -> int:
    """End a measured worker; the most memory that it or one of its horses has had, in KiB."""
    worker.signal(signal.SIGTERM)
    assert worker.wait(20) == 0, worker.said()[-2000:]
    return int(worker.out.read_text().rsplit("peak ", 1)[1])


def usual_kb(processes: Processes, url: str, attacker: Attacker) -> int:
    """The same of a worker that nobody attacks."""
    if not quiet_kb():
        worker = measured(processes, url, "quiet")
        takes_a_seat(attacker, worker)
        quiet_kb().append(peak_kb(worker))
    return quiet_kb()[0]


@pytest.mark.parametrize("attack", RUN, ids=named)
def test_a_plain_worker_runs_what_is_planted(
    attack: Attack, valkey_url: str, attacker: Attacker, processes: Processes
) -> None:
    """The danger, so that the next test is known to refuse something."""
    attack(attacker)
    processes.worker(valkey_url)
    wait_for(attacker.marker.exists, "the planted code has run")


@pytest.mark.parametrize("attack", (*RUN, *HARM), ids=named)
def test_a_hardened_worker_runs_seats_alone(
    attack: Attack, valkey_url: str, attacker: Attacker, processes: Processes
) -> None:
    usual = usual_kb(processes, valkey_url, attacker)
    attack(attacker)
    worker = measured(processes, valkey_url, "hard")
    takes_a_seat(attacker, worker)
    assert attacker.client.llen("rq:queue:default") == 0
    assert peak_kb(worker) - usual < MEMORY_KB
    assert not attacker.marker.exists()


def test_what_is_no_seat_is_counted_and_found_among_the_failed(
    valkey_url: str, attacker: Attacker, processes: Processes
) -> None:
    data = attacker.data("spy.touch")
    attacker.enqueue("some-job", data=data)
    worker = hardened(processes, valkey_url)
    takes_a_seat(attacker, worker)
    assert attacker.client.zrange("rq:failed:default", 0, -1) == [b"some-job"]
    assert attacker.client.hmget("rq:job:some-job", "status", "data") == [b"failed", data]
    assert attacker.client.hget("rq:worker:hard", "refused") == b"1"
    assert "refused a job that is not a seat: b'some-job'" in worker.said()
    assert attacker.client.llen("rq:queue:default:intermediate") == 0


def test_no_webhook_is_called(valkey_url: str, attacker: Attacker, processes: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        hook = {
            "url": f"http://127.0.0.1:{server.getsockname()[1]}/",
            "job_status": "finished",
            "method": "GET",
            "headers": None,
            "timeout": 1,
        }
        attacker.enqueue(webhooks=json.dumps([hook]))
        takes_a_seat(attacker, hardened(processes, valkey_url))
        with pytest.raises(BlockingIOError):
            server.accept()


def test_nothing_is_repeated_tried_again_or_enqueued(
    valkey_url: str, attacker: Attacker, processes: Processes
) -> None:
    for attack in (one for one in (*RUN, *HARM) if one.__name__ in ("tricks", "dependent")):
        attack(attacker)
    takes_a_seat(attacker, hardened(processes, valkey_url))
    assert [attacker.client.zcard(f"rq:{name}:default") for name in ("scheduled", "deferred")] == [
        0,
        0,
    ]
    assert attacker.client.llen("rq:queue:default") == 0 and not attacker.client.exists(
        f"rq:job:{SEAT}"
    )


def test_commands_of_strangers_are_not_heard(
    valkey_url: str,
    redis_client: redis.Redis,
    attacker: Attacker,
    start_master: Callable[..., Master],
    processes: Processes,
) -> None:
    start_master("commanded", ENDLESS)
    worker = hardened(processes, valkey_url)
    seen = Seen(redis_client, "commanded")
    horse = seen.horse(seen.joined(worker))
    (job,) = StartedJobRegistry("default", connection=redis_client).get_job_ids(cleanup=False)
    for command in ("shutdown", "kill-horse", "stop-job", "stop-execution"):
        payload = json.dumps({"command": command, "job_id": job})
        assert redis_client.publish("rq:pubsub:hard", payload) == 0
    wait_for(seen.has_reached(seen.generation() + 2), "learning goes on")
    assert worker.process.poll() is None and Path(f"/proc/{horse}").exists()


def test_a_workers_own_keys_of_the_wrong_type_neither_end_it_nor_keep_it(
    valkey_url: str, redis_client: redis.Redis, attacker: Attacker, processes: Processes
) -> None:
    worker = hardened(processes, valkey_url)
    wait_for(lambda: redis_client.hget("rq:worker:hard", "state") == b"idle", "it waits")
    redis_client.delete("rq:worker:hard")
    redis_client.set("rq:worker:hard", "text")
    redis_client.set("rq:wip:default", "text")
    attacker.enqueue(SEAT)
    wait_for(lambda: "Redis refused" in worker.said(), "it complains")
    redis_client.delete("rq:wip:default")
    takes_a_seat(attacker, worker)


def test_planted_jobs_stay_dead_on_the_hardened_of_two_workers(
    valkey_url: str, attacker: Attacker, processes: Processes
) -> None:
    """The plain one is suspended by a stop: which of the two takes what is then certain."""
    plain, hard = processes.worker(valkey_url, "--name", "plain"), hardened(processes, valkey_url)
    wait_for(lambda: attacker.client.scard("rq:workers:default") == 2, "both are enrolled")
    wait_for(
        lambda: (
            {attacker.client.hget(f"rq:worker:{name}", "state") for name in ("plain", "hard")}
            == {b"idle"}
        ),
        "both wait",
    )
    plain.signal(signal.SIGTERM)
    assert plain.wait(20) == 0
    for attack in RUN:
        attack(attacker)
    takes_a_seat(attacker, hard)
    assert not attacker.marker.exists()


def test_masters_and_those_who_look_unpickle_nothing(
    valkey_url: str, attacker: Attacker, processes: Processes
) -> None:
    """Pickles in the data, meta and result of a job that stands in every registry, in the run's own
    seats, too.
    """
    poison = attacker.pickled()
    for number, place in enumerate(
        ("wip", "failed", "finished", "deferred", "scheduled", "canceled")
    ):
        name = f"es-looked-abcdef-{900 + number}"
        attacker.write(
            name, data=poison, meta=poison, result=poison, failure_callback_name="spy.touch"
        )
        attacker.client.zadd(f"rq:{place}:default", {name: 1, f"{name}:0123": 1})
    attacker.enqueue("es-looked-abcdef-999", data=poison, meta=poison, result=poison)
    attacker.client.rpush("rq:queue:default:intermediate", "es-looked-abcdef-999")
    master = processes.master(*flags(CARTPOLE), "--run", "looked", "--workers", 1, url=valkey_url)
    wait_for(
        lambda: Seen(attacker.client, "looked").workers() or master.process.poll() is not None,
        "the master has a worker",
    )
    for command in (("looked",), ("--doctor", "looked"), ("looked", "--keys"), ()):
        looked = processes.start(BIN / "es-status", *command, "--redis-url", valkey_url)
        looked.wait()
        assert "Traceback" not in looked.said(), looked.said()[-2000:]
    assert master.wait() == 0, master.said()[-2000:]
    assert not attacker.marker.exists()
