"""What a fault scenario is: faults injected into a real run, and the figures that prove what came
of them.

One function serves the tests, with few injections, and ``python -m tests.faults.report``, with
many.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import redis

from es_queue.numerics.noise_table import FOLDER_VARIABLE
from es_queue.protocol.connection import client_from_url
from master.services.private_server import PrivateServer
from tests.integration.processes import (
    NERVOUS,
    WALKER,
    Processes,
    Seen,
    Started,
    flags,
    quiet_digest,
)

#: A run that a fault falls into: everything that could make numbers depend on the cluster, in
#: generations of a fraction of a second.
RUN: dict[str, Any] = {**WALKER, "generations": 12}


@dataclass
class Row:
    """A line of the table. ``fault``: what was done; ``injected`` and ``noticed``: how often, and
    how often the run's own counters, notes or exit codes told of it; ``lost``: slots that never got
    an answer; ``seconds``: from each injection until the run was as before; ``equal``: whether the
    final digest is the undisturbed run's, None where there is none.
    """

    fault: str
    injected: int = 0
    noticed: int = 0
    lost: int = 0
    seconds: list[float] = field(default_factory=list)
    equal: bool | None = None
    remark: str = ""

    @property
    def is_sound(self) -> bool:
        return (
            self.injected > 0
            and self.noticed == self.injected
            and self.lost == 0
            and self.equal is not False
        )

    def cells(self) -> list[str]:
        times = (
            [f"{median(self.seconds):.2f}", f"{max(self.seconds):.2f}"]
            if self.seconds
            else ["-", "-"]
        )
        digest = {True: "equal", False: "**differs**", None: "-"}[self.equal]
        return [
            self.fault,
            str(self.injected),
            str(self.noticed),
            str(self.lost),
            *times,
            digest,
            self.remark,
        ]


@dataclass(frozen=True)
class Scenario:
    """One fault. quick, full: how often it is injected by the tests (0: only by the report) and by
    the report; slow: of the slow tier, whereas one or two of each kind are of the full tier.
    """

    name: str
    play: Callable[[Arena, int], Row]
    quick: int
    full: int
    slow: bool
    needs: str


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str, *, quick: int = 1, full: int = 5, slow: bool = True, needs: str = ""
) -> Callable[[Callable[[Arena, int], Row]], Callable[[Arena, int], Row]]:
    """Register a function as the scenario of a fault. needs: a program that must be on the PATH,
    such as redis-server.
    """

    def register(play: Callable[[Arena, int], Row]) -> Callable[[Arena, int], Row]:
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, play, quick, full, slow, needs)
        return play

    return register


def load() -> dict[str, Scenario]:
    """All scenarios: the modules of ``tests/faults/scenarios`` register them."""
    for path in sorted((Path(__file__).parent / "scenarios").glob("[a-z]*.py")):
        importlib.import_module(f"tests.faults.scenarios.{path.stem}")
    return SCENARIOS


class Arena:
    """Where a scenario takes place: a folder, processes that end with it, and a Redis server of its
    own.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.processes = Processes(
            folder, {FOLDER_VARIABLE: str(noise_folder()), "TMPDIR": str(folder)}
        )
        stack.callback(self.processes.end)

    def server(self) -> str:
        """The URL of a private server that lives until the scenario ends."""
        server = PrivateServer(self.folder / "server")
        server.start()
        self.stack.callback(server.stop)
        return server.url

    def client(self, url: str) -> redis.Redis:
        client = client_from_url(url)
        self.stack.callback(client.close)
        return client

    def started(
        self, run: str, url: str, values: dict[str, Any] = RUN, *words: object, **more: Any
    ) -> tuple[Started, Seen]:
        """A master over a server, and the run as others see it."""
        master = self.processes.master(
            *flags(values), "--run", run, "--json", *words, url=url, **{"clocks": NERVOUS, **more}
        )
        return master, Seen(self.client(url), run)


@contextmanager
def arena() -> Iterator[Arena]:
    """A fresh arena in a short path, which a socket's name needs."""
    folder = Path(tempfile.mkdtemp(prefix="esf-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Arena(folder, stack)


def noise_folder() -> Path:
    """One noise table for all scenarios of this user: it is built once."""
    folder = Path(tempfile.gettempdir()) / f"es-faults-noise-{Path.home().stat().st_uid}"
    folder.mkdir(exist_ok=True)
    return folder


def finish(row: Row, master: Started, values: dict[str, Any] = RUN, seconds: float = 240.0) -> Row:
    """Wait for the run's end and fill in what every row has: slots lost for good, and the
    digest.
    """
    code = master.wait(seconds)
    assert code == 0, master.said()[-3000:]
    done = {one["generation"]: one["population"] for one in master.events("generation")}
    done.pop(max(done))  # the last is evaluated alone
    row.lost = sum(max(0, values["population"] - count) for count in done.values())
    row.equal = master.events("summary")[-1]["digest"] == quiet_digest(values)
    return row


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began
