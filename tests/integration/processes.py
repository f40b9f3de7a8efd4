"""Real masters and workers for the tests that look from outside; whatever a test started is ended
with it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import redis

from es_queue.config.recipes import resolve
from es_queue.config.run_config import RunConfig
from es_queue.numerics.fingerprint import numeric_environment
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from es_queue.protocol.keys import VARIABLE, Clocks, RunKeys
from es_queue.user_code import ALLOW
from master.display.log_view import RunView
from master.run.launch import Launch
from master.run.session import Session
from tests.memory import run_ring

BIN = Path(sys.executable).parent
#: Carried by every process that a test starts, and by its children: so that none is overlooked.
MARK = "ES_QUEUE_TEST_MARK"
CLOCKS = Clocks(
    lease=2.0, renew=0.2, beat=0.2, leave_poll=0.05, claim_wait=0.1, collect_wait=0.2, reconcile=0.2
)
#: The same, but a worker that was killed is missed sooner; too soon for one that is only frozen for
#: a look.
NERVOUS = replace(CLOCKS, beat_ttl=1.0)

#: Everything that could make numbers depend on the cluster: statistics, growing batches, adaptive
#: limits, evaluations.
WALKER: dict[str, Any] = {
    "env": "BipedalWalker-v2",
    "strategy": "pgpe",
    "seed": 11,
    "population": 8,
    "min_steps": 300,
    "step_limit": "adaptive:30,0.5,1.5,120",
    "obs_sample": 1.0,
    "eval_every": 3,
    "eval_episodes": 2,
    "eval_step_limit": 60,
    "final_episodes": 2,
    "generations": 8,
    "target_reward": "none",
    "noise_size": 2**18,
}
CARTPOLE: dict[str, Any] = {
    "env": "CartPole-v1",
    "strategy": "pgpe",
    "biases": False,  # also of copies of it that have no recipe
    "seed": 3,
    "population": 8,
    "step_limit": "60",
    "eval_every": 0,
    "final_episodes": 2,
    "generations": 3,
    "target_reward": "none",
    "noise_size": 2**18,
}

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, seconds: float = 40.0) -> T:
    """Poll until the condition holds and give what it found; fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.01)
    return found


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that are left out by None."""
    return {name: value for name, value in values.items() if value is not None}


def flags(values: dict[str, Any]) -> list[str]:
    """Settings as es-master's flags; None for one that is left out."""
    words = list[str]()
    for name, value in given(values).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{flag}", text]
    return words


def quiet_digest(values: dict[str, Any], generation: int = -1) -> str:
    """The digest with which the undisturbed run ends, or that of one of its generations; over the
    in-memory channel.
    """
    missing = [name for name in numeric_environment() if name not in os.environ]
    assert not missing, (
        f"numpy was loaded before {', '.join(missing)} were set: fix_numeric_environment "
        "must come first in tests/conftest.py"
    )
    return _ring_digests(resolve(given(values)))[generation]


@cache
def _ring_digests(config: RunConfig) -> list[str]:
    outcome, sink = run_ring(config)
    return [*(record["digest"] for record in sink.records), outcome.digest]


# --- processes


@dataclass
class Started:
    """A process of a test with its output in files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, seconds: float = 60.0) -> int:
        """The exit code; fails when the process does not end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the process did not end within {seconds:g} s; it said: {self.said()}"
            ) from None

    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """What --json printed so far, whole lines alone; every line must be an object."""
        lines = self.out.read_text().split("\n")[:-1]
        found = [json.loads(line) for line in lines]
        return [one for one in found if not name or one["event"] == name]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


