"""However a run ends, it leaves what can be resumed, no seat and no lease, and the user sees what
ended it.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from es_queue import train
from es_queue.config.recipes import resolve
from es_queue.errors import NoRunError
from es_queue.protocol.keys import VARIABLE
from master.loop.checkpoint import Checkpoints
from master.run.launch import Launch
from master.run.session import UNSERVED, Session
from master.services.private_server import PrivateServer
from master.status.snapshot import RunFolder
from tests.integration.processes import (
    CARTPOLE,
    CLOCKS,
    WALKER,
    Heard,
    Master,
    Processes,
    Seen,
    clocks_text,
    flags,
    wait_for,
)

KEYS = ("master", "todo")
NEVER_EXPIRES = -1  # as TTL answers


class Runs:
    """Sessions on the shared server, in this thread."""

    def __init__(self, url: str, client: redis.Redis, folder: Path, noise: Path) -> None:
        self.url, self.client, self.folder, self.noise = url, client, folder, noise
        self.heard = Heard()

    def session(self, run: str, resume: bool = False) -> Session:
        launch = Launch(
            self.url,
            0,
            run=None if resume else run,
            resume=run if resume else None,
            run_dir=self.folder / run,
            noise_dir=self.noise,
        )
        return Session(launch, CLOCKS, lambda *_: self.heard, lambda: False)

    def begin(
        self, run: str, keep_going: Callable[..., bool] = lambda _: True, **values: Any
    ) -> dict[str, Any]:
        return self.session(run).run(resolve({**CARTPOLE, **values}), None, keep_going)

    def resume(self, run: str, **changes: Any) -> dict[str, Any]:
        return self.session(run, resume=True).run(None, changes)

    def state(self, run: str) -> str:
        return Seen(self.client, run).progress().get("state", "")

    def assert_left(self, run: str, state: str) -> None:
        """The run is over for everybody, and can be resumed."""
        seen = Seen(self.client, run)
        assert seen.progress()["state"] == state
        assert [name for name in KEYS if self.client.exists(getattr(seen.keys, name))] == []
        # A worker that took a seat in the last moment registers after the end: that set expires.
        assert self.client.ttl(seen.keys.workers) != NEVER_EXPIRES
        assert [
            one
            for one in self.client.lrange("rq:queue:default", 0, -1)
            if one.startswith(f"es-{run}-".encode())
        ] == []
        assert self.client.exists(seen.keys.checkpoint)


@pytest.fixture
def runs(valkey_url: str, redis_client: redis.Redis, tmp_path: Path, short_folder: Path) -> Runs:
    return Runs(valkey_url, redis_client, tmp_path / "runs", short_folder / "noise")


@pytest.fixture
def worker(processes: Processes, valkey_url: str) -> None:
    processes.worker(valkey_url)


def raising(error: BaseException) -> Callable[..., bool]:
    def keep_going(_: object) -> bool:
        raise error

    return keep_going


# --- errors that are none of ours


@pytest.mark.usefixtures("worker")
def test_an_error_of_the_callers_own_leaves_a_failed_run_and_is_seen(runs: Runs) -> None:
    with pytest.raises(ValueError, match="from the callback"):
        runs.begin("own", raising(ValueError("from the callback")))
    runs.assert_left("own", "failed")
    assert Seen(runs.client, "own").progress()["why"] == "from the callback"
    assert Checkpoints(runs.folder / "own").read_newest() is not None
    failed = RunFolder(runs.folder / "own").summarize()
    assert (failed.state, failed.health_why) == ("failed", "from the callback")
    runs.resume("own")
    assert RunFolder(runs.folder / "own").summarize().state == "finished"


@pytest.mark.usefixtures("worker")
def test_ctrl_c_in_python_leaves_a_stopped_run_that_goes_on_under_a_new_budget(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, clocks_text(CLOCKS))
    about: dict[str, Any] = {
        "redis_url": runs.url,
        "workers": 0,
        "runs_dir": str(runs.folder),
        "noise_dir": runs.noise,
    }
    with pytest.raises(KeyboardInterrupt) as interrupt:
        train(resolve(CARTPOLE), raising(KeyboardInterrupt()), run="python", **about)
    (note,) = interrupt.value.__notes__
    assert note.startswith("the run was stopped; continue with: ")
    assert "es-master --resume " in note and "python --redis-url " in note
    runs.assert_left("python", "stopped")
    assert Checkpoints(runs.folder / "python").read_newest() is not None
    summary = train(resume="python", changes={"generations": 1, "final_episodes": 1}, **about)
    assert (summary["state"], summary["generation"], summary["eval_episodes"]) == ("finished", 1, 1)


def test_a_run_whose_checkpoints_cannot_be_read_is_refused_with_their_names(runs: Runs) -> None:
    folder = runs.folder / "torn" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "generation-00000004.npz").write_bytes(b"torn")
    with pytest.raises(NoRunError, match=r"can be read; checkpoint .*00000004\.npz was skipped"):
        runs.resume("torn")


# --- Redis goes away


@pytest.fixture
def own_server(short_folder: Path) -> Iterator[PrivateServer]:
    server = PrivateServer(Path(tempfile.mkdtemp(dir=short_folder)))
    server.start()
    yield server
    server.stop()


def started(server: PrivateServer, folder: Path, noise: Path) -> Master:
    run = Master(server.url, folder, "away", CARTPOLE, noise=noise)
    wait_for(
        lambda: (folder / "checkpoints").is_dir() and Checkpoints(folder).read_newest(),
        "the run is published",
    )
    return run


def test_a_master_that_waits_for_redis_can_be_stopped(
    own_server: PrivateServer, tmp_path: Path, short_folder: Path
) -> None:
    run = started(own_server, tmp_path, short_folder / "noise")
    own_server.stop()
    wait_for(
        lambda: "Redis does not answer; trying again" in run.heard.notes, "the outage is noticed"
    )
    run.stop()
    summary = run.summary(1)
    assert summary["state"] == "stopped" and Path(summary["last_checkpoint"]).is_file()


# --- before the first generation


BLOCKING = """
import pathlib, time
pathlib.Path("there").touch()
time.sleep(600)
"""
HOLD_MODULES = """
import pathlib, sys, time

