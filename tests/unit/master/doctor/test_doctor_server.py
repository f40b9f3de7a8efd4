"""The doctor's checks of Redis and of a user's rights: pure functions of what was told."""

from __future__ import annotations

import re
from typing import Any

from es_queue.protocol.connection import _unfit_reasons
from master.doctor import rights as doctor_rights
from master.doctor.finding import FAILED, OK, WARNING, Finding
from master.doctor.server import ServerState, check_server
from tests.cases import each_case

SOUND: dict[str, Any] = {
    "redis_version": "7.0.15",
    "maxmemory": 10**9,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "used_memory": 2 * 10**6,
    "total_system_memory": 10**10,
    "role": "master",
    "cluster_enabled": 0,
    "connected_clients": 5,
    "maxclients": 10_000,
}
MB = 2**20


def server(information: dict[str, Any] | None = None, **more: Any) -> dict[str, Finding]:
    given = {"ping": 0.001, "strangers": False, "ahead": 0.0, "encrypted": True, **more}
    found = check_server(
        ServerState("redis://host", information={**SOUND, **(information or {})}, **given)
    )
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


def test_a_sound_server_has_nothing_to_mend() -> None:
    found = server()
    assert {one.state for one in found.values()} == {OK} and not any(
        one.fix for one in found.values()
    )
    assert "1.0 ms" in found["redis"].text and next(iter(found)) == "redis"


@each_case(
    ("told", "name", "state", "word"),
    [
        ({"redis_version": "6.0.9"}, "version", FAILED, "6.0.9"),
        ({"redis_version": "6.2.1"}, "version", OK, "need 7"),
        ({"redis_version": "\x1b[2Jx"}, "version", FAILED, "\\x1b"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "version", OK, "Valkey 9.1.2"),
        (
            {"maxmemory": 10**9, "maxmemory_policy": "allkeys-lru"},
            "eviction",
            FAILED,
            "allkeys-lru",
        ),
        (
            {"maxmemory": 0, "maxmemory_policy": "allkeys-lru"},
            "eviction",
            WARNING,
            "no memory limit",
        ),
        ({"maxmemory": 10**9}, "eviction", OK, "1.0 GB"),
        ({"cluster_enabled": 1}, "role", FAILED, "cluster"),
        ({"role": "slave"}, "role", FAILED, "replica"),
        ({"role": "slave", "slave_read_only": 0}, "role", OK, "single server"),
        ({"aof_enabled": 0}, "persistence", WARNING, "resumes from its checkpoint"),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, "persistence", FAILED, "append-only"),
        ({"aof_enabled": 0, "rdb_last_bgsave_status": "err"}, "persistence", FAILED, "snapshot"),
        ({"loading": 1}, "persistence", WARNING, "loading"),
        ({"maxmemory": 1000 * MB, "used_memory": 930 * MB}, "memory", WARNING, "left of its limit"),
        ({"maxmemory": 100 * MB, "used_memory": 50 * MB}, "memory", WARNING, "52 MB left"),
        (
            {"maxmemory": 1000 * MB, "used_memory": 800 * MB, "mem_fragmentation_ratio": 1.44},
            "memory",
            OK,
            "fragmentation 1.4",
        ),
        ({"maxmemory": 0, "used_memory": 95 * 10**8}, "memory", WARNING, "the machine has 10.0 GB"),
        ({"connected_clients": 9_950}, "connections", WARNING, "about 8 more"),
    ],
)
def test_what_is_not_well_is_told_with_its_figures_and_a_fix(
    told: dict[str, Any], name: str, state: str, word: str
) -> None:
    one = server(told)[name]
    assert (one.state, word in one.text) == (state, True), one
    assert bool(one.fix) == (state != OK)
    others = {
        other.name: other.state
        for other in server(told).values()
        if other.name not in (name, "eviction")
    }
    assert set(others.values()) == {OK}


@each_case(
    "told",
    [
        {"redis_version": "5.0.1"},
        {"maxmemory": 5 * 10**9, "maxmemory_policy": "volatile-ttl"},
        {"cluster_enabled": 1},
        {"role": "slave"},
    ],
)
def test_a_server_that_a_master_would_refuse_is_never_well(told: dict[str, Any]) -> None:
    assert _unfit_reasons({**SOUND, **told}) and any(
        one.state == FAILED for one in server(told).values()
    )


@each_case("value", ["", "nan", "x" * 500, "\x1b[2J", None, [], -5])
def test_odd_figures_of_a_server_neither_crash_nor_reach_the_terminal(value: Any) -> None:
    found = server(
        dict.fromkeys(
            [*SOUND, "valkey_version", "loading", "mem_fragmentation_ratio", "connected_slaves"],
            value,
        )
    )
    assert not any(re.search(r"[\x00-\x1f]", one.text) for one in found.values())


OPEN = {"protected-mode": "no", "bind": "* -::*"}
LISTENS = {"listener0": {"name": "tcp", "bind": "-::*", "port": 6379}}


@each_case(
    ("look", "state", "word"),
    [
        ({"on_socket": True, "strangers": True}, OK, "socket"),
        ({"strangers": False, "settings": OPEN}, OK, "refused"),
        ({"strangers": None, "settings": OPEN}, OK, "unknown whether it requires a password"),
        ({"strangers": True}, WARNING, "without it"),
        ({"strangers": True, "on_loopback": True}, OK, "unknown whether"),
        ({"strangers": True, "on_loopback": True, "information": LISTENS}, WARNING, "may be"),
        ({"strangers": True, "on_loopback": True, "settings": OPEN}, WARNING, "without it"),
        (
            {"strangers": True, "on_loopback": True, "settings": {**OPEN, "protected-mode": "yes"}},
            OK,
            "only from this machine",
        ),
        (
            {
                "strangers": True,
                "on_loopback": True,
                "settings": {**OPEN, "bind": "127.0.0.1 -::1"},
            },
            OK,
            "only from this machine",
        ),
        (
            {"strangers": True, "on_loopback": True, "settings": {**OPEN, "bind": ""}},
            WARNING,
            "without it",
        ),
    ],
)
def test_an_open_server_is_warned_of_only_where_that_is_sure(
    look: dict[str, Any], state: str, word: str
) -> None:
    one = server(**look)["network"]
    assert (
        one.state == state
        and (word if word != "without it" else "use it without a password") in one.text
    )


# --- rights

MASTER, WORKER = (
    doctor_rights.master_commands("walker-1", "q"),
    doctor_rights.worker_commands("walker-1", "q"),
)
