"""The local workers: real processes, real signals, real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from rq import Queue
from rq.job import Job

from es_queue.errors import RunFolderError
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from es_queue.util.cores import default_workers
from master.services.local_workers import LocalWorkers
from master.services.private_server import PrivateServer
from tests.integration.household import ROOT, linux_only, running, wait_until
from tests.integration.processes import CARTPOLE, Processes, flags


def session_of(pid: int) -> list[int]:
    """The running processes of the session that ``pid`` leads, itself among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[3] == str(pid) and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def make_workers(
    server: PrivateServer, client: redis.Redis, tmp_path: Path
) -> Iterator[Callable[..., LocalWorkers]]:
    made: list[LocalWorkers] = []

    def make(count: int = 1, queue: str = "default", noise: Path | None = None) -> LocalWorkers:
        one = LocalWorkers(count, queue, server.url, tmp_path / "logs", noise_folder=noise)
        made.append(one)
        one.start()
        return one

    yield make
    for one in made:
        one.stop(deadline=0.0)


def run_job(client: redis.Redis, function: str, *arguments: object, queue: str = "default") -> Job:
    return Queue(queue, connection=client).enqueue(function, args=arguments, job_timeout=100)


def running_count(workers: LocalWorkers) -> int:
    return len(workers._running())


def result_of(job: Job) -> object:
    wait_until(lambda: job.get_status(refresh=True) in ("finished", "failed"))
    return job.return_value()


def started(job: Job) -> bool:
    return job.get_status(refresh=True) == "started"


@pytest.mark.parametrize("queue", ["default", "another"])
def test_local_workers_do_the_jobs_of_their_queue(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers], queue: str
) -> None:
    workers = make_workers(2, queue)
    assert result_of(run_job(client, "math.hypot", 3, 4, queue=queue)) == 5.0
    assert running_count(workers) == 2


def test_local_workers_keep_the_noise_table_where_they_are_told_to(
    client: redis.Redis,
    make_workers: Callable[..., LocalWorkers],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "/somewhere/else")
    make_workers(noise=tmp_path / "noise")
    assert result_of(run_job(client, "os.getenv", FOLDER_VARIABLE)) == str(tmp_path / "noise")


def test_a_runs_noise_folder_is_that_of_its_local_workers_too(
    processes: Processes, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    run = processes.master(
        *flags({**CARTPOLE, "generations": 1}),
        "--run",
        "noisy",
        "--workers",
        1,
        "--noise-dir",
        tmp_path / "noise",
        **{FOLDER_VARIABLE: str(elsewhere)},
    )
    assert run.wait() == 0, run.said()
    assert list((tmp_path / "noise").glob("*.f32")) and not elsewhere.exists()


@linux_only
def test_a_workers_command_line_does_not_tell_the_url_and_its_environment_does(
    server: PrivateServer, client: redis.Redis, make_workers: Callable[..., LocalWorkers]
) -> None:
    make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert server.url.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"RQ_REDIS_URL={server.url}".encode() in environment
    assert b"OPENBLAS_NUM_THREADS=1" in environment


def test_the_current_folder_cannot_shadow_our_packages(
    client: redis.Redis,
    make_workers: Callable[..., LocalWorkers],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "es_queue").mkdir()
    (tmp_path / "es_queue" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    make_workers()
    assert result_of(run_job(client, "builtins.eval", "__import__('es_queue').__file__")) == str(
        ROOT / "es_queue" / "__init__.py"
    )


def test_the_terminals_ctrl_c_does_not_reach_a_worker(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers]
) -> None:
    make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert isinstance(pid, int)
    assert os.getsid(pid) == pid


def test_a_killed_worker_is_replaced_after_its_back_off(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers]
) -> None:
    workers = make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: running_count(workers) == 0)
    assert workers.supervise() == []
    wait_until(lambda: workers.supervise() == [1])
    assert result_of(run_job(client, "os.getppid")) != pid


