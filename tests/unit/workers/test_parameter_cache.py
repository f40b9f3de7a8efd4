"""Parameters from the host's file: fetched once, checked always, and never needed."""

from __future__ import annotations

import os
from pathlib import Path

from es_queue.numerics.fingerprint import bytes_digest
from es_queue.private_files import is_private, try_lock
from tests.cases import each_case
from workers.serving import ParameterCache

DATA = os.urandom(2**18)
DIGEST, SIZE = bytes_digest(DATA), len(DATA)
FIRST, SECOND = "0.1-00000000", "1.1-00000000"


class Source:
    """Redis, as far as this is concerned."""

    def __init__(self, data: bytes | None = DATA) -> None:
        self.data, self.asked = data, 0

    def __call__(self) -> bytes | None:
        self.asked += 1
        return self.data


def test_the_second_worker_of_a_host_does_not_ask(tmp_path: Path) -> None:
    source = Source()
    for _ in range(3):
        assert ParameterCache("run", tmp_path).get(FIRST, SIZE, DIGEST, source) == DATA
    assert source.asked == 1


@each_case(
    "damage",
    [DATA[:-1], b"", os.urandom(SIZE), DATA + b"x"],
)
def test_a_damaged_file_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    source, cache = Source(), ParameterCache("run", tmp_path)
    cache.get(FIRST, SIZE, DIGEST, source)
    (tmp_path / f"run-{FIRST}").write_bytes(damage)
    assert cache.get(FIRST, SIZE, DIGEST, source) == DATA
    assert source.asked == 2 and (tmp_path / f"run-{FIRST}").read_bytes() == DATA


@each_case("data", [None, b"", DATA[:-1], os.urandom(SIZE)])
@each_case("size", [SIZE, 64])
def test_what_is_not_what_was_published_is_nothing(
    tmp_path: Path, data: bytes | None, size: int
) -> None:
    assert ParameterCache("run", tmp_path).get(FIRST, size, DIGEST, Source(data)) is None
    assert not (tmp_path / f"run-{FIRST}").exists()


def test_a_runs_former_publications_go_and_another_runs_stay(tmp_path: Path) -> None:
    cache = ParameterCache("run", tmp_path)
    cache.get(FIRST, SIZE, DIGEST, Source())
    ParameterCache("run-2", tmp_path).get(FIRST, SIZE, DIGEST, Source())
    (tmp_path / "run-worker.seat").touch()
    cache.get(SECOND, SIZE, DIGEST, Source())
    assert {path.name for path in tmp_path.iterdir()} == {
        f"run-{SECOND}",
        f"run-2-{FIRST}",
        "run.lock",
        "run-2.lock",
        "run-worker.seat",
    }


def test_only_a_folder_of_ours_that_is_closed_to_others_is_private(tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert is_private(made) and made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o750)
    assert not is_private(made)
    link, file = tmp_path / "link", tmp_path / "file"
    made.chmod(0o700)
    link.symlink_to(made)
    file.touch(0o600)
    assert not is_private(link) and not is_private(file)


def test_whoever_fetches_and_is_frozen_keeps_nobody_waiting_for_long(tmp_path: Path) -> None:
    source, lock = Source(), try_lock(tmp_path / "run.lock")
    assert lock is not None
    cache = ParameterCache("run", tmp_path, lock_seconds=0.05)
    assert cache.get(FIRST, SIZE, DIGEST, source) == DATA
    os.close(lock)
    assert source.asked == 1


def test_large_parameters_are_one_copy_for_all_workers_of_a_host(tmp_path: Path) -> None:
    first, second = (
        ParameterCache("run", tmp_path).get(FIRST, SIZE, DIGEST, Source()) for _ in range(2)
    )
    assert isinstance(first, memoryview) and isinstance(second, memoryview)
    assert first.readonly and str(tmp_path / f"run-{FIRST}") in Path("/proc/self/maps").read_text()
    ParameterCache("run", tmp_path).get(SECOND, 64, bytes_digest(DATA[:64]), Source(DATA[:64]))
    ParameterCache("run", tmp_path).remove_run()
    assert first == second == DATA
