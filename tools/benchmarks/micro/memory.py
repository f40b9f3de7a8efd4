"""The resident memory of a worker while it plays, beyond the noise table that all processes of a
host share.

Of the two local workers of a whole run, as es-master starts them: the proportional set
size (Pss: pages that several processes map are divided among them) of the process that plays and of
the RQ worker around it, without what they map of the noise table.
"""

from __future__ import annotations

from pathlib import Path

from tools.benchmarks import machine
from tools.benchmarks.figures import Row
from tools.benchmarks.runs import Bench, Whole, fork, processes_of, resumed

TEXT = "resident memory of a worker beyond the shared noise, {}"
MIB = 2**20


def measured(bench: Bench, backend: str) -> list[Row]:
    """A value a worker, after two generations."""
    with processes_of(bench) as processes:
        run = resumed(bench, processes, fork(bench, f"memory-{backend}", backend=backend))
        run.record(bench.start[1].generation + 1)
        found = [of_worker(run, horse, noise_file(bench)) for horse in run.horses()]
        run.stop()
    names = ("both", "plays, Pss", "plays, Rss", "RQ worker, Pss", "RQ worker, Rss", "noise, Rss")
    beside = {
        name: ", ".join(f"{one[place] / MIB:.0f}" for one in found) + " MiB"
        for place, name in enumerate(names)
        if place
    }
    return [
        Row(
            f"memory-{backend}",
            TEXT.format(backend),
            tuple(one[0] / MIB for one in found),
            " MiB",
            beside=beside,
        )
    ]


def of_worker(run: Whole, horse: int, noise: Path) -> tuple[int, ...]:
    """Bytes: Pss of horse and RQ worker together, then the parts, all without the noise; last what
    the horse maps of that.
    """
    outer = int(machine.stat_of(horse)[1])
    outer = (
        outer if machine.role(outer) == "workers" else 0
    )  # a worker that runs its jobs itself has none around it
    parts: list[int] = []
    for pid in (horse, outer):
        own, shared = machine.resident(pid), machine.resident_of(pid, noise)
        parts += [max(0, whole - part) for whole, part in zip(own, shared, strict=True)]
    return parts[0] + parts[2], *parts, machine.resident_of(horse, noise)[1]


def noise_file(bench: Bench) -> Path:
    """The largest file of the folder is the table."""
    return max(
        (path for path in bench.noise.iterdir() if path.is_file()),
        key=lambda path: path.stat().st_size,
    )
