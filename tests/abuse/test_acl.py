"""The users master, worker, viewer and scaler may do what they are for, nobody else anything."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from es_queue import acl
from tests.abuse.rights import CELLS, PAGE, may, written
from tests.abuse.servers import BOTH, serving, told
from tests.leaks import simple_password

# --- the users master, worker and viewer may do what they are for, cell by cell, and nobody else
# anything


HOUSE = Path(__file__).resolve().parents[2]
ADMIN = "admin"
USERS = (*acl.USERS, acl.SCALER)
PASSWORDS = {user: simple_password(user) for user in (*USERS, ADMIN)}


@pytest.fixture(scope="module", params=BOTH)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of a server with all users and an administrator."""
    folder = tmp_path_factory.mktemp("acl")
    rules = acl.format_acl({user: PASSWORDS[user] for user in USERS})
    digest = hashlib.sha256(PASSWORDS[ADMIN].encode()).hexdigest()
    (folder / "users.acl").write_text(f"{rules}user {ADMIN} on #{digest} ~* &* +@all\n")
    more = ("--enable-debug-command", "yes")
    with serving(request.param, folder, "--aclfile", folder / "users.acl", *more) as port:
        yield port


def refused(reply: object) -> bool:
    return isinstance(reply, redis.exceptions.NoPermissionError)


@pytest.mark.parametrize("user", acl.USERS)
def test_every_user_may_do_what_the_table_says_and_no_more(guarded: int, user: str) -> None:
    replies = {
        command: told(guarded, user, PASSWORDS[user], *command.split(" "))
        for _, command, _ in CELLS
    }
    assert [
        f"{command} -> {replies[command]}"
        for _, command, letters in CELLS
        if refused(replies[command]) == may(letters, user)
    ] == []
    assert [
        f"{command} -> {reply}"
        for command, reply in replies.items()
        if "wrong number" in str(reply) or "unknown" in str(reply)
    ] == []


def test_who_shows_no_password_or_a_wrong_one_may_do_nothing(guarded: int) -> None:
    for _, command, _ in CELLS:
        reply = told(guarded, "", "", *command.split(" "))
        assert isinstance(
            reply, redis.exceptions.AuthenticationError
        ) and "Authentication required" in str(reply), command
    for user, password in (
        ("master", "wrong"),
        ("default", PASSWORDS["master"]),
        ("worker", PASSWORDS["master"]),
        ("", PASSWORDS["master"]),
    ):
        reply = told(guarded, user, password, "PING")
        assert isinstance(reply, redis.exceptions.AuthenticationError), (user, reply)


def test_the_table_is_large_and_the_page_shows_it() -> None:
    assert len(CELLS) >= 45 and len({command for _, command, _ in CELLS}) == len(CELLS)
    assert PAGE.read_text("utf-8") == written(PAGE.read_text("utf-8")), (
        "write it again: python -m tests.abuse.rights"
    )


# --- the files


def test_the_template_is_what_the_code_says_and_lets_nobody_in() -> None:
    text = (HOUSE / "docker/users.acl").read_text("ascii")
    assert text == acl.format_acl({}), (
        "write it again: python -c 'from es_queue import acl; print(acl.format_acl({}), "
        'end="")\' > docker/users.acl'
    )
    assert (
        all(
            re.match(r"user (default|master|worker|viewer)( reset)? off", line)
            for line in text.splitlines()
        )
        and len(text.splitlines()) == 4
    )


def test_one_command_makes_users_with_fresh_passwords_that_are_their_owners_alone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "keys"
    done = subprocess.run(
        [sys.executable, "-m", "es_queue.acl", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=HOUSE,
    )
    files = {path.name: path for path in folder.iterdir()}
    passwords_of = {f"{user}.password" for user in acl.USERS}
    assert set(files) == {"users.acl", "web.token", *passwords_of}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {
        0o600
    } and folder.stat().st_mode & 0o777 == 0o700
    passwords = [files[f"{user}.password"].read_text().strip() for user in acl.USERS]
    assert len(set(passwords)) == 3 and min(map(len, passwords)) >= 40
    text = files["users.acl"].read_text()
    for user, password in zip(acl.USERS, passwords, strict=True):
        assert password not in text + done.stdout + done.stderr
        assert f"user {user} reset on #{hashlib.sha256(password.encode()).hexdigest()} " in text
    assert "user default off" in text.splitlines() and "--redis-password-file" in done.stdout
    with serving("valkey", tmp_path / "server", "--aclfile", files["users.acl"]) as port:
        assert [
            told(port, user, password, "PING")
            for user, password in zip(acl.USERS, passwords, strict=True)
        ] == [b"PONG"] * 3


def test_the_workers_of_a_named_queue_may_touch_no_other(tmp_path: Path) -> None:
    assert acl.main([str(tmp_path / "keys"), "--queue", "gpu"]) == 0
    password = (tmp_path / "keys" / "worker.password").read_text().strip()
    with serving("valkey", tmp_path, "--aclfile", tmp_path / "keys" / "users.acl") as port:
        assert told(port, "worker", password, "RPUSH", "rq:queue:gpu", "x") == 1
        for name in ("default", "gpu2", "g"):
            assert refused(told(port, "worker", password, "RPUSH", f"rq:queue:{name}", "x"))


# --- the autoscaler's user counts the seats that wait, by a script as KEDA sends it, and can do
# nothing else


COUNT = (
    "if redis.call('type', KEYS[1]).ok == 'list' then return redis.call('llen', KEYS[1]) end "
    "return 0"
)


def asked(port: int, *words: str | int) -> object:
    return told(port, ADMIN, PASSWORDS[ADMIN], *words)


def scaled(port: int, *words: str | int) -> object:
    return told(port, acl.SCALER, PASSWORDS[acl.SCALER], *words)


def test_the_scaler_counts_the_seats_that_wait(guarded: int) -> None:
    asked(guarded, "DEL", "rq:queue:default")
    asked(guarded, "RPUSH", "rq:queue:default", "a-seat")
    assert scaled(guarded, "EVAL", COUNT, 1, "rq:queue:default") == 1
    assert scaled(guarded, "PING") == b"PONG"


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
def test_the_scaler_can_do_nothing_else(guarded: int, words: tuple[str | int, ...]) -> None:
    reply = scaled(guarded, *words)
    # What a script may not do is an error of the script.
    scripted = words[0] == "EVAL" and words[1] != COUNT
    assert isinstance(
        reply, redis.exceptions.ResponseError if scripted else redis.exceptions.NoPermissionError
    ), reply


def test_the_command_adds_the_scaler_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
