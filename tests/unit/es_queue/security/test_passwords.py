"""Where the password of a Redis connection comes from, what goes before what, and that no sentence
ever holds it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from es_queue.credentials import (
    MAX_BYTES,
    PASSWORD,
    PASSWORD_FILE,
    password_of,
    with_password,
)
from es_queue.errors import RedisError, UsageError
from es_queue.protocol import connection
from es_queue.protocol.connection import client_from_url, has_secret, redacted_url
from tests.cases import each_case
from tests.leaks import MARK, password

HARD = password("unit")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{HARD}\n")
    path.chmod(0o600)
    return path


@each_case(
    "url",
    [
        "redis://h",
        "redis://h:7/2",
        "redis://ann@h",
        "redis://ann:@h",
        "rediss://[::1]:7?ssl_check_hostname=false",
        "unix:///tmp/a b.sock",
        "unix://ann@/tmp/x?db=2",
    ],
)
def test_any_password_reaches_the_client_from_the_environment_and_the_rest_of_the_url_stays(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, HARD)
    settings, plain = (values(client_from_url(one)) for one in (with_password(url), url))
    assert settings.pop("password") == HARD
    plain.pop("password", None)
    assert settings == plain
    assert (
        password_of(with_password(url)) == HARD
        and has_secret(with_password(url))
        and MARK not in redacted_url(with_password(url))
    )


def values(client: redis.Redis) -> dict[str, Any]:
    """The settings of a client's connections that are texts or numbers."""
    return {
        name: value
        for name, value in connection.settings_of(client).items()
        if value is None or isinstance(value, str | int | float)
    }


@each_case(
    "content",
    [
        b"",
        b"\n",
        b"two\nlines\n",
        b"\xff\xfe",
        b"nul\0",
        b"x" * (MAX_BYTES + 1),
        b"\n\n",
        b"tab\there",
    ],
)
def test_a_file_that_holds_no_password_is_named_and_not_shown(
    content: bytes, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_bytes(content)
    monkeypatch.setenv(PASSWORD_FILE, str(file))
    with pytest.raises(UsageError, match=f"{PASSWORD_FILE} names .*holds no password") as refused:
        with_password("redis://h")
    assert not content.strip() or content.strip()[:4].decode("latin-1") not in str(refused.value)


def test_what_is_no_file_is_refused_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, word in (
        ("pipe", "not a regular file"),
        ("", "not a regular file"),
        ("nothing", "cannot be read"),
        ("nul\0", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=word):
            with_password("redis://h", tmp_path / name)
    monkeypatch.setenv(PASSWORD_FILE, "/dev/zero")
    with pytest.raises(UsageError, match="not a regular file"):
        with_password("redis://h")


@each_case(
    ("mode", "warned"),
    [(0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o644, True)],
)
def test_a_file_that_others_may_read_is_warned_of(mode: int, warned: bool, file: Path) -> None:
    file.chmod(mode)
    heard: list[str] = []
    assert password_of(with_password("redis://h", file, heard.append)) == HARD
    file.chmod(0o600)
    assert bool(heard) == warned and all("chmod 600" in text and MARK not in text for text in heard)


def test_the_flag_goes_before_the_environment_and_two_that_differ_are_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, password("other"))
    assert password_of(with_password("redis://h", file)) == HARD
    monkeypatch.setenv(PASSWORD_FILE, str(file))
    with pytest.raises(UsageError, match="two different passwords") as refused:
        with_password("redis://h")
    monkeypatch.delenv(PASSWORD)
    own = f"redis://:{quote(HARD, safe='')}@h"
    assert with_password(own) == own
    for url in (
        f"redis://:{quote(password('third'), safe='')}@h",
        f"redis://h?password={quote(password('third'))}",
    ):
        for given in (None, file):
            with pytest.raises(UsageError, match="two different passwords") as different:
                with_password(url, given)
            assert MARK not in str(different.value) + str(refused.value)


# --- URLs that a password has torn


@each_case("sign", ["/", "?", "#", "@x/", "["])
@each_case("scheme", ["redis", "rediss", "unix"])
def test_a_url_that_its_password_tears_apart_is_refused_and_never_shown(
    scheme: str, sign: str
) -> None:
    if scheme == "unix" and "@" in sign:
        return  # the path of a socket may have it
    for secret in (f"{MARK}{sign}x", f"12{sign}{MARK}", f"x{sign}{MARK}"):
        url = f"{scheme}://ann:{secret}@host:6379/0"
        assert MARK not in redacted_url(url)
        for border in (with_password, client_from_url):
            with pytest.raises(RedisError, match="cannot be used") as refused:
                border(url)
            assert MARK not in str(refused.value)


@each_case(
    "setting",
    [
        *("decode_responses=True", "retry=3", "credential_provider=x"),
        *("socket_keepalive_options=x", "redis_connect_func=x", "event_dispatcher=x"),
    ],
)
def test_a_url_sets_nothing_that_is_an_object_or_es_queue_s_own(setting: str) -> None:
    with pytest.raises(RedisError, match=r"after its '\?' it can only set db, username"):
        client_from_url(f"redis://h:6379/0?{setting}")


# --- a password in the user's place


@each_case(
    "url",
    [
        f"redis://{MARK}@h",
        f"rediss://{MARK}:@h:7/2",
        f"unix://{MARK}@/tmp/x.sock?db=2",
        f"redis://{MARK}@h?password=",
    ],
)
def test_a_user_without_any_password_may_be_one_and_is_not_shown(url: str) -> None:
    assert MARK not in redacted_url(url) and "://***@" in redacted_url(url)
    assert (
        redacted_url(with_password("redis://ann@h:7")) == "redis://***@h:7"
        and redacted_url("redis://ann:x@h:7") == "redis://ann:***@h:7"
    )
    assert (
        redacted_url("redis://ann@h:7?password=x") == "redis://ann@h:7"
        and redacted_url("redis://:x@h") == "redis://:***@h"
    )
