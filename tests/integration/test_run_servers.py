"""A run's folder is led by one master, whatever the server, and remembers that server."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.processes import (
    BIN,
    CARTPOLE,
    Processes,
    Seen,
    Started,
    flags,
    wait_for,
)

LONG: dict[str, Any] = {**CARTPOLE, "strategy": "openai_es", "generations": 1_000_000}
RUN = "remembered"


def done(started: Started, code: int) -> str:
    assert started.wait() == code, started.said()
    return started.said()


def status(processes: Processes, *words: object, code: int = 0, **environment: str) -> Any:
    """What es-status prints as JSON, without an address."""
    shown = processes.start(BIN / "es-status", *words, "--json", **environment)
    done(shown, code)
    return json.loads(shown.out.read_text())


def with_password(url: str) -> str:
    """The server accepts any password of its user default."""
    port = redis.Redis.from_url(url).config_get("port")["port"]
    if port == "0":
        return url.replace("unix://", "unix://default:open-sesame@")
    return f"redis://default:open-sesame@127.0.0.1:{port}"


def record(processes: Processes) -> Path:
    return processes.folder / "runs" / RUN / "master.json"


def change_record(processes: Processes, **changes: object) -> None:
    path = record(processes)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def live(processes: Processes, valkey_url: str, redis_client: redis.Redis) -> Started:
    """A run on a named Redis."""
    words = (*flags(LONG), "--run", RUN, "--workers", 1, "--json", "--insecure")
    master = processes.master(*words, RQ_REDIS_URL=with_password(valkey_url))
    wait_for(Seen(redis_client, RUN).has_reached(2), "the run is under way")
    return master


def test_the_commands_find_a_live_run_without_its_address(
    processes: Processes, live: Started, redis_client: redis.Redis
) -> None:
    run = status(processes, RUN)
    assert (run["state"], run["health"], run["on_disk"]) == ("running", "healthy", False)
    assert [run["run"] for run in status(processes)["runs"]] == [RUN]
    assert f"run {RUN} is live" in done(processes.master("--purge", RUN, "--yes"), 4)
    done(processes.master("--attach", RUN, "--set", "sigma=0.03"), 0)
    done(processes.master("--pause", RUN), 0)
    assert Seen(redis_client, RUN).progress()["state"] == "paused"
    done(processes.master("--stop", RUN), 0)
    assert live.wait() == 130
    done(processes.master("--resume", RUN, "--workers", 1, "--max-steps", 1), 0)
    assert Seen(redis_client, RUN).progress()["state"] == "finished"
    done(processes.master("--purge", RUN, "--yes"), 0)
    assert not redis_client.exists(f"es:{RUN}:progress")


def test_no_second_master_enters_a_live_run_s_folder(processes: Processes, live: Started) -> None:
    for words in ((), ("--redis-url", "private"), ("--listen", "127.0.0.1")):
        said = done(processes.master("--resume", RUN, *words), 4)
        assert f"run {RUN} is live: {socket.gethostname()}" in said
    assert "pid" in said and "since" in said and f"--stop {RUN}" in said
    assert "open-sesame" not in said
    assert live.process.poll() is None
    files = [path for path in record(processes).parent.rglob("*") if path.is_file()]
    assert not [path for path in files if b"open-sesame" in path.read_bytes()]


def test_a_killed_master_s_run_moves_to_another_server(processes: Processes, live: Started) -> None:
    live.signal(signal.SIGKILL)
    live.wait()
    words = ("--resume", RUN, "--redis-url", "private", "--workers", 1, "--max-steps", 1)
    done(processes.master(*words), 0)
    assert json.loads(record(processes).read_text())["url"] == ""
    assert status(processes, RUN, code=10)["state"] == "finished"


def test_the_lease_decides_over_a_master_of_another_host(
    processes: Processes, live: Started, redis_client: redis.Redis
) -> None:
    """A folder that hosts share, on a file system whose locks do not reach the other host."""
    os.kill(live.pid, signal.SIGSTOP)
    held = record(processes)
    copy = held.read_bytes()
    held.unlink()  # the lock of the frozen master goes with its file
    held.write_bytes(copy)
    change_record(processes, host="another-host")
    redis_client.set(f"es:{RUN}:master", "another-host pid 1 abc", px=60_000)
    said = done(processes.master("--resume", RUN, "--redis-url", "private"), 4)
    assert f"run {RUN} is live: another-host pid" in said
    redis_client.delete(f"es:{RUN}:master")
    words = ("--resume", RUN, "--redis-url", "private", "--workers", 1, "--max-steps", 1)
    done(processes.master(*words), 0)


def test_a_private_server_of_another_host_is_not_called_ended(processes: Processes) -> None:
    words = ("--run", RUN, "--workers", 1, "--max-steps", 1)
    done(processes.master(*flags(LONG), *words), 0)
    (record(processes).parent / "summary.json").unlink()
    change_record(processes, host="another-host", ended=False)
    run = status(processes, RUN, code=3)
    assert (run["state"], run["health"]) == ("unknown", "unreachable")
    assert "another-host pid" in run["health_why"]
    for verb in ("--stop", "--pause", "--purge"):
        assert "another-host pid" in done(processes.master(verb, RUN), 4)
    over = threading.Event()

    def beat() -> None:  # as the master of the other host does
        while not over.wait(0.05):
            os.utime(record(processes))

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        said = done(processes.master("--resume", RUN, "--max-steps", 2), 4)
    finally:
        over.set()
        beating.join()
    assert f"run {RUN} is live: another-host" in said
    done(processes.master("--resume", RUN, "--workers", 1, "--max-steps", 2), 0)


def test_a_server_that_does_not_answer_has_not_ended_its_runs(
    processes: Processes, live: Started
) -> None:
    live.signal(signal.SIGKILL)
    live.wait()
    path = record(processes)
    env = {"RQ_REDIS_URL": "redis://127.0.0.1:1"}
    # Sealed by this account, as a run on that server would be.
    from master.services.leader import Leader, read_leader

    former = read_leader(path.parent)
    assert former is not None
    silent = Leader(RUN, "redis://127.0.0.1:1", "another-host", 1, former.since)
    change_record(processes, url=silent.url, seal=silent.sealed(), host="another-host")
    run = status(processes, RUN, code=3)
    assert (run["state"], run["health"]) == ("unknown", "unreachable")
    assert run["health_why"] == "redis://127.0.0.1:1 does not answer"
    for verb in ("--stop", "--purge", "--resume"):
        assert "127.0.0.1:1" in done(processes.master(verb, RUN, **env), 3)


def test_a_stranger_s_folder_gets_no_connection_and_no_password(processes: Processes) -> None:
    done(processes.master(*flags(LONG), "--run", RUN, "--workers", 1, "--max-steps", 1), 0)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}"
        change_record(processes, url=url, ended=False)
        secret = {"ES_QUEUE_REDIS_PASSWORD": "open-sesame"}
        for words in (("--resume", RUN), ("--stop", RUN)):
            said = done(processes.master(*words, **secret), 2)
            assert "this account did not write it" in said
        run = status(processes, RUN, code=10, **secret)
        assert "was not asked: give --redis-url" in run["redis"]
        with pytest.raises(BlockingIOError):
            listening.accept()
