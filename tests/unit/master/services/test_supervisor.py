"""When a supervisor ends, and how it and its master speak: by files, locks and signals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from es_queue.errors import RedisError, RunBusyError, RunFolderError
from es_queue.protocol.timing import Clocks
from es_queue.util.file_lock import is_locked, read_pid, try_lock, write_pid
from master.run import supervisor_client
from master.run.launch import Launch
from master.run.run_paths import RunPaths
from master.run.supervisor_client import (
    SupervisorClient,
    SupervisorWatch,
    make_supervisor_client,
)
from master.services import child_process
from master.services import supervisor_files as guardian_files
from master.services.private_server import PrivateServer
from master.services.supervisor import LeaseReader, OrphanTimer
from master.services.supervisor_files import (
    ENDING,
    FAILED,
    MOST_NEWS,
    READY,
    SupervisorFiles,
    SupervisorSpec,
)
from tests.cases import each_case
from tests.notes import collect_notes

CLOCKS = Clocks(lease=10.0, grace=60.0)
MASTER = 4711
LEASE = f"host pid {MASTER} abcdef"


def seconds_until_over(
    vigil: OrphanTimer, begin: float, lease: str | None, owner: int, most: int = 1000
) -> int | None:
    """Look each second with the same answers; after how many it is over, None when it is not."""
    for second in range(most):
        if vigil.is_expired(begin + second, lease, owner):
            return second
    return None


@pytest.fixture
def led() -> OrphanTimer:
    """A vigil that has seen its master lead until second 100."""
    vigil = OrphanTimer(CLOCKS)
    assert seconds_until_over(vigil, 0.0, LEASE, MASTER, 100) is None
    return vigil


def test_it_is_over_when_nobody_has_held_the_lease_for_the_grace(led: OrphanTimer) -> None:
    assert seconds_until_over(led, 100.0, "", 0) == 61


def test_a_master_that_comes_back_within_the_grace_has_all_of_it_again(led: OrphanTimer) -> None:
    assert seconds_until_over(led, 100.0, "", 0, 60) is None
    assert seconds_until_over(led, 160.0, LEASE, MASTER, 1000) is None
    assert seconds_until_over(led, 1160.0, "", 0) == 61


def test_a_master_on_another_host_leads_too(led: OrphanTimer) -> None:
    assert seconds_until_over(led, 100.0, "elsewhere pid 1 abcdef", 0) is None


def test_a_stopped_master_that_has_let_its_lease_lapse_counts_as_gone(led: OrphanTimer) -> None:
    assert seconds_until_over(led, 100.0, "", MASTER) == 61


def test_a_living_master_may_take_long_to_its_first_lease() -> None:
    assert seconds_until_over(OrphanTimer(CLOCKS), 0.0, "", MASTER) is None


def test_a_master_that_takes_over_may_take_long_too_although_it_finds_the_lease_of_the_dead_one(
    led: OrphanTimer,
) -> None:
    assert seconds_until_over(led, 100.0, LEASE, 4712, 10) is None
    assert seconds_until_over(led, 110.0, "", 4712) is None


def test_a_master_that_died_before_its_first_lease_is_waited_for_no_longer_than_any() -> None:
    vigil = OrphanTimer(CLOCKS)
    assert seconds_until_over(vigil, 0.0, "", MASTER, 500) is None
    assert seconds_until_over(vigil, 500.0, "", 0) == 61


def test_while_redis_is_away_a_living_master_is_waited_for_and_a_dead_one_a_lease_longer(
    led: OrphanTimer,
) -> None:
    assert seconds_until_over(led, 100.0, None, MASTER) is None
    assert seconds_until_over(led, 1100.0, None, 0) == 71


# --- files


@pytest.fixture
def files(tmp_path: Path) -> SupervisorFiles:
    one = SupervisorFiles(tmp_path / "guardian")
    one.prepare()
    return one


SPEC = SupervisorSpec(
    "run",
    "/runs/run/redis",
    "/bin/server",
    "127.0.0.1:7000",
    "",
    2,
    "default",
    None,
    "/runs/run/logs",
    dict(CLOCKS.__dict__),
)


def test_its_folder_is_its_users_alone(files: SupervisorFiles) -> None:
    assert files.folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_a_run_folder_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be created"):
        SupervisorFiles(tmp_path / "file" / "guardian").prepare()


def test_a_spec_survives_the_way_to_the_guardian() -> None:
    assert SupervisorSpec.from_json(SPEC.to_json()) == SPEC
    assert SupervisorSpec.from_json(replace(SPEC, workers=3).to_json()) != SPEC


@each_case(
    "text",
    [
        "",
        "{}",
        "[]",
        "7",
        SPEC.to_json().replace('"lease"', '"leash"'),
        SPEC.to_json().replace('"queue"', '"more"'),
    ],
)
def test_a_damaged_spec_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(RunFolderError, match="damaged"):
        SupervisorSpec.from_json(text)


def test_the_state_brings_the_error_with_which_a_guardian_failed(files: SupervisorFiles) -> None:
    assert files.read_state() == ("", None)
    files.write_state(READY)
    assert files.read_state() == (READY, None)
    files.write_state(FAILED, RunFolderError("no log"))
    name, error = files.read_state()
    assert name == FAILED and type(error) is RunFolderError and str(error) == "no log"


@pytest.mark.parametrize("kind", ["SystemExit", "annotations", "EXIT_DONE", "", None])
def test_an_unknown_kind_of_error_is_a_redis_error(
    files: SupervisorFiles, kind: str | None
) -> None:
    files.state.write_text(json.dumps({"state": FAILED, "kind": kind, "why": "because"}))
    error = files.read_state()[1]
    assert type(error) is RedisError and str(error) == "because"


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", "\xff"])
def test_a_damaged_state_is_none(files: SupervisorFiles, text: str) -> None:
    files.state.write_text(text, encoding="latin-1")
    assert files.read_state() == ("", None)


def test_a_state_that_cannot_be_written_is_a_run_folder_error(files: SupervisorFiles) -> None:
    files.state.mkdir()
    with pytest.raises(RunFolderError, match="cannot be written"):
        files.write_state(READY)


def test_news_is_read_once_and_by_whole_lines(files: SupervisorFiles) -> None:
    assert files.read_news(0) == ([], 0)
    files.append_news("one")
    files.append_news("two")
    found, offset = files.read_news(0)
    assert found == ["one", "two"] and files.read_news(offset) == ([], offset)
    with files.news.open("a") as file:
        file.write('{"text": "thr')
    assert files.read_news(offset) == ([], offset)
    with files.news.open("a") as file:
        file.write('ee"}\nnonsense\n[]\n{"text": "four"}\n')
    assert files.read_news(offset)[0] == ["three", "four"]


def test_news_that_nobody_reads_takes_no_more_than_its_room(files: SupervisorFiles) -> None:
    offset, sizes = 0, []
    for number in range(1500):
        files.append_news(f"{number} " + "x" * 1000)
        found, offset = files.read_news(offset)
        assert [one.partition(" ")[0] for one in found] == [str(number)]
        sizes.append(files.news_end())
    assert (
        max(sizes) < MOST_NEWS + 2 * guardian_files.LONGEST_LINE
        and min(sizes[1:]) < sizes[-1] < len(sizes) * guardian_files.LONGEST_LINE
    )


# --- the master's side


def client_of(files: SupervisorFiles, **changes: Any) -> SupervisorClient:
    spec = replace(SPEC, **{"server": None, "listen": None, "workers": 0, **changes})
    return SupervisorClient(files.folder, spec, {"RQ_REDIS_URL": "unix:///nowhere"}, None)


@pytest.fixture
def client(files: SupervisorFiles) -> Iterator[SupervisorClient]:
    one = client_of(files)
    yield one
    one.stop()
    one._child.reap()  # one that was adopted by another and ended by that one


def test_a_guardian_starts_and_ends_with_its_master(
    client: SupervisorClient, files: SupervisorFiles
) -> None:
    client.start()
    pid = read_pid(files.supervisor_lock)
    assert (
        files.read_state()[0] == READY
        and is_locked(files.supervisor_lock)
        and pid not in (None, os.getpid())
    )
    assert files.owner_pid() == os.getpid() and not client.ensure()
    client.stop()
    assert (
        files.read_state()[0] == ENDING
        and not is_locked(files.supervisor_lock)
        and files.owner_pid() == 0
    )


def test_a_killed_guardian_is_started_again(
    client: SupervisorClient, files: SupervisorFiles
) -> None:
    client.start()
    client.kill()
    assert not is_locked(files.supervisor_lock)
    assert client.ensure() and not client.ensure()


def test_the_next_master_adopts_a_guardian_that_does_what_is_wanted(
    client: SupervisorClient, files: SupervisorFiles
) -> None:
    client.start()
    pid = read_pid(files.supervisor_lock)
    client.release()
    heir = client_of(files)
    heir.start()
    assert read_pid(files.supervisor_lock) == pid
    files.append_news("something new")
    assert heir.read_news() == ["something new"] and heir.read_news() == []
    heir.stop()
    assert not is_locked(files.supervisor_lock)


def test_another_wish_ends_the_guardian_that_is_there(
    client: SupervisorClient, files: SupervisorFiles
) -> None:
    client.start()
    pid = read_pid(files.supervisor_lock)
    client.release()
    heir = client_of(files, queue="another")
    heir.start()
    assert read_pid(files.supervisor_lock) not in (pid, None)
    heir.stop()


def test_a_guardian_that_is_about_to_end_is_not_adopted(
    client: SupervisorClient, files: SupervisorFiles
) -> None:
    client.start()
    pid = read_pid(files.supervisor_lock)
    client.release()
    files.write_state(ENDING)
    heir = client_of(files)
    heir.start()
    assert read_pid(files.supervisor_lock) != pid
    heir.stop()


def test_no_process_of_another_host_is_signalled(
    client: SupervisorClient, files: SupervisorFiles
) -> None:
    lock = try_lock(files.supervisor_lock)
    assert lock is not None
    write_pid(lock, os.getpid())  # a signal would reach this very process
    files.spec.write_text(replace(SPEC, host="elsewhere").to_json())
    with pytest.raises(RunBusyError, match="still run on elsewhere"):
        client.start()
    os.close(lock)
    client.release()


def test_how_a_guardian_failed_is_said_by_its_master(files: SupervisorFiles) -> None:
    files.log.mkdir(parents=True)
    client = client_of(files)
    with pytest.raises(RunFolderError, match="cannot be started in"):
        client.start()
    client.stop()
    files.log.rmdir()
    (files.folder / "file").write_text("")
    heir = client_of(files, workers=1, logs=str(files.folder / "file" / "logs"))
    with pytest.raises(RunFolderError, match="cannot be started with the log"):
        heir.start()
    heir.stop()


def test_a_guardian_that_breaks_is_said_with_the_end_of_its_log(
    files: SupervisorFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "RUN_MODULE", "print('oh dear'); raise SystemExit(9)")
    with pytest.raises(RunFolderError, match=r"ended with code 9; .*guardian\.log ends: oh dear"):
        client_of(files).start()


def test_only_a_run_with_a_private_server_or_local_workers_has_a_guardian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[SupervisorSpec, dict[str, str]]] = []

    def make(folder: Path, spec: SupervisorSpec, environment: dict[str, str], _: object) -> None:
        made.append((spec, environment))

    monkeypatch.setattr(supervisor_client, "SupervisorClient", make)
    place = RunPaths("run", tmp_path)
    assert make_supervisor_client(Launch("redis://:secret@host:1"), place, CLOCKS, None) is None
    make_supervisor_client(Launch("redis://:secret@host:1", workers=2), place, CLOCKS, None)
    server = PrivateServer(tmp_path / "redis")
    make_supervisor_client(Launch(None, workers=2), place, CLOCKS, server)
    (spec, environment), (_, private) = made
    assert environment["RQ_REDIS_URL"] == "redis://:secret@host:1"
    assert private == {}
    assert "secret" not in spec.to_json()


def test_a_redis_that_does_not_answer_has_no_holder() -> None:
    assert LeaseReader("unix:///nowhere/at/all", "run").holder() is None


# --- maintenance


class Fake:
    """A supervisor's client that has news and was found dead, as told."""

    def __init__(self, news: list[str], dead: bool) -> None:
        self._news, self._dead = news, dead

    def read_news(self) -> list[str]:
        return self._news

    def ensure(self) -> bool:
        return self._dead


@each_case(
    ("fake", "seconds", "said"),
    [
        (Fake(["the server"], False), 5.0, ["the server"]),
        (
            Fake([], True),
            0.0,
            [
                (
                    "the supervisor of the server and the local workers ended: all of them were "
                    "restarted"
                )
            ],
        ),
        (Fake([], False), 5.0, ["Redis does not answer; trying again"]),
        (Fake([], False), 1.0, []),
        (None, 5.0, ["Redis does not answer; trying again"]),
    ],
)
def test_in_an_outage_it_is_said_what_was_started_again_or_that_redis_is_waited_for(
    fake: Any, seconds: float, said: list[str]
) -> None:
    notes = collect_notes()
    SupervisorWatch(fake).handle_outage(seconds)
    assert notes == said
