"""The address of --listen, the password's files, and what people on other hosts are told."""

from __future__ import annotations

from pathlib import Path

from master.services.tcp_access import (
    Address,
    read_password,
    remove_join_files,
    workers_password,
    write_join_files,
)


def test_the_password_is_made_once_and_its_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    assert read_password(tmp_path) is None
    write_join_files(tmp_path, Address("127.0.0.1", 7000))
    password = read_password(tmp_path)
    assert password is not None and len(password) >= 32
    assert (
        tmp_path / "url"
    ).read_text() == f"redis://worker:{workers_password(password)}@127.0.0.1:7000\n"
    (tmp_path / "password").chmod(0o644)
    write_join_files(tmp_path, Address("::1", 7001))
    assert read_password(tmp_path) == password
    assert (
        tmp_path / "url"
    ).read_text() == f"redis://worker:{workers_password(password)}@[::1]:7001\n"
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ("password", "url", "listen"), 0o600
    )
    remove_join_files(tmp_path)
    assert not (tmp_path / "url").exists() and read_password(tmp_path) is None
    write_join_files(tmp_path, Address("127.0.0.1", 7000))
    assert read_password(tmp_path) == password
