"""The address of --listen, the password's files, and what people on other hosts are told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from es_queue.errors import RedisError, UsageError
from es_queue.protocol.connection import client_from_url, has_secret, redacted_url
from master.services.private_server import PrivateServer, quote_setting
from master.services.tcp_access import (
    ALL_ADDRESSES,
    Address,
    find_bindable_port,
    join_instructions,
    parse_address,
    reachable_address,
    read_password,
    remove_join_files,
    resolve_listen_address,
    write_join_files,
    write_private,
)
from tests.cases import each_case

GOOD = {
    "": Address("", 0),
    ":7000": Address("", 7000),
    "host": Address("host", 0),
    "host:1": Address("host", 1),
    "10.0.0.1:65535": Address("10.0.0.1", 65535),
    "[::1]": Address("::1", 0),
    "[fe80::1]:7000": Address("fe80::1", 7000),
    "my-host.example": Address("my-host.example", 0),
}
BAD = [
    "7000",
    "host:",
    ":0",
    ":65536",
    "host:x",
    "::1",
    "::1:7000",
    "[::1",
    "[host]:1",
    "[1.2.3.4]",
    "[::::]",
    "redis://host:1",
    "a b",
    "host:1:2",
    "user@host",
    "host/0",
    ":-1",
    " ",
    "é",
]


@each_case("text", GOOD)
def test_an_address_is_read(text: str) -> None:
    assert parse_address(text) == GOOD[text]


@each_case("text", BAD)
def test_what_is_no_address_is_named_with_the_fix(text: str) -> None:
    with pytest.raises(UsageError, match=r"listen is '.*': use HOST:PORT, HOST or :PORT"):
        parse_address(text)


def test_a_long_value_is_cut() -> None:
    with pytest.raises(UsageError) as refused:
        parse_address("x " * 1000)
    assert len(str(refused.value)) < 300


def test_an_address_is_written_so_that_it_can_be_read() -> None:
    for address in (Address("::1", 7000), Address("host", 1)):
        assert parse_address(str(address)) == address


def test_what_is_left_open_is_as_it_was_last_time(tmp_path: Path) -> None:
    first = resolve_listen_address("127.0.0.1", tmp_path)
    assert first.host == "127.0.0.1" and 0 < first.port < 65536
    write_join_files(tmp_path, first)
    assert (
        resolve_listen_address("", tmp_path)
        == resolve_listen_address("127.0.0.1", tmp_path)
        == first
    )
    assert resolve_listen_address("127.0.0.2", tmp_path) == Address("127.0.0.2", first.port)
    assert resolve_listen_address(":9", tmp_path) == Address(ALL_ADDRESSES, 9)


@each_case("former", ["", "nonsense", "host:99999", "\0" * 1000])
def test_the_first_time_it_is_every_address_and_a_free_port(tmp_path: Path, former: str) -> None:
    (tmp_path / "listen").write_text(former)
    address = resolve_listen_address("", tmp_path)
    assert address.host == ALL_ADDRESSES and address.port > 1023


def test_a_port_that_is_taken_and_a_host_of_somebody_else_are_said_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            RedisError, match=f"port {port} of 127.0.0.1 is in use by another program"
        ):
            find_bindable_port(Address("127.0.0.1", port))
    assert find_bindable_port(Address("127.0.0.1", port)) == port
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(RedisError, match=f"--listen cannot use {host}"):
            find_bindable_port(Address(host, 0))


def test_the_password_is_made_once_and_its_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    assert read_password(tmp_path) is None
    write_join_files(tmp_path, Address("127.0.0.1", 7000))
    password = read_password(tmp_path)
    assert password is not None and len(password) >= 32
    assert (tmp_path / "url").read_text() == f"redis://:{password}@127.0.0.1:7000\n"
    (tmp_path / "password").chmod(0o644)
    write_join_files(tmp_path, Address("::1", 7001))
    assert read_password(tmp_path) == password
    assert (tmp_path / "url").read_text() == f"redis://:{password}@[::1]:7001\n"
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ("password", "url", "listen"), 0o600
    )
    remove_join_files(tmp_path)
    assert not (tmp_path / "url").exists() and read_password(tmp_path) == password


def test_no_file_is_readable_for_others_even_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    replace = Path.replace

    def looked(self: Path, target: Path) -> Path:
        seen.append(self.stat().st_mode & 0o777)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", looked)
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o644)
    write_private(tmp_path / "file", "new")
    assert seen == [0o600] and (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    with pytest.raises(RedisError, match="cannot be written"):
        write_private(tmp_path / "no folder" / "file", "new")


@each_case(
    "content",
    [b"", b"short", b"has a space in it, which is long enough", b"\xff" * 40, b"x" * 1000],
)
def test_a_password_that_is_none_is_refused_without_being_shown(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "password").write_bytes(content)
    with pytest.raises(RedisError, match="remove it") as refused:
        read_password(tmp_path)
    assert not content or content[:5].decode("latin-1") not in str(refused.value)


def test_the_sockets_url_holds_the_password_and_its_name_does_not(tmp_path: Path) -> None:
    server = PrivateServer(tmp_path / "a b#1")
    assert not has_secret(server.url)
    server.folder.mkdir()
    write_join_files(server.folder, Address("127.0.0.1", 7000))
    password = read_password(server.folder)
    assert password is not None and password in server.url and has_secret(server.url)
    assert password not in redacted_url(server.url) and "redis.sock" in redacted_url(server.url)
    with client_from_url(server.url) as client:
        about = client.connection_pool.connection_kwargs
        assert (about["password"], about["path"]) == (password, str(server.socket_path))


def test_a_worker_elsewhere_is_told_how_to_join_without_the_password(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    assert join_instructions(folder, folder / "redis.sock", "default") == {}
    write_join_files(folder, Address("192.0.2.7", 7000))
    told = join_instructions(folder, folder / "redis.sock", "a queue")
    assert (
        told["join"] == f"""scp '192.0.2.7:{tmp_path}/it'"'"'s a folder/url' es-queue-url """
        """&& RQ_REDIS_URL="$(cat es-queue-url)" rq worker 'a queue'"""
    )
    assert "192.0.2.7:7000" in told["listens"] and "not encrypted" in told["listens"]
    write_join_files(folder, Address("127.0.0.1", 7000))
    assert (
        f"ssh -f -N -L 7000:127.0.0.1:7000 {socket.gethostname()} && RQ_REDIS_URL="
        in join_instructions(folder, folder / "redis.sock", "default")["join"]
    )
    remove_join_files(folder)
    assert (
        f"password')@{str(folder / 'redis.sock').replace(chr(39), '%27').replace(' ', '%20')}"
        in join_instructions(folder, folder / "redis.sock", "default")["join"].replace(
            "\"'\"'", "'"
        )
    )
    assert all(str(read_password(folder)) not in text for text in told.values())


def test_other_machines_are_told_an_address_of_this_one() -> None:
    assert reachable_address("192.0.2.7") == "192.0.2.7"
    assert reachable_address(ALL_ADDRESSES) not in ("", ALL_ADDRESSES, "::")


def test_any_value_can_stand_in_the_servers_settings() -> None:
    assert quote_setting('a "b" \\ c\n') == '"a \\"b\\" \\\\ c\\n"'
