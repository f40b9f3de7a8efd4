"""--listen: workers of other hosts come in by the printed command, nobody without the password,
which is seen nowhere.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.integration.processes import BIN, CARTPOLE, Processes, Seen, Started, flags, wait_for

ENDLESS = {**CARTPOLE, "generations": 100_000}
#: The files of a run's folder with a password, that of its owner or of workers; only their owner
#: can read them.
SECRET = {"password", "url", "redis.conf"}
OWNERS = ["redis/password", "redis/redis.conf"]


@dataclass
class Opened:
    """A run whose private server listens on this host's own address."""

    processes: Processes
    master: Started
    run_dir: Path

    @property
    def password(self) -> str:
        return (self.run_dir / "redis/password").read_text().strip()

    @property
    def owners(self) -> redis.Redis:
        return redis.Redis.from_url(f"unix://:{self.password}@{self.run_dir}/redis/redis.sock")

    @property
    def url(self) -> str:
        return (self.run_dir / "redis/url").read_text().strip()

    @property
    def about(self) -> dict[str, str]:
        return wait_for(lambda: self.master.events("started"), "the run starts")[-1]


def opened(processes: Processes, *words: object) -> Opened:
    one = Opened(
        processes,
        processes.master(*words, "--workers", 0, "--json"),
        processes.folder / "runs/open",
    )
    wait_for(lambda: one.master.events("started"), "the run starts")
    return one


@pytest.fixture
def run(processes: Processes) -> Iterator[Opened]:
    yield opened(processes, *flags(ENDLESS), "--run", "open", "--listen", "127.0.0.1")


def shims(folder: Path) -> Path:
    """``scp`` as a copy on this host and ``ssh`` as nothing, in place of another host; ``rq`` as
    people have it.
    """
    folder.mkdir()
    for name, text in {
        "scp": 'cp -p "${1#*:}" "$2"',
        "ssh": "exit 0",
        "rq": f'exec {BIN / "rq"} "$@"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def said_in_files(folder: Path, text: str) -> list[str]:
    """Names of the files under a folder that hold a text."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    )


def command_lines(text: str) -> list[str]:
    """What processes of this host show to every user, where it holds a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [line] if text in line else []
    return found


def test_a_worker_joins_by_exactly_the_printed_command_and_the_password_shows_nowhere(
    run: Opened,
) -> None:
    processes, elsewhere = run.processes, run.processes.folder / "elsewhere"
    elsewhere.mkdir()
    path = f"{shims(processes.folder / 'bin')}:{os.environ['PATH']}"
    worker = processes.start("bash", "-c", run.about["join"], cwd=elsewhere, PATH=path)
    with run.owners as client:
        wait_for(lambda: Seen(client, "open").workers(), "the worker joins")
        wait_for(Seen(client, "open").has_reached(2), "it serves")
        addresses = {one["addr"] for one in client.client_list() if "127.0.0.1" in one["addr"]}
        assert len(addresses) >= 2  # the worker's connections are not by the socket
    status = processes.start(BIN / "es-status", "open", "--run-dir", run.run_dir)
    assert status.wait() == 0, status.said()
    assert command_lines(run.password) == []
    assert said_in_files(run.run_dir, run.password) == OWNERS
    assert (elsewhere / "es-queue-url").stat().st_mode & 0o777 == 0o600
    assert {(run.run_dir / "redis" / name).stat().st_mode & 0o777 for name in SECRET} == {0o600}
    run.master.signal(signal.SIGINT)
    assert run.master.wait() == 130
    workers = run.url.partition("worker:")[2].partition("@")[0]
    assert said_in_files(run.run_dir, workers) == ["redis/url"]
    for process in (run.master, worker, status):
        assert run.password not in process.said() and workers not in process.said()
    assert said_in_files(run.run_dir, run.password) == OWNERS


def test_nobody_comes_in_without_the_password(run: Opened) -> None:
    port = int(run.url.rpartition(":")[2])
    for url in (f"redis://127.0.0.1:{port}", f"unix://{run.run_dir}/redis/redis.sock"):
        with (
            redis.Redis.from_url(url) as client,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            client.ping()
    for url in (f"redis://:wrong@127.0.0.1:{port}", f"redis://default:wrong@127.0.0.1:{port}"):
        with (
            redis.Redis.from_url(url) as client,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            client.ping()
    with redis.Redis.from_url(run.url) as client:
        assert client.ping()


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_resume_listens_where_the_run_did_before_and_without_the_flag_nowhere(run: Opened) -> None:
    url, port, password = run.url, int(run.url.rpartition(":")[2]), run.password
    run.processes.worker(url)
    with run.owners as client:
        wait_for(Seen(client, "open").has_reached(2), "generation 2")
    run.master.signal(signal.SIGINT)
    assert run.master.wait() == 130 and not listening(port)
    again = opened(run.processes, "--resume", "open", "--listen")
    assert again.url == url and listening(port)
    again.master.signal(signal.SIGINT)
    assert again.master.wait() == 130
    alone = opened(run.processes, "--resume", "open")
    assert not listening(port)
    assert not {"url", "password"} & {path.name for path in (run.run_dir / "redis").iterdir()}
    assert password not in alone.master.said()
    worker = run.processes.start("bash", "-c", alone.about["join"])
    with redis.Redis.from_url(f"unix://{run.run_dir}/redis/redis.sock") as client:
        wait_for(
            lambda: Seen(client, "open").seat_of(worker),
            "a worker of this host joins by the printed command",
        )


def test_without_the_flag_no_port_is_open_and_no_password_is_there(processes: Processes) -> None:
    run = opened(processes, *flags(ENDLESS), "--run", "open")
    with redis.Redis.from_url(f"unix://{run.run_dir}/redis/redis.sock") as client:
        assert client.config_get("port", "requirepass") == {"port": "0", "requirepass": ""}
    assert "listens" not in run.about and not (run.run_dir / "redis/password").exists()