class Hold:
    def find_spec(self, name, path=None, target=None):
        if name == "master.cli.options":
            pathlib.Path("there").touch()
            time.sleep(600)

sys.meta_path.insert(0, Hold())
"""


@pytest.mark.parametrize(
    ("name", "text"), [("blocking", BLOCKING), ("sitecustomize", HOLD_MODULES)]
)
def test_ctrl_c_before_the_run_has_begun_ends_the_command_and_leaves_nothing(
    processes: Processes, name: str, text: str
) -> None:
    (processes.folder / f"{name}.py").write_text(text)
    more = {"PYTHONPATH": str(processes.folder)} if name == "sitecustomize" else {}
    process = processes.master("--env", "blocking:Env-v0", **more)
    wait_for((processes.folder / "there").exists, "the command is where it takes long")
    process.signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert process.said() == ""
    assert processes.living() == {} and not (processes.folder / "runs").exists()


def test_a_closed_terminal_stops_a_run_that_can_be_resumed(processes: Processes) -> None:
    run = processes.master(
        *flags({**WALKER, "generations": 500}), "--run", "hung-up", "--workers", 1, "--json"
    )
    wait_for(lambda: len(run.events("generation")) >= 2, "generation 2")
    run.signal(signal.SIGHUP)
    assert run.wait() == 130, run.said()
    assert run.events("summary")[-1]["state"] == "stopped"
    assert processes.living() == {}


# --- the time is up, and nobody plays the final episodes


def test_without_a_worker_a_run_ends_at_its_limit_and_says_how_to_get_its_final_evaluation(
    processes: Processes, valkey_url: str, redis_client: redis.Redis, tmp_path: Path
) -> None:
    quick = (
        "from master.loop import workers\nworkers.ABSENT_SECONDS = 0.2\n"
        "from master.cli.main import main\nraise SystemExit(main())\n"
    )
    given = {**CARTPOLE, "strategy": None, "generations": 0, "max_seconds": 0.1}
    words = [*flags(given), "--run-dir", "limited"]
    master = processes.start(
        sys.executable, "-c", quick, *words, "--run", "limited", "--redis-url", valkey_url
    )
    assert master.wait() == 0, master.said()
    assert "no worker was there for the final evaluation: start one and continue" in master.said()
    assert "(--recipe none: plain defaults):\n  strategy pgpe" in master.said()
    progress = Seen(redis_client, "limited").progress()
    assert progress["state"] == "stopped"
    assert progress["why"] == UNSERVED
    processes.worker(valkey_url)
    resumed = processes.master("--resume", "limited", "--run-dir", "limited", url=valkey_url)
    assert resumed.wait() == 0, resumed.said()
    assert "over 2 fresh episodes" in resumed.said()
