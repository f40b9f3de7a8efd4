"""No password in anything that is printed, logged, listed, stored or raised: looked for where it
would show, errors included.

What these tests leave on disk is looked through once more when the session ends
(``tests/conftest.py``).
"""

from __future__ import annotations

import hashlib
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from es_queue.credentials import PASSWORD_FILE
from es_queue.protocol.connection import client_from_url
from tests.abuse.servers import WHEEL, serving
from tests.faults import worlds
from tests.integration.processes import BIN, CARTPOLE, Processes, Seen, Started, flags, wait_for
from tests.leaks import MARK, leaks_in, simple_password

SECRET = simple_password("server")
ENDLESS = {**CARTPOLE, "generations": 100_000}


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """A server that wants the password, which it knows by its digest alone."""
    (tmp_path / "users.acl").write_text(
        f"user default on #{hashlib.sha256(SECRET.encode()).hexdigest()} ~* &* +@all\n"
    )
    with serving(
        WHEEL,
        tmp_path / "server",
        "--aclfile",
        tmp_path / "users.acl",
        "--appendonly",
        "yes",
        "--rdbcompression",
        "no",
    ) as found:
        yield found


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "master.password"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def url_of(port: int, password: str = SECRET) -> str:
    return f"redis://:{password}@127.0.0.1:{port}"


def silent(process: Started) -> str:
    """What a process said, in which there is no password."""
    text = process.said()
    assert MARK not in text, text
    return text


def shown_to_every_user(processes: Processes) -> list[str]:
    """Command lines, of the tests' processes alone, that hold the mark."""
    return [command for command in processes.living().values() if MARK in command]


def everything(client: Any) -> bytes:
    """All keys with all values, as bytes."""
    read: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": client.xrange,
    }
    found = b""
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        found += key + repr(read[kind](key)).encode() if kind in read else b""
        if kind == b"string":
            found += client.get(key) or b""
    return found


@pytest.mark.parametrize("way", ["url", "flag"])
def test_a_whole_run_shows_its_password_nowhere(
    way: str, port: int, secret_file: Path, processes: Processes
) -> None:
    bare = f"redis://127.0.0.1:{port}"
    words, environment = {
        "url": ((), {"RQ_REDIS_URL": url_of(port)}),
        "flag": (("--redis-url", bare, "--redis-password-file", secret_file), {}),
    }[way]
    master = processes.start(
        BIN / "es-master",
        *flags(ENDLESS),
        "--run",
        "shh",
        "--workers",
        1,
        "--json",
        *words,
        **environment,
    )
    with client_from_url(url_of(port)) as client:
        seen = Seen(client, "shh")
        wait_for(seen.has_reached(3), "generation 3")
        assert (
            len(processes.living()) >= 4 and shown_to_every_user(processes) == []
        )  # master, wrapper, worker, horse
        views = (
            ("shh",),
            ("shh", "--json"),
            ("shh", "--errors"),
            ("shh", "--keys"),
            ("--doctor", "--json"),
            ("shh", "--keys", seen.keys.config),
        )
        for status in [
            processes.start(BIN / "es-status", *command, *words, **environment)
            for command in (views if way == "flag" else views[:1])
        ]:
            assert status.wait() == 0, silent(status)
            silent(status)
        asked = processes.start(BIN / "es-master", "--stop", "shh", *words, **environment)
        assert asked.wait() == 0, silent(asked)
        assert master.wait() == 130
        assert MARK.encode() not in everything(client)
    assert "started" in silent(master) and leaks_in(processes.folder) == []


