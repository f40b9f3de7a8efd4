"""What is warned of before a run begins: who else reaches its Redis, and who reads on the way to
it.
"""

from __future__ import annotations

from typing import Any

import pytest

from es_queue.protocol import connection
from master.services import redis_url
from master.services.redis_url import NetworkExposure, network_warnings, read_exposure
from tests.cases import each_case

OPEN = {"protected-mode": "no", "bind": "* -::*"}
LISTENS = {"listener0": {"name": "tcp", "bind": "-::*", "port": 6379}}
NO_PASSWORD, MAYBE, PLAIN, UNVERIFIED = (
    "requires NO PASSWORD",
    "is not known",
    "in plain text",
    "not verified",
)


@each_case(
    ("about", "words"),
    [
        ({"on_socket": True, "local": True, "strangers": None}, []),
        ({"strangers": False}, []),
        ({"strangers": None}, []),
        ({"strangers": True}, [NO_PASSWORD]),
        ({"strangers": True, "secret": True}, [NO_PASSWORD, PLAIN]),
        ({"strangers": True, "encrypted": True}, [NO_PASSWORD]),
        ({"strangers": True, "local": True}, []),
        ({"strangers": True, "local": True, "settings": OPEN}, [NO_PASSWORD]),
        ({"strangers": False, "local": True, "settings": OPEN}, []),
        (
            {
                "strangers": True,
                "local": True,
                "settings": {**OPEN, "protected-mode": "yes"},
                "information": LISTENS,
            },
            [],
        ),
        ({"strangers": True, "local": True, "settings": {**OPEN, "bind": "127.0.0.1 -::1"}}, []),
        (
            {"strangers": True, "local": True, "settings": {**OPEN, "bind": "127.0.0.1 10.0.0.5"}},
            [NO_PASSWORD],
        ),
        ({"strangers": True, "local": True, "information": LISTENS}, [MAYBE]),
        (
            {
                "strangers": True,
                "local": True,
                "information": {"listener0": {"name": "tcp", "bind": "-::1"}},
            },
            [],
        ),
        (
            {
                "strangers": True,
                "local": True,
                "information": {
                    "listener0": {"name": "unix", "bind": "/tmp/x"},
                    "listener1": "odd",
                },
            },
            [],
        ),
        ({"strangers": False, "secret": True}, [PLAIN]),
        ({"strangers": False, "secret": True, "local": True}, []),
        ({"strangers": False, "secret": True, "encrypted": True}, []),
        ({"strangers": False, "secret": True, "encrypted": True, "verified": False}, [UNVERIFIED]),
    ],
)
def test_what_is_unsafe_is_said_and_nothing_else(about: dict[str, Any], words: list[str]) -> None:
    found = network_warnings(NetworkExposure("redis://host", **about))
    assert len(found) == len(words) and all(
        word in text for word, text in zip(words, found, strict=True)
    )
    assert all("--insecure hides this warning" in text and "redis://host" in text for text in found)


@each_case(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("no-such-host.invalid", False),
        ("192.0.2.1", False),
    ],
)
def test_an_address_of_this_machine_alone_is_told_from_others(host: str, local: bool) -> None:
    assert connection.is_loopback(host) is local


def test_a_server_that_answers_nobody_and_refuses_config_is_looked_at_without_an_error(
    valkey_url: str,
) -> None:
    client = connection.client_from_url("redis://127.0.0.1:1")
    assert read_exposure(client, "x") == NetworkExposure("x", False, True, None)
    client = connection.client_from_url(valkey_url)
    assert read_exposure(client, "x") == NetworkExposure("x", True, True)


def test_strangers_show_neither_password_nor_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(
        connection.redis.Redis,
        "ping",
        lambda self: seen.append(dict(self.connection_pool.connection_kwargs)) or True,
    )
    client = connection.client_from_url("rediss://ann:word@127.0.0.1:1")
    client.connection_pool.connection_kwargs.update(
        ssl_certfile="c", ssl_keyfile="k", ssl_password="w"
    )
    assert connection.is_open_to_anonymous(client) is True
    assert (
        not {"username", "password", "ssl_certfile", "ssl_keyfile", "ssl_password"} & set(seen[0])
        and seen[0]["port"] == 1
    )


def test_once_is_enough_where_both_streams_go_to_one_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for out, err, once in ((True, True, True), (True, False, False), (False, True, False)):
        monkeypatch.setattr("sys.stdout.isatty", lambda out=out: out)
        monkeypatch.setattr("sys.stderr.isatty", lambda err=err: err)
        assert redis_url.is_same_terminal() is once
