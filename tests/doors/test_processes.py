"""Processes of a master: real ones, which are started, watched, restarted and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from es_queue.errors import RedisError, RunFolderError
from master import bound
from master.processes import Child, ProcessGroup

pytestmark = pytest.mark.fast
PATIENCE = 20.0
#: Its forks ignore SIGTERM, and one has left the process group, as RQ's work horse does.
DEAF = "trap '' TERM; sleep 600 & sleep 600 & wait; wait; sleep 600"
OWN_GROUP = (
    "import os, time\nif os.fork() == 0: os.setpgrp(); time.sleep(600)\n"
    "print('up', flush=True); time.sleep(600)"
)
PARENT = """
import os, signal, sys, time; from pathlib import Path
from master.processes import Child, ProcessGroup
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, also for its children
with ProcessGroup() as group:
    for name, words in (("shell", ["sh", "-c", sys.argv[2]]),
                        ("groups", [sys.executable, "-c", sys.argv[3]])):
        child = group.start(Child(name, lambda words=words: words, Path(sys.argv[1]) / name))
        print(child.process.pid, flush=True)
    if sys.argv[4] == "fork" and os.fork() == 0:
        time.sleep(600)
    time.sleep(600)
"""


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


def script(name: str, words: str, log: Path, **options: object) -> Child:
    return Child(name, lambda: ["sh", "-c", words], log, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["kill", "hang up", "fork"])
def test_no_process_is_left_five_seconds_after_the_death_of_its_parent(
    tmp_path: Path, how: str
) -> None:
    """Even if a fork of the parent still holds the pipe."""
    command = [sys.executable, "-c", PARENT, str(tmp_path), DEAF, OWN_GROUP, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        leaders = [int(parent.stdout.readline()) for _ in range(2)]
        assert until(lambda: [len(bound.session(pid)) for pid in leaders] == [4, 3])
        parent.send_signal(signal.SIGHUP if how == "hang up" else signal.SIGKILL)
        parent.wait(PATIENCE)
        died = time.monotonic()
        assert until(lambda: not any(bound.session(pid) for pid in leaders))
        assert time.monotonic() - died < 5
        bound.send(bound.session(parent.pid), signal.SIGKILL)  # the fork


def test_a_child_that_keeps_crashing_is_given_up_with_the_end_of_its_log(tmp_path: Path) -> None:
    log, news = tmp_path / "logs" / "x.log", list[str]()
    with ProcessGroup() as group:
        child = group.start(
            script("it", "echo first; echo boom >&2; exit 3", log, backoff=(0.0, 1.0))
        )
        assert until(lambda: news.extend(group.watch()) or child.is_over)  # type: ignore[func-returns-value]
        assert child.code == 3
    assert news[:2] == [f"it ended with code 3 and starts again in {n} s" for n in (0, 1)]
    assert news[2] == child.trouble
    assert child.trouble.startswith(f"it ended with code 3 3 times in a row; {log} ends: boom |")


def test_an_endless_child_repeats_its_last_wait(tmp_path: Path) -> None:
    news = list[str]()
    with ProcessGroup() as group:
        group.start(script("it", "exit 1", tmp_path / "x.log", backoff=(0.0,), endless=True))
        assert until(lambda: news.extend(group.watch()) or len(news) > 3)  # type: ignore[func-returns-value]


def test_an_exit_code_that_deserves_no_other_start_ends_a_child(tmp_path: Path) -> None:
    with ProcessGroup() as group:
        backoff, log = (0.0,), tmp_path / "x.log"
        child = group.start(
            script("it", "exit 2", log, backoff=backoff, comes_back=lambda c: c > 2)
        )
        assert until(lambda: group.watch() == [f"it ended with code 2; {log} is empty"])
        assert child.is_over


def test_children_get_sigterm_and_after_the_grace_sigkill_with_all_their_forks(
    tmp_path: Path,
) -> None:
    with ProcessGroup(grace=0.3) as group:
        polite = group.start(script("polite", "exec sleep 600", tmp_path / "x.log"))
        deaf = group.start(script("deaf", DEAF, tmp_path / "y.log"))
        assert polite.process and deaf.process
        leader = deaf.process.pid
        assert until(lambda: len(bound.session(leader)) == 4)
        group.end()
        assert (polite.code, deaf.code) == (128 + signal.SIGTERM, 128 + signal.SIGKILL)
        assert bound.session(leader) == []


def test_the_group_ends_what_a_killed_wrapper_has_left(tmp_path: Path) -> None:
    with ProcessGroup() as group:
        child = group.start(script("it", DEAF, tmp_path / "x.log"))
        assert child.process
        leader = child.process.pid
        assert until(lambda: len(bound.session(leader)) == 4)
        os.kill(leader, signal.SIGKILL)
        assert until(lambda: group.watch() != [])
        assert bound.session(leader) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does it")
def test_a_command_ends_if_parent_and_wrapper_are_killed_together(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), "exec sleep 600", "input()", "kill"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        leaders = [int(parent.stdout.readline()) for _ in range(2)]
        assert until(lambda: len(bound.session(leaders[0])) == 2)
        bound.send([parent.pid, *leaders], signal.SIGKILL)
    assert until(lambda: not bound.session(leaders[0]))


def test_waiting_ends_with_the_child_or_the_time(tmp_path: Path) -> None:
    with ProcessGroup(grace=0) as group:
        log = tmp_path / "x.log"
        child = group.start(Child("it", lambda: ["no such program"], log, error=RedisError))
        with pytest.raises(RedisError, match=r"it ended with code 127; .*no such program cannot"):
            group.wait_ready(child, lambda: False, PATIENCE)
        child = group.start(script("it", "sleep 600", tmp_path / "y.log"))
        with pytest.raises(RunFolderError, match=r"it is not ready after 0.1 s; .* is empty"):
            group.wait_ready(child, lambda: False, 0.1)


def test_a_child_with_pipes_answers_in_lines_and_keeps_those_of_its_end(tmp_path: Path) -> None:
    """More of them than a pipe holds: the group's watch empties it."""
    words, lines = "read word; for i in $(seq 20000); do echo $word; done; echo last", list[str]()
    with ProcessGroup() as group:
        child = group.start(script("it", words, tmp_path / "x.log", pipes=True))
        assert child.process and child.process.stdin
        child.process.stdin.write(b"hello\n")
        child.process.stdin.flush()
        assert until(lambda: group.watch() == [] and child.is_over)
        lines = child.lines()
    assert (len(lines), lines[0], lines[-1]) == (20001, "hello", "last")


def test_a_log_that_is_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "x.log").symlink_to(tmp_path / "victim")
    with ProcessGroup() as group, pytest.raises(RunFolderError, match=r"x\.log"):
        group.start(script("it", "echo", tmp_path / "x.log"))
    assert not (tmp_path / "victim").exists()
