"""An attacker with a worker's rights, against real workers: plain RQ workers run what is planted,
es-worker, masters and all that only looks do not.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import redis

from tests.abuse.planted import RUN, Attack, Attacker
from tests.integration.processes import (
    BIN,
    CARTPOLE,
    Master,
    Processes,
    Seen,
    flags,
    quiet_digest,
    wait_for,
)


@pytest.fixture
def attacker(redis_client: redis.Redis, processes: Processes) -> Attacker:
    return Attacker(redis_client, processes.folder)


@pytest.mark.parametrize("attack", RUN[:2], ids=lambda attack: attack.__name__)
def test_a_plain_worker_runs_what_is_planted(
    attack: Attack, valkey_url: str, attacker: Attacker, processes: Processes
) -> None:
    """The danger, so that the next test is known to refuse something."""
    attack(attacker)
    processes.worker(valkey_url)
    wait_for(attacker.marker.exists, "the planted code has run")


def test_es_worker_serves_a_run_and_nothing_else_whatever_is_planted(
    valkey_url: str,
    attacker: Attacker,
    processes: Processes,
    start_master: Callable[..., Master],
) -> None:
    for attack in RUN:
        attack(attacker)
    run = start_master("calm", CARTPOLE)
    worker = processes.es_worker(valkey_url)
    assert run.summary()["digest"] == quiet_digest(CARTPOLE)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
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
