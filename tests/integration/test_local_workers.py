"""The local workers: real processes, real signals, real sockets."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from rq import Queue
from rq.job import Job

from es_queue.errors import RunFolderError
from es_queue.host import default_workers
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from master.bound import session
from master.processes import ProcessGroup
from master.services.local_workers import LocalServices
from master.services.private_server import PrivateServer
from tests.integration.household import ROOT, linux_only, wait_until
from tests.integration.processes import CARTPOLE, Processes, flags


@pytest.fixture
def make_workers(
    server: PrivateServer, client: redis.Redis, tmp_path: Path
) -> Iterator[Callable[..., LocalServices]]:
    made: list[LocalServices] = []

    def make(count: int = 1, queue: str = "default", noise: Path | None = None) -> LocalServices:
        one = LocalServices()
        made.append(one)
        one.start_workers(count, queue, server.url, tmp_path / "logs", noise_folder=noise)
        return one

    yield make
    for one in made:
        group_of(one).grace = 0
        one.stop()


def group_of(workers: LocalServices) -> ProcessGroup:
    return workers._workers or ProcessGroup()


def run_job(client: redis.Redis, function: str, *arguments: object, queue: str = "default") -> Job:
    return Queue(queue, connection=client).enqueue(function, args=arguments, job_timeout=100)


def running_count(workers: LocalServices) -> int:
    group_of(workers).watch()
    return sum(child.process is not None for child in group_of(workers).children)


def result_of(job: Job) -> object:
    wait_until(lambda: job.get_status(refresh=True) in ("finished", "failed"))
    return job.return_value()


def started(job: Job) -> bool:
    return job.get_status(refresh=True) == "started"


@pytest.mark.parametrize("queue", ["default", "another"])
def test_local_workers_do_the_jobs_of_their_queue(
    client: redis.Redis, make_workers: Callable[..., LocalServices], queue: str
) -> None:
    workers = make_workers(2, queue)
    assert result_of(run_job(client, "math.hypot", 3, 4, queue=queue)) == 5.0
    assert running_count(workers) == 2


def test_local_workers_keep_the_noise_table_where_they_are_told_to(
    client: redis.Redis,
    make_workers: Callable[..., LocalServices],
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
    server: PrivateServer, client: redis.Redis, make_workers: Callable[..., LocalServices]
) -> None:
    make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert server.url.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"RQ_REDIS_URL={server.url}".encode() in environment
    assert b"OPENBLAS_NUM_THREADS=1" in environment


def test_the_current_folder_cannot_shadow_our_packages(
    client: redis.Redis,
    make_workers: Callable[..., LocalServices],
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
    client: redis.Redis, make_workers: Callable[..., LocalServices]
) -> None:
    make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert isinstance(pid, int)
    assert os.getsid(pid) != os.getsid(0)


def test_a_killed_worker_is_replaced_after_its_back_off(
    client: redis.Redis, make_workers: Callable[..., LocalServices]
) -> None:
    workers = make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    wait_until(workers.restart_ended)
    assert running_count(workers) == 0
    wait_until(lambda: running_count(workers) == 1)
    assert result_of(run_job(client, "os.getppid")) != pid


def with_busy_horse(
    client: redis.Redis, function: str = "time.sleep", argument: object = 90
) -> int:
    """Gives the pid of the one worker once its horse works on a long job."""
    pid = result_of(run_job(client, "os.getppid"))
    job = run_job(client, function, argument)
    wait_until(lambda: started(job))
    assert isinstance(pid, int)
    wait_until(lambda: len(session(os.getsid(pid))) == 3)
    return pid


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, None])
def test_a_busy_horse_ends_with_its_worker(
    client: redis.Redis, make_workers: Callable[..., LocalServices], how: signal.Signals | None
) -> None:
    workers = make_workers()
    pid = with_busy_horse(client)
    leader = os.getsid(pid)
    if how is not None:
        os.kill(pid, how)
    if how != signal.SIGKILL:
        group_of(workers).grace = 2
        workers.stop()
    wait_until(lambda: session(leader) == [])


def test_stop_lets_a_job_finish_before_the_deadline(
    client: redis.Redis, make_workers: Callable[..., LocalServices]
) -> None:
    workers = make_workers()
    job = run_job(client, "time.sleep", 4)
    wait_until(lambda: started(job))
    group_of(workers).grace = 30
    workers.stop()
    assert job.get_status(refresh=True) == "finished"


def test_a_log_folder_that_cannot_be_made_is_a_run_folder_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be started with the log"):
        LocalServices().start_workers(1, "default", "unix:///nowhere", tmp_path / "file" / "logs")


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