def with_busy_horse(
    client: redis.Redis, function: str = "time.sleep", argument: object = 90
) -> int:
    """Gives the pid of the one worker once its horse works on a long job."""
    pid = result_of(run_job(client, "os.getppid"))
    job = run_job(client, function, argument)
    wait_until(lambda: started(job))
    assert isinstance(pid, int)
    wait_until(lambda: len(session_of(pid)) == 2)
    return pid


@linux_only
def test_a_horse_that_lost_its_worker_is_told_to_leave(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers]
) -> None:
    workers = make_workers()
    pid = with_busy_horse(client)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: running_count(workers) == 0)
    assert len(session_of(pid)) == 1
    workers.supervise()
    wait_until(lambda: session_of(pid) == [])


@linux_only
@pytest.mark.parametrize("deadline", [0.0, 2.0])
def test_stop_ends_a_busy_worker_and_its_horse(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers], deadline: float
) -> None:
    workers = make_workers()
    pid = with_busy_horse(client)
    workers.stop(deadline)
    assert running_count(workers) == 0
    wait_until(lambda: session_of(pid) == [])


def test_stop_lets_a_job_finish_before_the_deadline(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers]
) -> None:
    workers = make_workers()
    job = run_job(client, "time.sleep", 4)
    wait_until(lambda: started(job))
    workers.stop(deadline=30.0)
    assert job.get_status(refresh=True) == "finished"


@linux_only
def test_stop_ends_a_deaf_horse_whose_worker_is_gone_already(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers], tmp_path: Path
) -> None:
    workers = make_workers()
    deaf = tmp_path / "deaf"
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(deaf)!r}, 'w').close(); time.sleep(90)"
    )
    pid = with_busy_horse(client, "builtins.exec", code)
    wait_until(deaf.exists)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: running_count(workers) == 0)
    workers.supervise()
    workers.stop()
    wait_until(lambda: session_of(pid) == [])


@linux_only
def test_stop_ends_workers_that_answer_no_signal(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers]
) -> None:
    workers = make_workers()
    pid = with_busy_horse(client)
    os.kill(pid, signal.SIGSTOP)
    workers.stop(deadline=0.0)
    assert running_count(workers) == 0
    wait_until(lambda: session_of(pid) == [])


WORKERS = """
import pathlib, sys, time
from master.services.local_workers import LocalWorkers
LocalWorkers(1, "default", sys.argv[1], pathlib.Path(sys.argv[2])).start()
print("ready", flush=True)
time.sleep(600)
"""


@linux_only
def test_local_workers_end_with_the_killed_process_that_started_them(
    server: PrivateServer,
    client: redis.Redis,
    tmp_path: Path,
    start_other: Callable[..., subprocess.Popen[str]],
) -> None:
    master = start_other(WORKERS, server.url, tmp_path)
    pid = result_of(run_job(client, "os.getppid"))
    assert isinstance(pid, int)
    master.kill()
    wait_until(lambda: not running(pid))


def test_a_log_folder_that_cannot_be_made_is_a_run_folder_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be started with the log"):
        LocalWorkers(1, "default", "unix:///nowhere", tmp_path / "file" / "logs").start()


@pytest.mark.parametrize(
    ("cgroup", "files", "workers"),
    [
        ("0::/job\n", {"job/cpu.max": "100000 100000"}, 1),
        ("0::/job/step\n", {"job/cpu.max": "50000 100000", "job/step/cpu.max": "max 100000"}, 1),
        ("0::/job\n", {"job/cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "150000 100000"}, 1),
        (
            "4:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "100000", "cpu/job/cpu.cfs_period_us": "100000"},
            1,
        ),
        (
            "4:cpu,cpuacct:/job\n",
            {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_there_are_as_many_workers_as_the_quota_allows(
    tmp_path: Path, cgroup: str, files: dict[str, str], workers: int | None
) -> None:
    for name, text in {
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert default_workers(tmp_path) == (workers or default_workers(tmp_path / "no such root"))