class Processes:
    """Starts processes that all carry one mark, and ends them and their children."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.mark = folder, secrets.token_hex(8)
        own = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", ALLOW)
        }
        self.environment = {**own, **environment, MARK: self.mark, VARIABLE: clocks_text(CLOCKS)}
        self._started: list[Started] = []

    def start(self, *command: object, cwd: Path | None = None, **environment: str) -> Started:
        number = len(self._started)
        out, err = self.folder / f"process-{number}.out", self.folder / f"process-{number}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=cwd or self.folder,
                env={**self.environment, **environment},
                start_new_session=True,
            )
        self._started.append(Started(process, out, err))
        return self._started[-1]

    @property
    def rq(self) -> Path:
        return BIN / "rq"

    def worker(
        self, url: str, *more: object, clocks: Clocks = CLOCKS, **environment: str
    ) -> Started:
        """A plain ``rq worker``, which the tests' own environments are allowed to."""
        return self.start(
            self.rq,
            "worker",
            "--url",
            url,
            *more,
            cwd=None,
            **{VARIABLE: clocks_text(clocks), ALLOW: os.environ[ALLOW], **environment},
        )

    def es_worker(
        self, url: str, *more: object, clocks: Clocks = CLOCKS, **environment: str
    ) -> Started:
        """``es-worker`` with one worker, unless ``more`` says otherwise."""
        return self.start(
            BIN / "es-worker",
            *("--workers", 1, *more),
            cwd=None,
            RQ_REDIS_URL=url,
            **{VARIABLE: clocks_text(clocks), ALLOW: os.environ[ALLOW], **environment},
        )

    def master(
        self,
        *words: object,
        url: str = "",
        clocks: Clocks = CLOCKS,
        cwd: Path | None = None,
        **environment: str,
    ) -> Started:
        """``es-master``, which may import the tests' own environments also for a run that it
        resumes; without a URL it has a private server.
        """
        given = ("--redis-url", url) if url else ()
        own = os.environ[ALLOW].removeprefix("installed,")
        return self.start(
            BIN / "es-master",
            *words,
            *given,
            cwd=cwd,
            **{VARIABLE: clocks_text(clocks), ALLOW: own, **environment},
        )

    def living(self) -> dict[int, str]:
        """Every process with the mark, children included: its pid and command."""
        return marked(self.mark)

    def end(self) -> None:
        """SIGKILL to all, again until none is left: a child may be born meanwhile."""
        deadline = time.monotonic() + 20
        while (left := self.living()) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for one in self._started:
                one.process.poll()
            time.sleep(0.01)
        for one in self._started:
            one.process.wait(20)


def folder_variables(short_folder: Path) -> dict[str, str]:
    """The environment variables of a ``Processes``: the noise is shared, the folder of temporary
    files is its own. There, a worker remembers by its name how often it was killed, and then waits
    before it joins.
    """
    return {
        FOLDER_VARIABLE: str(short_folder / "noise"),
        "TMPDIR": tempfile.mkdtemp(dir=short_folder),
    }


