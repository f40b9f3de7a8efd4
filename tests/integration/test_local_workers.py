"""Local workers: where they keep the noise table, and how many a host gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_queue.host import default_workers
from es_queue.numerics.noise_table import FOLDER_VARIABLE
from tests.integration.processes import CARTPOLE, Processes, flags


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


@pytest.mark.parametrize(
    ("cgroup", "files", "workers"),
    [
        ("0::/job\n", {"job/cpu.max": "100000 100000"}, 1),
        ("0::/job/step\n", {"job/cpu.max": "50000 100000", "job/step/cpu.max": "max 100000"}, 1),
        (
            "4:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "100000", "cpu/job/cpu.cfs_period_us": "100000"},
            1,
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
