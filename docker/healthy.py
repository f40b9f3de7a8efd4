"""Whether the container's process is well; a HEALTHCHECK and a probe: ``healthy.py worker``,
``master`` or ``alive``.

worker  Redis lets this container in
master  the run trains, or has ended in order
alive   as master, but only what a restart can fix: a run without workers, or without Redis, is not
        its master's fault
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from es_queue.errors import EsQueueError, RedisError
from es_queue.protocol.connection import (
    ANY_ERROR,
    client_from_url,
    first_line,
    url_from_environment,
    with_password,
)

COMMAND_LINE = Path("/proc/1/cmdline")
#: es-status RUN's exit codes: healthy, done; stalled, and Redis away.
WELL, NOT_MENDED = (0, 10), (3, 11)


def worker() -> int:
    """0 where Redis answers to this container's user. Raises RedisError."""
    url = url_from_environment()
    if url is None:
        raise RedisError("no Redis is named: set RQ_REDIS_URL")
    try:
        client_from_url(with_password(url)).ping()
    except ANY_ERROR as error:
        raise RedisError(f"Redis does not let this worker in: {first_line(error)}") from None
    return 0


def master(words: list[str], tolerated: tuple[int, ...]) -> int:
    """0 where es-status finds the run of the first process's command line to be well; its word is
    printed.
    """
    told = subprocess.run(
        ["es-status", run_of(words)], capture_output=True, text=True, timeout=60, check=False
    )
    print("\n".join((told.stdout + told.stderr).splitlines()[:3]))
    return int(told.returncode not in (*WELL, *tolerated))


def run_of(words: list[str]) -> str:
    """The value of --run. Raises RedisError where there is none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--run":
            return following
        if word.startswith("--run="):
            return word.removeprefix("--run=")
    raise RedisError("the first process names no run by --run")


def main(part: str) -> int:
    """The command; one sentence and 1 where something is wrong."""
    try:
        words = COMMAND_LINE.read_bytes().decode(errors="replace").split("\0")
        return (
            worker() if part == "worker" else master(words, NOT_MENDED if part == "alive" else ())
        )
    except EsQueueError as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