def marked(mark: str) -> dict[int, str]:
    needle = f"{MARK}={mark}".encode()
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if needle in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (
                    (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return found


def clocks_text(clocks: Clocks) -> str:
    return json.dumps(clocks.__dict__)


def parent_of(pid: int) -> int:
    """The parent's pid, 0 for a process that is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


# --- a run from outside


class Seen:
    """A run as anybody with a Redis client sees it."""

    def __init__(self, client: redis.Redis, run: str) -> None:
        self.client: Any = client
        self.keys = RunKeys(run)

    def progress(self) -> dict[str, str]:
        return texts(self.client.hgetall(self.keys.progress))

    def generation(self) -> int:
        return int(self.client.get(self.keys.iteration) or -1)

    def has_reached(self, generation: int) -> Callable[[], bool]:
        return lambda: self.generation() >= generation

    def workers(self) -> dict[str, dict[str, str]]:
        """What living workers say of themselves, those that have joined alone."""
        names = [name.decode() for name in self.client.smembers(self.keys.workers)]
        abouts = {name: texts(self.client.hgetall(self.keys.worker(name))) for name in names}
        return {name: about for name, about in abouts.items() if "numerics" in about}

    def seat_of(self, worker: Started) -> str:
        """The id under which a worker process, or its work horse, has joined; empty until then."""
        for name, about in self.workers().items():
            if worker.pid in (int(about["pid"]), parent_of(int(about["pid"]))):
                return name
        return ""

    def joined(self, worker: Started, seconds: float = 40.0) -> str:
        """Wait until the worker has joined; its id."""
        return wait_for(lambda: self.seat_of(worker), "the worker joins", seconds)

    def horse(self, seat: str) -> int:
        """The seat's process; a worker that slept for long has to say it anew."""
        return int(
            wait_for(
                lambda: self.client.hget(self.keys.worker(seat), "pid"), "the worker says who it is"
            )
        )

    def claims(self, seat: str) -> list[str]:
        return [one.decode() for one in self.client.lrange(self.keys.claims(seat), 0, -1)]

    def todo(self) -> list[str]:
        return [one.decode() for one in self.client.lrange(self.keys.todo, 0, -1)]

    def all_claims(self) -> dict[str, list[str]]:
        """Every claims list that holds something."""
        prefix = self.keys.claims("")
        return {
            name.decode(): self.claims(name.decode().removeprefix(prefix))
            for name in self.client.scan_iter(prefix + "*")
        }

    def freeze_holding(self, seat: str) -> int:
        """Stop the seat's process at a moment at which it holds a claim; its pid."""
        pid = self.frozen_holding(seat)
        assert pid is not None
        return pid

    def kill_holding(self, seat: str, worker: Started) -> None:
        """Kill a worker and the seat's process at a moment at which it holds a claim."""
        pid = self.freeze_holding(seat)
        worker.signal(signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)

    def frozen_holding(self, seat: str, unless: Callable[[], bool] = lambda: False) -> int | None:
        """As ``freeze_holding``; None once ``unless`` says so."""
        pid = self.horse(seat)

        def held() -> bool:
            if not self.claims(seat):
                return False
            os.kill(pid, signal.SIGSTOP)
            wait_for(lambda: state_of(pid) in ("T", ""), "the process is stopped", 5)
            # An answer that was sent before the stop is read with the first question at the latest.
            if self.claims(seat) and self.claims(seat):
                return True
            os.kill(pid, signal.SIGCONT)
            return False

        outcome = wait_for(
            lambda: "over" if unless() else "held" if held() else "", f"{seat} holds a claim"
        )
        return pid if outcome == "held" else None

    def failed_jobs(self, queue: str = "default") -> list[bytes]:
        found: list[bytes] = self.client.zrange(f"rq:failed:{queue}", 0, -1)
        return found


def state_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def texts(raw: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in raw.items()}


# --- a master in this process


@dataclass
class Heard(RunView):
    """A view that remembers."""

    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def generation(self, record: dict[str, Any]) -> None:
        self.records.append(dict(record))

    def note(self, text: str) -> None:
        self.notes.append(text)


class Master:
    """A master on a thread of this process, over a real server: its workers are processes, its
    start costs nothing.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        run: str,
        values: dict[str, Any],
        *,
        noise: Path,
        clocks: Clocks = CLOCKS,
    ) -> None:
        self.heard = Heard()
        self._stop = threading.Event()
        self._config = resolve(given(values))
        launch = Launch(redis_url=url, workers=0, run=run, run_dir=folder, noise_dir=noise)
        self._session = Session(launch, clocks, lambda *_: self.heard, self._stop.is_set)
        self._summary: dict[str, Any] = {}
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run_session, daemon=True)
        self._thread.start()

    def _run_session(self) -> None:
        try:
            self._summary = self._session.run(self._config)
        except Exception as error:
            self.error = error

    def summary(self, seconds: float = 60.0) -> dict[str, Any]:
        """Wait for the end of the run."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), (
            f"the run did not end within {seconds:g} s; heard: {self.heard.notes}"
        )
        if self.error is not None:
            raise self.error
        return self._summary

    def failure(self, seconds: float = 60.0) -> Exception:
        """Wait for the error that ends the run."""
        self._thread.join(seconds)
        assert self.error is not None, f"no error within {seconds:g} s; heard: {self.heard.notes}"
        return self.error

    def total(self, name: str) -> int:
        """The last value of a running total of the records."""
        return int(self.heard.records[-1][name])

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)
