"""Two network namespaces as two hosts, and the line between them cut: silence, and routes that are
gone.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess

from master.loop.recovery_statistics import TAKEOVER, WORKER_DIED
from tests.faults.scenario import Arena, Row, Stopwatch, finish, scenario
from tests.faults.servers import FORGETFUL, Server, may_unshare
from tests.faults.trial import STEADY, Trial, recovered
from tests.integration.processes import wait_for

#: What ``shutil.which`` looks for; the second name is of nothing, so that what is skipped says why.
NEEDS = "redis-server" if may_unshare("--net") else "the right to make network namespaces"
HERE, THERE = "10.77.0.1", "10.77.0.2"


class Hosts:
    """Two hosts and their line. ``here`` and ``there``: words before a command that is to run on
    one of them.
    """

    def __init__(self, arena: Arena) -> None:
        mark = f"esq-{os.getpid()}-{secrets.token_hex(2)}"
        self._names = names = (f"{mark}-a", f"{mark}-b")
        for name in names:
            ip("netns", "add", name)
            arena.stack.callback(ip, "netns", "del", name)
        ip(
            "link",
            "add",
            "line",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "line",
            "netns",
            names[1],
        )
        for name, address in zip(names, (HERE, THERE), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "line")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "line", "up")
        self.here, self.there = (("ip", "netns", "exec", name) for name in names)

    def set_line(self, state: str) -> None:
        """Take the line of the host over there down, or up again."""
        ip("-n", self._names[1], "link", "set", "line", state)

    def server(self, arena: Arena, name: str = "redis") -> Server:
        """A Redis here; a test looks at it through a file's name, which knows no hosts."""
        settings = (*FORGETFUL, "--bind", "0.0.0.0", "--protected-mode", "no")
        return Server(
            arena,
            *settings,
            before=self.here,
            socket_path=arena.folder / f"{name}.sock",
            name=name,
        ).start()


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def cut_workers(arena: Arena, count: int, seconds: float) -> Row:
    row, hosts = Row("", injected=count), Hosts(arena)
    server = hosts.server(arena)
    trial = Trial(
        arena,
        f"redis://{HERE}:{server.port}",
        count,
        look=server.url,
        hosts=(hosts.here, hosts.there),
    )
    for _ in range(count):
        trial.advance()
        horse = trial.frozen_holding()
        watch = Stopwatch()
        hosts.set_line("down")
        os.kill(horse, signal.SIGCONT)
        trial.wait(seconds)
        hosts.set_line("up")
        trial.advance()
        row.seconds.append(watch.seconds())
    return trial.end(row, WORKER_DIED)


@scenario("two hosts: the workers' line is down for 30 s", full=3, needs=NEEDS)
def cut_long(arena: Arena, count: int) -> Row:
    return cut_workers(arena, count, 30.0)


@scenario(
    "two hosts: the master is cut off for longer than its lease, a standby runs beside Redis",
    full=5,
    needs=NEEDS,
)
def master_cut(arena: Arena, count: int) -> Row:
    """The standby takes over; the old master is fenced when its line is back, and ends with its
    exit code.
    """
    row, equal = Row("", injected=count), True
    for number in range(count):
        hosts = Hosts(arena)
        folder = arena.folder / f"host-{number}"
        folder.mkdir()
        server = hosts.server(arena, f"redis-{number}")
        trial = Trial(
            arena,
            f"redis://{HERE}:{server.port}",
            2,
            workers=(),
            look=server.url,
            hosts=(hosts.there, hosts.here),
            run=f"cut-{number}",
        )
        wait_for(trial.seen.has_reached(0), "there is something to take over")
        standby = trial.start_master("--standby", trial.run, on=hosts.here, cwd=folder)
        wait_for(lambda standby=standby: "standing by" in standby.said(), "the standby stands by")  # type: ignore[misc]
        trial.start_worker(*STEADY, on=hosts.here)
        trial.advance(2)
        watch = Stopwatch()
        hosts.set_line("down")
        wait_for(
            lambda standby=standby: standby.events("generation"), "the standby closes a generation"
        )  # type: ignore[misc]
        row.seconds.append(watch.seconds())
        hosts.set_line("up")
        fenced = trial.master.wait()
        finish(row, standby, trial.values)
        equal = equal and row.equal is True
        trial.master = standby
        row.noticed += fenced == 4 and recovered(trial, TAKEOVER, folder) == 1
    row.equal = equal
    return row
