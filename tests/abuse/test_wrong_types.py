"""A whole run beside somebody with a worker's rights who writes what no worker writes: the run ends
as it would have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol.connection import client_from_url
from es_queue.security import acl
from tests.abuse.servers import WHEEL, serving
from tests.integration.processes import (
    BIN,
    CARTPOLE,
    Processes,
    Seen,
    flags,
    quiet_digest,
    wait_for,
)

VALUES = {**CARTPOLE, "generations": 40}
LONG = "z" * 100_000


def two_names(client: Any, seen: Seen) -> None:
    """Keys that are one thing by one pattern of the rights, and another by another."""
    prefix = seen.keys.prefix
    client.lpush(f"{prefix}worker:a:todo", "x")
    client.sadd(f"{prefix}claims:a:workers", "x")
    client.sadd(seen.keys.workers, "a:todo", "a:workers")


def a_spoilt_stream(client: Any, seen: Seen) -> None:
    def spoilt() -> object:
        stream = seen.keys.results(seen.progress().get("publication", ""))
        return client.execute_command(
            "XADD", stream, "NOMKSTREAM", "18446744073709551615-18446744073709551615", "answer", "x"
        )

    wait_for(spoilt, "the stream takes no more answers")


def long_entries(client: Any, seen: Seen) -> None:
    holder = next(iter(seen.workers()))
    for _ in range(30):
        client.lpush(seen.keys.claims(holder), *[LONG] * 10)
        client.lpush(seen.keys.todo, LONG)


def large_workers(client: Any, seen: Seen) -> None:
    for number in range(300):
        name = f"vm-{number}-aaaaaa"
        client.hset(seen.keys.worker(name), "x", LONG)
        client.sadd(seen.keys.workers, name)


def no_workers(client: Any, seen: Seen) -> None:
    client.expire(seen.keys.workers, 0)


def endless_range(client: Any, seen: Seen) -> None:
    client.lpush(
        seen.keys.todo, f"{seen.progress()['publication']} train 9007199254740992 9007199254744000"
    )


def far_seats(client: Any, seen: Seen) -> None:
    client.incrby(seen.keys.seatno, 2**62)


ATTACKS: list[Callable[[Any, Seen], None]] = [
    two_names,
    a_spoilt_stream,
    long_entries,
    large_workers,
    no_workers,
    endless_range,
    far_seats,
]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    acl.write_acl_files(tmp_path / "keys")
    rules = tmp_path / "keys" / acl.ACL_FILE
    with serving(WHEEL, tmp_path / "server", "--aclfile", rules) as found:
        yield found


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_run_goes_on_beside_somebody_who_writes_all_that_a_worker_may(
    attack: Callable[[Any, Seen], None], port: int, tmp_path: Path, processes: Processes
) -> None:
    def url(user: str) -> str:
        password = (tmp_path / "keys" / f"{user}.password").read_text().strip()
        return f"redis://{user}:{password}@127.0.0.1:{port}"

    master = processes.start(
        BIN / "es-master", *flags(VALUES), "--run", "hurt", "--json", RQ_REDIS_URL=url("master")
    )
    worker = processes.start(processes.rq, "worker", RQ_REDIS_URL=url("worker"))
    with client_from_url(url("viewer")) as viewer, client_from_url(url("worker")) as attacker:
        seen = Seen(viewer, "hurt")
        seen.joined(worker)
        wait_for(seen.has_reached(2), "generation 2")
        attack(attacker, seen)
        assert seen.generation() < VALUES["generations"], "the attack came in time"
        assert master.wait() == 0, master.said()
    assert master.events("summary")[-1]["digest"] == quiet_digest(VALUES)
