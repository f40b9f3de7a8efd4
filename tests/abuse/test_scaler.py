"""The autoscaler's user counts the seats that wait, by a script as KEDA sends it, and can do
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from es_queue import acl
from tests.abuse.servers import BOTH, serving, told
from tests.leaks import simple_password

PASSWORDS = {user: simple_password(user) for user in (*acl.USERS, acl.SCALER)}
COUNT = (
    "if redis.call('type', KEYS[1]).ok == 'list' then return redis.call('llen', KEYS[1]) end "
    "return 0"
)


@pytest.fixture(scope="module", params=BOTH)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("scaler")
    (folder / "users.acl").write_text(acl.format_acl(PASSWORDS))
    with serving(request.param, folder, "--aclfile", folder / "users.acl") as port:
        told(port, acl.MASTER, PASSWORDS[acl.MASTER], "RPUSH", "rq:queue:default", "a-seat")
        yield port


def asked(port: int, *words: str | int, user: str = acl.SCALER) -> object:
    return told(port, user, PASSWORDS[user], *words)


def test_it_counts_the_seats_that_wait(guarded: int) -> None:
    assert asked(guarded, "EVAL", COUNT, 1, "rq:queue:default") == 1
    assert asked(guarded, "PING") == b"PONG"


@pytest.mark.parametrize(
    "words",
    [
        ("EVAL", "return redis.call('del', KEYS[1])", 1, "rq:queue:default"),
        ("EVAL", "return redis.call('lrange', KEYS[1], 0, -1)", 1, "rq:queue:default"),
        ("EVAL", COUNT, 1, "es:walk:todo"),
        ("EVAL", COUNT, 1, "rq:queue:other"),
        ("GET", "es:walk:config"),
    ],
)
def test_it_can_do_nothing_else(guarded: int, words: tuple[str | int, ...]) -> None:
    reply = asked(guarded, *words)
    # What a script may not do is an error of the script.
    scripted = words[0] == "EVAL" and words[1] != COUNT
    assert isinstance(
        reply, redis.exceptions.ResponseError if scripted else redis.exceptions.NoPermissionError
    ), reply
    assert asked(guarded, "EVAL", COUNT, 1, "rq:queue:default") == 1


def test_the_command_adds_it_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        acl.main([str(tmp_path / "with"), "--scaler"]) == 0
        and acl.main([str(tmp_path / "without")]) == 0
    )
    assert (
        "user scaler reset on #" in (tmp_path / "with" / "users.acl").read_text()
        and (tmp_path / "with" / "scaler.password").is_file()
    )
    assert (
        "scaler" not in (tmp_path / "without" / "users.acl").read_text()
        and not (tmp_path / "without" / "scaler.password").exists()
    )
    assert (
        acl.main([str(tmp_path / "other"), "--scalar"]) == 2
        and "--scaler" in capsys.readouterr().err
    )
