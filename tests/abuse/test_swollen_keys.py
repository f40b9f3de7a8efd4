"""Keys that somebody with write access has swollen: whoever only looks stays small, and says which
key it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol.connection import MAX_REPLY, ReplyTooLarge, client_from_url, limit_replies
from es_queue.protocol.keys import RQ_QUEUES, RQ_WORKERS, RUNS, RunKeys, rq_queue, rq_workers
from es_queue.security import acl
from es_queue.security.passwords import PASSWORD_FILE
from tests.abuse.servers import WHEEL, serving
from tests.faults.servers import free_port
from tests.integration.processes import BIN
from tests.leaks import digest, simple_password

ADMIN = simple_password("admin")
OWN = RunKeys("walk")
MEGABYTE = 2**20
BOUND = 128 * MEGABYTE
SECONDS = 60.0
#: es-status, and then the most memory that its process ever had.
PEAK = """\
import sys
from pathlib import Path
from master.status.command import main
code = main(sys.argv[1:])
lines = Path("/proc/self/status").read_text().splitlines()
print("PEAK", *[int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")], code)
"""


class Victim:
    """A server with a run whose keys can be swollen, by the worker where it may write them, else by
    the administrator."""

    def __init__(self, port: int, keys: Path) -> None:
        self.port, self._keys = port, keys
        self.admin: Any = client_from_url(f"redis://admin:{ADMIN}@127.0.0.1:{port}")
        self.worker: Any = client_from_url(
            f"redis://worker:{self.password('worker')}@127.0.0.1:{port}"
        )

    def password(self, user: str) -> str:
        return (self._keys / f"{user}.password").read_text().strip()

    @property
    def environment(self) -> dict[str, str]:
        file = str(self._keys / "viewer.password")
        return {
            "RQ_REDIS_URL": f"redis://viewer@127.0.0.1:{self.port}",
            PASSWORD_FILE: file,
            "PATH": "/usr/bin:/bin",
            "HOME": str(self._keys),
        }

    def run(self) -> None:
        """An ordinary run with one worker."""
        now = time.time()
        self.admin.flushall()
        progress = {
            "state": "running",
            "env": "CartPole-v1",
            "generation": 7,
            "workers": 1,
            "updated": now,
            "answered_at": now,
            "queue": "default",
        }
        self.admin.hset(OWN.progress, mapping=progress)
        self.admin.set(OWN.config, json.dumps({"env": "CartPole-v1"}))
        self.admin.set(OWN.master, "host-1-abcdef")
        self.admin.zadd(RUNS, {"walk": now})
        self.admin.xadd(OWN.history, {"generation": 6, "eval_mean": 100.0, "seconds_wait": 1.0})
        self.worker.sadd(OWN.workers, "host-1-abcdef")
        self.worker.hset(
            OWN.worker("host-1-abcdef"), mapping={"host": "a-host", "pid": 1, "backend": "lean"}
        )

    def status(self, *words: str) -> tuple[str, int, int]:
        """What es-status says with these words, its peak in bytes and its exit code."""
        seen = subprocess.run(
            [sys.executable, "-c", PEAK, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        said, found, peak = seen.stdout.rpartition("PEAK ")
        assert found, seen.stderr[-2000:]
        assert "Traceback" not in said + seen.stderr, seen.stderr[-2000:]
        return said + seen.stderr, *map(int, peak.split())  # type: ignore[return-value]

    @contextmanager
    def page(self) -> Iterator[tuple[str, str, int]]:
        """es-status --web: its address, its token and its process."""
        address = f"127.0.0.1:{free_port()}"
        process = subprocess.Popen(
            [BIN / "es-status", "--web", address],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            url, found, token = process.stdout.readline().split()[0].partition("/?token=")
            assert url == f"http://{address}" and found
            yield url, token, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)
            process.stdout.close()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("swollen")
    acl.write_acl_files(folder / "keys")
    rules = folder / "keys" / acl.ACL_FILE
    rules.write_text(rules.read_text() + f"user admin on #{digest(ADMIN)} ~* &* +@all\n")
    with serving(WHEEL, folder / "server", "--aclfile", rules) as port:
        found = Victim(port, folder / "keys")
        found.admin.acl_save()  # with digests alone
        yield found


def giants(prefix: str, count: int, size: int = MEGABYTE) -> list[bytes]:
    return [f"{prefix}{place}-".encode().ljust(size, b"z") for place in range(count)]


def in_pieces(write: Any, key: str, members: list[bytes], at_once: int = 20) -> None:
    for start in range(0, len(members), at_once):
        write(key, *members[start : start + at_once])


def set_of_workers(victim: Victim) -> None:
    in_pieces(victim.worker.sadd, OWN.workers, giants("w", 150))


def many_workers(victim: Victim) -> None:
    pipeline = victim.worker.pipeline(transaction=False)
    for start in range(0, 600_000, 20_000):
        pipeline.sadd(OWN.workers, *range(start, start + 20_000))
    pipeline.execute()


def forged_workers(victim: Victim) -> None:
    """A thousand workers, each with a text of the greatest length that is shown in every field."""
    from master.status.redis_reader import WORKER_FIELDS

    names = [f"host-{place}-abcdef" for place in range(1000)]
    victim.worker.sadd(OWN.workers, *names)
    pipeline = victim.worker.pipeline(transaction=False)
    for name in names:
        pipeline.hset(OWN.worker(name), mapping=dict.fromkeys(WORKER_FIELDS, b"\xff" * 1000))
        pipeline.pexpire(OWN.worker(name), 600_000)
    pipeline.execute()


def worker_of_one_field(victim: Victim) -> None:
    victim.worker.hset(OWN.worker("host-1-abcdef"), "host", b"z" * 200 * MEGABYTE)


def reports(victim: Victim) -> None:
    in_pieces(victim.worker.rpush, OWN.errors, giants("e", 150))


def names_of_keys(victim: Victim) -> None:
    for place in range(6):
        victim.worker.lpush(OWN.claims(f"{place}".ljust(30 * MEGABYTE, "z")), "x")


def results(victim: Victim) -> None:
    for _ in range(2):
        victim.admin.xadd(OWN.results("6.1-00000000"), {"answer": b"z" * 60 * MEGABYTE})


def history(victim: Victim) -> None:
    in_pieces(
        lambda key, *values: [victim.admin.xadd(key, {"eval_mean": value}) for value in values],
        OWN.history,
        giants("h", 70),
    )


def reasons(victim: Victim) -> None:
    for name in giants("r", 40, 4 * MEGABYTE):
        victim.admin.hset(OWN.refused, name, 1)


def settings(victim: Victim) -> None:
    victim.admin.set(OWN.config, b"[" * 200 * MEGABYTE)


def progress(victim: Victim) -> None:
    victim.admin.hset(OWN.progress, "why", b"z" * 200 * MEGABYTE)


def nested_json(victim: Victim) -> None:
    """Lists in lists take twenty times as much when they are decoded."""
    bomb = b"[" + b"[]," * (MEGABYTE // 4) + b"0]"
    in_pieces(victim.worker.rpush, OWN.errors, [bomb] * 8)
    victim.admin.set(OWN.config, bomb * 10)


def large_parameters(victim: Victim) -> None:
    victim.admin.set(OWN.parameters("6.1-00000000"), bytes(8 * MEGABYTE))


def list_of_runs(victim: Victim) -> None:
    for name in giants("r", 150):
        victim.admin.zadd(RUNS, {name: 9e18})


def rq_sets(victim: Victim) -> None:
    for key in (RQ_WORKERS, rq_workers("default"), RQ_QUEUES):
        in_pieces(victim.worker.sadd, key, giants("rq:worker:", 130))


def rq_list(victim: Victim) -> None:
    in_pieces(victim.worker.rpush, rq_queue("default"), giants("es-walk-", 30))


SWOLLEN = (
    set_of_workers,
    many_workers,
    forged_workers,
    worker_of_one_field,
    reports,
    names_of_keys,
    results,
    history,
    reasons,
    settings,
    progress,
    nested_json,
    large_parameters,
    list_of_runs,
    rq_sets,
    rq_list,
)
VIEWS = (("walk",), ("walk", "--json"), ("walk", "--errors"), ("walk", "--keys"), ("--keys",), ())
PLACES = ("workers", "errors", "refused", "config", "history", "progress")
SHOWN = (
    *(getattr(OWN, name) for name in PLACES),
    OWN.worker("host-1-abcdef"),
    OWN.results("6.1-00000000"),
    OWN.parameters("6.1-00000000"),
)


@pytest.fixture(params=SWOLLEN, ids=lambda one: one.__name__)
def swollen(request: pytest.FixtureRequest, victim: Victim) -> Iterator[Victim]:
    victim.run()
    request.param(victim)
    try:
        yield victim
    finally:
        victim.admin.flushall()


def test_every_view_stays_small_whichever_key_is_swollen(swollen: Victim) -> None:
    peaks = {words: swollen.status(*words)[1] for words in VIEWS}
    peaks |= {
        ("--keys", key): swollen.status("--keys", key)[1]
        for key in SHOWN
        if (swollen.admin.memory_usage(key, samples=0) or 0) > MEGABYTE
    }
    large = {" ".join(words): peak // MEGABYTE for words, peak in peaks.items() if peak >= BOUND}
    assert not large, f"megabytes: {large}"


@pytest.mark.parametrize(
    "swollen",
    [set_of_workers, forged_workers, reasons, settings, rq_sets, rq_list],
    indirect=True,
    ids=lambda one: one.__name__,
)
def test_the_doctor_stays_small(swollen: Victim) -> None:
    assert swollen.status("walk", "--doctor", "--json")[1] < BOUND


@pytest.mark.parametrize(
    "swollen",
    [one for one in SWOLLEN if one is not list_of_runs],
    indirect=True,
    ids=lambda one: one.__name__,
)
def test_the_page_stays_small_and_answers(swollen: Victim) -> None:
    with swollen.page() as (url, token, pid):
        for path in ("/", "/api/runs", "/api/runs/walk", "/api/runs/walk/errors", "/metrics"):
            asked = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(asked, timeout=SECONDS) as reply:
                reply.read()
        peak = int(
            next(
                line.split()[1]
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if line.startswith("VmHWM")
            )
        )
    assert peak * 1024 < BOUND, f"the page takes {peak // 1024} MB"


@pytest.mark.parametrize(
    ("swell", "words", "said"),
    [
        (set_of_workers, ("walk",), "not read: workers: 151 members of "),
        (
            many_workers,
            ("walk",),
            "not read: workers: 600,001 members, more than es-status reads (4,194,304 bytes)",
        ),
        (forged_workers, ("walk",), "not read: workers: "),
        (reports, ("walk", "--errors"), "errors: 150 items of "),
        (history, ("walk",), "not read: history: "),
        (
            settings,
            ("walk",),
            "not read: config: 209,715,200 bytes, more than es-status reads (1,048,576 bytes)",
        ),
        (names_of_keys, ("walk", "--keys"), "their names are too long"),
        (list_of_runs, (), "es:runs: 151 members of "),
        (rq_sets, ("walk", "--doctor"), "rq:workers has 130 members of "),
        (rq_list, ("walk", "--doctor"), "a reply of Redis is larger than 4,194,304 bytes"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_one_line_names_the_key_that_is_too_large(
    victim: Victim, swell: Any, words: tuple[str, ...], said: str
) -> None:
    victim.run()
    swell(victim)
    try:
        assert said in victim.status(*words)[0]
    finally:
        victim.admin.flushall()


@pytest.mark.parametrize(
    "swell",
    [set_of_workers, many_workers, forged_workers, reports, names_of_keys, rq_sets, rq_list],
    ids=lambda one: one.__name__,
)
def test_a_run_is_healthy_still_whatever_a_worker_swells(victim: Victim, swell: Any) -> None:
    victim.run()
    swell(victim)
    try:
        said, _, code = victim.status("walk", "--json")
        assert code == 0 and json.loads(said)["health"] == "healthy", said[:2000]
    finally:
        victim.admin.flushall()


def test_a_key_that_grows_between_the_question_and_the_reading_is_not_read(victim: Victim) -> None:
    """The sizes are asked for first; the bound of each reply holds whatever comes after that."""
    victim.run()
    client = limit_replies(victim.admin)
    victim.worker.hset(OWN.worker("host-1-abcdef"), "host", b"z" * MAX_REPLY)
    with pytest.raises(ReplyTooLarge, match="larger than 4,194,304 bytes"):
        client.hgetall(OWN.worker("host-1-abcdef"))
    assert client.hget(OWN.progress, "state") == b"running"  # on another connection
    pipeline = client.pipeline(transaction=False)
    for _ in range(5):
        pipeline.hget(OWN.progress, "state")
    assert pipeline.execute() == [b"running"] * 5
    client.close()
    victim.admin.flushall()
