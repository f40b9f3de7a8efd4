"""What the tests of the embedded server and of the local workers share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import es_queue
from master.services.private_server import PrivateServer

ROOT = Path(es_queue.__file__).resolve().parent.parent
linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc and uses prctl"
)


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Poll until the condition holds; fail at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pid_of(server: PrivateServer) -> int:
    """The server's pid, as it tells it."""
    with redis.Redis.from_url(server.url) as client:
        return int(client.info("server")["process_id"])
