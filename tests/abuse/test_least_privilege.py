"""Whole runs by users who may do no more than they must."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from es_queue import acl
from es_queue.credentials import PASSWORD_FILE
from es_queue.protocol.connection import client_from_url
from tests.abuse.servers import WHEEL, serving
from tests.faults.servers import free_port
from tests.integration.processes import (
    BIN,
    CARTPOLE,
    Processes,
    Seen,
    flags,
    quiet_digest,
    wait_for,
)
from tests.leaks import digest, simple_password

ADMIN = simple_password("admin")
ENDLESS = {**CARTPOLE, "generations": 100_000}


class Household:
    """A server with the three users, their password files, and an administrator for the test
    itself.
    """

    def __init__(self, port: int, folder: Path, processes: Processes, client: Any) -> None:
        self.port, self.folder, self.processes, self.client = port, folder, processes, client

    def url(self, user: str, secret: bool = True) -> str:
        password = f":{(self.folder / f'{user}.password').read_text().strip()}" if secret else ""
        return f"redis://{user}{password}@127.0.0.1:{self.port}"

    def master(self, *words: object) -> Any:
        return self.processes.start(
            BIN / "es-master",
            *words,
            "--redis-url",
            self.url("master", False),
            "--redis-password-file",
            self.folder / "master.password",
        )

    def status(self, *words: object) -> Any:
        return self.processes.start(
            BIN / "es-status",
            *words,
            RQ_REDIS_URL=self.url("viewer", False),
            **{PASSWORD_FILE: str(self.folder / "viewer.password")},
        )

    def worker(self, *words: object, by_file: bool = False, **environment: str) -> Any:
        """``rq worker`` with the password in its URL, or in the file by the connection class that
        reads it.
        """
        file = (
            {
                PASSWORD_FILE: str(self.folder / "worker.password"),
                "RQ_CONNECTION_CLASS": acl.CONNECTION_CLASS,
            }
            if by_file
            else {}
        )
        return self.processes.start(
            self.processes.rq,
            "worker",
            *words,
            RQ_REDIS_URL=self.url("worker", not by_file),
            **file,
            **environment,
        )

    def es_worker(self, **environment: str) -> Any:
        """One worker, with the password in its file."""
        return self.processes.start(
            *(BIN / "es-worker", "--workers", 1),
            RQ_REDIS_URL=self.url("worker", False),
            **{PASSWORD_FILE: str(self.folder / "worker.password"), **environment},
        )

    def denied(self) -> set[tuple[str, str]]:
        """(user, what) of every command that was refused."""
        return {(one["username"], one["object"]) for one in self.client.acl_log()}


@pytest.fixture
def household(tmp_path: Path, processes: Processes) -> Iterator[Household]:
    with guarded(WHEEL, tmp_path, processes) as one:
        yield one


@contextmanager
def guarded(kind: str, folder: Path, processes: Processes) -> Iterator[Household]:
    acl.write_acl_files(folder / "keys")
    rules = folder / "keys" / acl.ACL_FILE
    rules.write_text(rules.read_text() + f"user admin on #{digest(ADMIN)} ~* &* +@all\n")
    with (
        serving(kind, folder / "server", "--aclfile", rules) as port,
        client_from_url(f"redis://admin:{ADMIN}@127.0.0.1:{port}") as client,
    ):
        client.execute_command("ACL", "SAVE")  # with digests alone
        yield Household(port, folder / "keys", processes, client)


def done(process: Any, code: int = 0) -> str:
    assert process.wait() == code, process.said()
    return str(process.said())


def look_at_the_page(household: Household) -> None:
    """Everything that a browser and Prometheus ask for."""
    address = f"127.0.0.1:{free_port()}"
    page = household.status("lp", "--web", address, "--every", "0.2")
    wait_for(lambda: "http://" in page.said(), "the page is served")
    token = re.split("[=# ]", page.out.read_text())[1]
    for path in ("", "api/runs", "api/runs/lp", "api/runs/lp/errors", "metrics"):
        asked = urllib.request.Request(
            f"http://{address}/{path}", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asked, timeout=20) as answer:
            text = answer.read().decode()
        assert "lp" in text or not path
        assert path == "" or path == "metrics" or json.loads(text).get("trouble") is None, text
    page.signal(signal.SIGINT)
    assert page.wait() == 130 and page.err.read_text() == ""


def test_a_run_is_led_worked_for_and_watched_and_nothing_that_it_needs_is_denied(
    household: Household,
) -> None:
    seen = Seen(household.client, "lp")
    master = household.master(*flags(ENDLESS), "--run", "lp", "--json")
    plain = household.worker()
    simple = household.worker("--worker-class", "rq.worker.SimpleWorker", by_file=True)
    seen.joined(plain)
    seen.joined(simple)
    wait_for(seen.has_reached(5), "generation 5")
    views = (
        ("lp",),
        (),
        ("lp", "--errors"),
        ("lp", "--keys"),
        ("--keys",),
        ("lp", "--keys", seen.keys.progress),
        ("lp", "--json"),
        ("lp", "--doctor"),
    )
    for status in [household.status(*words) for words in views]:
        done(status)
    look_at_the_page(household)
    watching = household.status("lp", "--watch", "--every", "0.2", "--json")
    wait_for(lambda: watching.out.read_text().count("\n") >= 3, "es-status looks again and again")
    for words in (
        ("--pause", "lp"),
        ("--continue", "lp"),
        ("--attach", "lp", "--set", "sigma=0.05"),
    ):
        done(household.master(*words))
    plain.signal(signal.SIGTERM)  # leaves in order
    assert plain.wait() == 0
    simple.signal(signal.SIGKILL)  # leaves its seat to be cleaned away
    done(household.master("--stop", "lp"))
    assert master.wait() == 130
    done(watching, 10)
    again = household.master(
        "--resume", "lp", "--generations", seen.generation() + 5, "--workers", 1, "--json"
    )
    done(again)
    assert again.events("summary")[-1]["state"] == "finished"
    done(household.master("--purge", "lp", "--yes"))
    # RQ looks for its own address, and does without.
    address = {("worker", "client|list"), ("master", "client|list")}
    assert household.denied() - address == set()


def test_es_worker_needs_no_right_on_a_key_of_rq(household: Household) -> None:
    seen = Seen(household.client, "lp")
    values = {**CARTPOLE, "generations": 6}
    rules = [rule for rule in acl.rules(acl.WORKER) if "rq:" not in rule]
    household.client.execute_command("ACL", "SETUSER", "worker", "clearselectors", *rules)
    worker = household.es_worker()
    master = household.master(*flags(values), "--run", "lp", "--json")
    done(master)
    assert master.events("summary")[-1]["digest"] == quiet_digest(values)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.said()
    assert {one for one in household.denied() if one[1] != "client|list"} == set()
    assert seen.failed_jobs() == []


def test_a_worker_waits_for_scripts_that_the_server_has_lost(household: Household) -> None:
    """Its user may load none; the master does."""
    seen = Seen(household.client, "flushed")
    master = household.master(*flags(ENDLESS), "--run", "flushed", "--json")
    worker = household.es_worker()
    seen.joined(worker)
    for _ in range(3):
        household.client.script_flush()
        wait_for(seen.has_reached(seen.generation() + 3), "the run goes on")
    assert "left" not in worker.said()
    done(household.master("--stop", "flushed"))
    assert master.wait() == 130


def test_a_viewer_cannot_drive_and_is_told_so_in_one_sentence(household: Household) -> None:
    process = household.processes.start(
        BIN / "es-master", *flags(CARTPOLE), "--run", "no", RQ_REDIS_URL=household.url("viewer")
    )
    text = done(process, 3)
    assert (
        text.count("\n") == 1
        and text.startswith("es-master: ")
        and "no permissions" in text.lower()
    ), text
    text = done(
        household.processes.start(BIN / "es-status", "--json", RQ_REDIS_URL=household.url("viewer"))
    )
    assert json.loads(text)["runs"] == []
