"""What a worker says of itself, and what a host has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from es_queue.protocol.timing import Clocks
from es_queue.util import host_info
from tests.memory_channel import MemoryServer, MemoryWorkerChannel
from tests.ring import QUICK, quick_config
from tests.unit.workers.living import replace_heartbeat, serve_seat
from workers import heartbeat as worker_facts
from workers import join, serving
from workers.episode import EpisodeControl
from workers.heartbeat import worker_info
from workers.serving import Seat

NAMES = {"versions", "box2d", "envpool", "packages", "beat_ttl", "threads", "cpu"}
HOUSE = Path(__file__).resolve().parents[3]


def distribution(folder: Path, name: str, version: str, files: str | None) -> None:
    """A distribution as pip leaves it; without a list of files where that is None."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if files is not None:
        (about / "RECORD").write_text(files)
        for (
            line
        ) in files.splitlines():  # since Python 3.12 a list tells of the files alone that are there
            path = folder / line.partition(",")[0]
            path.parent.mkdir(exist_ok=True)
            path.touch()


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that stands first on Python's path."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_a_worker_tells_all_its_facts_as_short_texts() -> None:
    told = worker_info(Clocks(beat_ttl=2.5))
    assert set(told) == NAMES and all(
        isinstance(value, str) and len(value) <= 400 for value in told.values()
    )
    assert told["beat_ttl"] == "2.5" and told["packages"] == str(HOUSE)
    assert (
        told["versions"].startswith("es-queue ")
        and "numpy " in told["versions"]
        and "msgpack " in told["versions"]
    )
    assert int(told["threads"]) >= 1


def test_a_fact_that_cannot_be_told_is_empty_and_costs_no_seat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("no metadata here")

    monkeypatch.setattr(host_info, "versions", broken)
    monkeypatch.setattr(host_info, "box2d_versions", lambda: "x" * 10_000)
    told = worker_info(Clocks())
    assert told["versions"] == "" and len(told["box2d"]) == 400 and told["beat_ttl"] == "5"


def test_a_worker_that_refuses_tells_its_facts_and_its_noise_digest_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = EpisodeControl()
    lives: list[Any] = []

    class Quiet:
        has_run_ended = False

        def __init__(self, about: Any) -> None:
            self.about = about

        def start(self) -> None: ...

        def stop(self) -> None: ...

    def life(self: Seat, channel: Any, given: EpisodeControl, config: Any, about: Any) -> Quiet:
        lives.append(Quiet(about))
        return lives[0]

    def refuse(raw: bytes | None, digest: str) -> None:
        watch.leave_reason = "the test is over"
        raise join.Refusal("another table")

    class Joined:
        noise_digest, numerics = "ab" * 16, "cd" * 16

    replace_heartbeat(monkeypatch, life)
    monkeypatch.setattr(serving, "join", lambda config, given: Joined)
    monkeypatch.setattr(serving, "validate_noise", refuse)

    class Job:
        origin, worker_name, timeout = "default", "rq", 60

    channel = MemoryWorkerChannel(
        MemoryServer(config=quick_config().to_json().encode()), "host-1-abcdef"
    )
    serve_seat(Seat(None, "run", QUICK, "rq worker/1"), channel, watch)  # type: ignore[arg-type]
    told = lives[0].about()
    assert (
        told.keys() >= NAMES
        and told["noise"] == "ab" * 16
        and "another table" in told["refuses"]
        and "numerics" not in told
    )


# --- Box2D


def test_a_distribution_provides_box2d_if_it_lists_the_package(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(first)])
    assert host_info.box2d_versions() == ""
    distribution(first, "box2d", "2.3.10", "Box2D/__init__.py,,\nBox2D/b2.so,,\n")
    assert host_info.box2d_versions() == "box2d 2.3.10"
    distribution(first, "box2d-py", "2.3.5", "elsewhere/__init__.py,,\n")
    assert host_info.box2d_versions() == "box2d 2.3.10"


@pytest.mark.parametrize("files", ["Box2D/__init__.py,,\n", None])
def test_two_distributions_of_box2d_are_told_apart(
    first: Path, monkeypatch: pytest.MonkeyPatch, files: str | None
) -> None:
    monkeypatch.setattr(sys, "path", [str(first)])
    distribution(first, "box2d", "2.3.10", "Box2D/__init__.py,,\n")
    distribution(first, "box2d-py", "2.3.5", files)
    assert host_info.box2d_versions() == "box2d 2.3.10 and box2d-py 2.3.5"


def test_a_missing_distribution_has_no_version() -> None:
    assert host_info.version_of("no-such-distribution") == "" and not host_info.has_file(
        "no-such-distribution", "x.py"
    )


# --- packages


def package(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    return folder / name


def test_a_package_is_found_where_python_would_find_it(first: Path) -> None:
    assert (
        host_info.package_folder("es_queue") == HOUSE / "es_queue"
        and host_info.package_folder("no_such_package_here") is None
    )
    assert host_info.package_folder("wanted_here") is None
    assert package(first, "wanted_here") == host_info.package_folder("wanted_here")


def test_the_current_folder_is_looked_at_after_the_path(tmp_path: Path, first: Path) -> None:
    more = tmp_path / "current"
    more.mkdir()
    late = package(more, "late_here")
    assert host_info.package_folder("late_here", [str(more)]) == late
    assert package(first, "late_here") == host_info.package_folder("late_here", [str(more)])


def test_packages_from_two_places_are_both_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_info, "package_folder", lambda name: Path("/other/place/workers"))
    assert worker_facts.packages_folder() == f"{HOUSE} and /other/place"


# --- the machine


def test_the_processor_has_a_name_with_and_without_a_list_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listed = tmp_path / "cpuinfo"
    monkeypatch.setattr(host_info, "PROCESSOR_LIST", listed)
    assert host_info.cpu_model()
    listed.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n")
    assert host_info.cpu_model() == "Some CPU @ 2 GHz"
    listed.write_text("model name: " + "x" * 500)
    assert len(host_info.cpu_model()) == host_info.MAX_CPU_NAME


def test_free_space_of_a_folder_to_be_is_that_of_the_disk_where_it_will_stand(
    tmp_path: Path,
) -> None:
    free = host_info.free_bytes(tmp_path / "to" / "be")
    assert free is not None and free > 0 and not (tmp_path / "to").exists()
