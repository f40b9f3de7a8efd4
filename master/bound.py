"""Runs a command that must not outlive the process that started it.

``python -I -S bound.py PIPE PARENT COMMAND…``, the first process of a session. PIPE is a descriptor
to read from. Only the parent holds its other end, so it reaches its end when the parent is gone, by
whatever means. A fork of the parent would hold it too, so the parent's pid is checked as well.
Signals are passed to the command. The exit code is the command's, or 128 + n for signal n, as in a
shell.

``processes`` starts it as a file, without es-queue's packages, so that it starts in 20 ms.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

LOOK_SECONDS = 0.3  # between two checks of the parent's pid
FAREWELL_SECONDS = 0.4  # from SIGTERM to SIGKILL, for what is left without its parent or command
KILL_SECONDS = 1.0
POLL_SECONDS = 0.02


def main(pipe: int, parent: int, command: list[str]) -> int:
    wake, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for caught in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(caught, lambda number, frame: None)
    wrapper, library = os.getpid(), ctypes.CDLL(None)
    try:
        child = subprocess.Popen(command, preexec_fn=lambda: end_with(wrapper, library))
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    while child.poll() is None:
        ready = select.select([pipe, wake], [], [], LOOK_SECONDS)[0]
        for number in os.read(wake, 64) if wake in ready else b"":
            if number != signal.SIGCHLD:
                child.send_signal(number)
        if pipe in ready or os.getppid() != parent:
            break
    end_session(os.getpid(), FAREWELL_SECONDS)  # a command that ended can leave forks, too
    code = child.wait()
    return code if code >= 0 else 128 - code


def end_with(wrapper: int, library: ctypes.CDLL) -> None:
    """On Linux, the kernel ends the command (PR_SET_PDEATHSIG) if parent and wrapper are killed
    together. It runs between fork and exec, and this process has no threads.
    """
    if sys.platform == "linux":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the wrapper's handler would swallow it
        library.prctl(1, signal.SIGTERM)
        if os.getppid() != wrapper:  # it was killed before
            os._exit(1)


def end_session(leader: int, grace: float = 0.0) -> None:
    """End all processes of a session but this one, and those that they fork meanwhile.

    A process group would not do, because the work horse of ``rq worker`` starts its own.
    """
    members, start = session(leader), time.monotonic()
    if grace:
        send(members, signal.SIGTERM)
    while members and time.monotonic() < start + grace + KILL_SECONDS:
        if time.monotonic() >= start + grace:
            send(members, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        members = session(leader)


def session(leader: int) -> list[int]:
    """The living processes of a session but this one. A container's first process may never reap
    the dead.

    Linux has /proc and need not have ps; macOS has ps.
    """
    # pathlib would make each start slower.
    if os.path.exists("/proc/self"):  # noqa: PTH110
        states = {name: "" for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208
    else:
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,stat="], stdout=subprocess.PIPE, check=False
        )
        states = dict(line.split(None, 1) for line in listing.stdout.decode().splitlines())
    found = []
    for name, state in states.items():
        pid = int(name)
        with suppress(OSError):  # it has ended since
            if os.getsid(pid) == leader and pid != os.getpid():
                if not state:
                    with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123
                        state = file.read().rpartition(")")[2].strip()
                if not state.startswith("Z"):
                    found.append(pid)
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
