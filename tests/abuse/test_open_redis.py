"""A Redis that others reach without a password, or read on the way to, is warned of: aloud, once,
and where logs are kept.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.abuse.servers import WHEEL, serving
from tests.integration.processes import BIN, CARTPOLE, Processes, Started, flags
from tests.leaks import simple_password

QUICK = {**CARTPOLE, "generations": 1}
OPEN = ("--bind", "0.0.0.0", "--protected-mode", "no")
ALOUD, IN_PLAIN = "requires NO PASSWORD", "in plain text"


def own_address() -> str:
    """An address of this host that is not its loopback's; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no address but its loopback's")
        found = str(one.getsockname()[0])
    if found.startswith("127."):
        pytest.skip("this host has no address but its loopback's")
    return found


def trained(processes: Processes, url: str, run: str, *words: object) -> Started:
    master = processes.start(
        BIN / "es-master", *flags(QUICK), "--run", run, *words, RQ_REDIS_URL=url
    )
    assert master.wait() == 0, master.said()
    return master


def noted(master: Started) -> list[str]:
    return [str(one["text"]) for one in master.events("note")]


def test_an_open_server_is_warned_of_once_on_stderr_and_once_in_the_log(
    tmp_path: Path, processes: Processes
) -> None:
    with serving(WHEEL, tmp_path / "server", *OPEN) as port:
        processes.worker(f"redis://127.0.0.1:{port}")
        for url, run in (
            (f"redis://127.0.0.1:{port}", "near"),
            (f"redis://{own_address()}:{port}", "far"),
        ):
            master = trained(processes, url, run, "--json")
            assert (
                master.err.read_text().count(ALOUD) == 1
                and "es-master: WARNING: " in master.err.read_text()
            )
            assert [ALOUD in text for text in noted(master)] == [True]
        plain = trained(processes, url, "plain")
        assert plain.err.read_text().count(ALOUD) == plain.out.read_text().count(ALOUD) == 1
        hushed = trained(processes, url, "hushed", "--json", "--insecure")
        assert hushed.err.read_text() == "" and noted(hushed) == []
        doctor = processes.start(BIN / "es-status", "--doctor", RQ_REDIS_URL=url)
        assert (
            doctor.wait() == 0
            and "can be reached from other machines and requires NO PASSWORD" in doctor.said()
        ), doctor.said()


@pytest.mark.parametrize(
    "settings", [("--bind", "127.0.0.1"), ("--bind", "0.0.0.0", "--protected-mode", "yes")]
)
def test_a_server_for_this_machine_alone_is_not_warned_of(
    settings: tuple[str, ...], tmp_path: Path, processes: Processes
) -> None:
    with serving(WHEEL, tmp_path / "server", *settings) as port:
        processes.worker(f"redis://127.0.0.1:{port}")
        master = trained(processes, f"redis://127.0.0.1:{port}", "quiet", "--json")
        assert master.err.read_text() == "" and noted(master) == []


def test_a_password_in_plain_text_on_the_network_is_warned_of_more_softly(
    tmp_path: Path, processes: Processes
) -> None:
    password = simple_password("plain")
    (tmp_path / "redis.conf").write_text(f"requirepass {password}\n")
    (tmp_path / "redis.conf").chmod(0o600)
    with serving(WHEEL, tmp_path / "server", *OPEN, "--include", tmp_path / "redis.conf") as port:
        near, far = (f"redis://:{password}@{host}:{port}" for host in ("127.0.0.1", own_address()))
        processes.start(processes.rq, "worker", RQ_REDIS_URL=near)
        master = trained(processes, near, "near", "--json")
        assert master.err.read_text() == "" and noted(master) == []
        master = trained(processes, far, "far", "--json")
        assert (
            master.err.read_text().count(IN_PLAIN) == 1
            and "rediss://" in master.err.read_text()
            and password not in master.said()
        )
        assert [IN_PLAIN in text for text in noted(master)] == [True]