def test_workers_that_crash_raise_or_time_out_leave_no_password_in_their_last_words(
    port: int, processes: Processes
) -> None:
    folder = processes.folder
    shutil.copy(worlds.__file__, folder / "worlds.py")
    allowed = {"PYTHONPATH": str(folder), "ES_QUEUE_ALLOW": "installed,worlds"}
    values = {**ENDLESS, "env": "worlds:Trapped-v0"}
    workers = [
        processes.start(*command, RQ_REDIS_URL=url_of(port), **allowed)
        for command in ((processes.rq, "worker"), (BIN / "es-worker", "--workers", 1))
    ]
    master = processes.start(
        BIN / "es-master",
        *flags(values),
        "--run",
        "shh",
        "--json",
        RQ_REDIS_URL=url_of(port),
        **allowed,
    )
    with client_from_url(url_of(port)) as client:
        seen = Seen(client, "shh")
        wait_for(lambda: len(seen.workers()) == 2, "both workers join")
        for number, name in enumerate(("raise", "abort"), 1):
            (folder / f"trap-{name}").touch()
            wait_for(
                lambda number=number: client.llen(seen.keys.errors) >= number,
                f"the workers tell of {name}",
            )  # type: ignore[misc]
        assert MARK.encode() not in everything(client)
        client.execute_command(
            "ACL", "SETUSER", "default", "resetpass", f">{simple_password('changed')}"
        )
        client.execute_command(
            "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
        )  # whoever comes back is refused
        assert master.wait() == 3
    assert "password" in silent(master).lower()
    for worker in workers:
        wait_for(
            lambda worker=worker: (
                worker.process.poll() is not None
                or "assword" in worker.said()
                or "auth" in worker.said().lower()
            ),
            "it notices",
        )  # type: ignore[misc]
        worker.signal(signal.SIGKILL)
        silent(worker)
    assert leaks_in(folder) == []


COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("es-master", *flags(CARTPOLE), "--run", "shh"),
    "resume": ("es-master", "--resume", "shh"),
    "status": ("es-status",),
    "doctor": ("es-status", "--doctor"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_password_that_is_wrong_or_cannot_be_used_is_in_no_complaint(
    command: str, port: int, processes: Processes
) -> None:
    wrong = simple_password("wrong")
    torn = [url_of(port, f"{wrong}{sign}x") for sign in "/?#"]
    urls = [
        url_of(port, wrong),
        f"redis://ann:{wrong}@127.0.0.1:{port}",
        f"redis://127.0.0.1:{port}?password={wrong}",
        url_of(1, wrong),
        f"rediss://:{wrong}@127.0.0.1:{port}?ssl_ca_certs=/none",
        *torn,
    ]
    program, *words = COMMANDS[command]
    some = urls if command in ("train", "status", "doctor") else urls[:1]
    for process in [processes.start(BIN / program, *words, RQ_REDIS_URL=url) for url in some]:
        assert process.wait() in (2, 3, 4, 6), silent(
            process
        )  # 4: they start at once in one folder
        assert silent(process).strip() and "Traceback" not in process.said()


def test_a_password_on_the_command_line_is_used_and_warned_of_once(
    port: int, processes: Processes
) -> None:
    for program, code in (("es-status", 0), ("es-master", 6)):
        process = processes.start(
            BIN / program,
            "--redis-url",
            url_of(port),
            *(("--pause", "nothing") if program == "es-master" else ()),
        )
        assert process.wait() == code, process.said()
        assert silent(process).count("every user of this host can read the password") == 1


def test_what_a_child_is_given_it_finds_in_its_environment_once(
    port: int, secret_file: Path, processes: Processes
) -> None:
    """Each process of a run has the password in one place, where its owner alone can read it."""
    bare = f"redis://127.0.0.1:{port}"
    master = processes.start(
        BIN / "es-master",
        *flags(ENDLESS),
        "--run",
        "shh",
        "--workers",
        1,
        RQ_REDIS_URL=bare,
        **{PASSWORD_FILE: str(secret_file)},
    )
    with client_from_url(url_of(port)) as client:
        wait_for(Seen(client, "shh").has_reached(1), "generation 1")
    for pid in set(processes.living()) - {master.pid}:
        held = [
            line
            for line in (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
            if MARK.encode() in line or line.startswith(b"ES_QUEUE_REDIS_PASSWORD")
        ]
        assert held == [f"RQ_REDIS_URL={url_of(port)}".encode()], held
        assert (Path("/proc") / str(pid) / "environ").stat().st_mode & 0o077 == 0
