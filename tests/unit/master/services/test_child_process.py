"""One way to start, watch, restart and end a process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from es_queue.util.file_lock import try_lock
from master.services.child_process import (
    LockedProcess,
    RestartTimer,
    end_in_order,
    log_tail,
    spawn,
    wait_until,
)

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); "


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[LockedProcess]:
    """A process that ignores SIGTERM, and holds its lock."""
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    process = LockedProcess(tmp_path / "lock")
    process.start(lock, python(STUBBORN + "import time; time.sleep(600)"), tmp_path / "log")
    assert wait_until(lambda: "on" in log_tail(tmp_path / "log"), 20)
    yield process
    process.signal(signal.SIGKILL)
    process.reap()


def test_a_process_that_ignores_sigterm_is_killed(stubborn: LockedProcess) -> None:
    sent: list[signal.Signals] = []

    def send(number: signal.Signals) -> None:
        sent.append(number)
        stubborn.signal(number)

    steps = ((signal.SIGTERM, 0.05), (signal.SIGKILL, 20.0))
    assert end_in_order(send, stubborn.is_gone, steps)
    stubborn.reap()
    assert sent == [signal.SIGTERM, signal.SIGKILL] and stubborn.exit_code() is None


def test_a_process_that_nothing_ends_is_not_gone(stubborn: LockedProcess) -> None:
    assert not end_in_order(stubborn.signal, stubborn.is_gone, [(signal.SIGTERM, 0.05)])


def test_another_processs_child_is_signalled_only_while_its_lock_is_held(
    stubborn: LockedProcess, tmp_path: Path
) -> None:
    guest = LockedProcess(tmp_path / "lock")
    assert not guest.is_child and guest.read_pid() and not guest.is_gone()
    guest.signal(signal.SIGKILL)
    stubborn.reap()
    assert guest.is_gone()
    (tmp_path / "lock").write_text(str(os.getpid()))
    guest.signal(signal.SIGKILL)  # or this test would end here


def test_the_starter_keeps_no_lock_of_a_process_that_cannot_be_started(tmp_path: Path) -> None:
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    process = LockedProcess(tmp_path / "lock")
    with pytest.raises(OSError, match="nowhere"):
        process.start(lock, [str(tmp_path / "nowhere")], tmp_path / "log")
    assert process.is_gone() and not process.is_child


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"):
        spawn(python("print('overwritten')"), tmp_path / "log")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_process_that_keeps_ending_waits_longer_each_time() -> None:
    timer = RestartTimer((1.0, 2.0, 4.0), long_life=30.0)
    pauses = []
    for _ in range(4):
        timer.start()
        assert timer.restart_at is None and not timer.is_due()
        timer.end()
        pauses.append(timer.schedule())
    assert pauses == [1.0, 2.0, 4.0, 4.0] and timer.is_exhausted and not timer.is_due()
    timer.cancel()
    assert timer.restart_at is None


def test_a_process_that_lived_long_waits_as_if_it_had_never_failed() -> None:
    timer = RestartTimer((1.0, 2.0), long_life=0.0, failures=2)
    timer.start()
    wait_until(lambda: False, 0.01)
    timer.end()
    assert timer.schedule() == 1.0 and timer.failures == 1
    timer.postpone(0.0)
    assert timer.is_due()


def test_a_log_ends_in_one_sentence(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == f"{log} is empty"
    log.write_text("one\ntwo\nthree\nfour\n")
    assert log_tail(log) == f"{log} ends: two | three | four"
