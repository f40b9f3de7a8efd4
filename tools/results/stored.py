"""docs/results.json: the rows of docs/results.md, with every run of each."""

from __future__ import annotations

import json
import shlex
import statistics
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA = DOCS / "results.json"


@dataclass(frozen=True)
class StoredRun:
    """One training run.

    mean, std, least: of the returns of 100 episodes with the seeds of the final evaluation
    env_steps: counted training steps
    threshold_steps: those before the first evaluation with the row's threshold; None if the run's
    mean is below it
    cpu_seconds: of all processes of the run, from start to end, None if not recorded
    digest: of its last parameters
    """

    seed: int
    mean: float
    std: float
    least: float
    env_steps: int
    threshold_steps: int | None
    cpu_seconds: float | None
    digest: str


#: In the order in which a run's line of docs/results.json has them.
FIELDS = tuple(field.name for field in fields(StoredRun))


@dataclass(frozen=True)
class Rival:
    """A published figure of this family of methods.

    figure: as published, such as "4815 ± 1341"; reward: its mean, to compare with; million_steps:
    as published; source: who published it; more: other figures. Without a reward, ``source`` is all
    there is to print.
    """

    source: str
    reward: float | None = None
    figure: str = ""
    million_steps: str = ""
    more: str = ""


@dataclass(frozen=True)
class StoredRow:
    """environment: the row's name; command: of es-master, without seeds; stock: whether the figures
    are of episodes in stock Gymnasium, else of the run's own final evaluation; threshold: the
    environment's registered one, or else the published figure; digits: decimals of returns;
    note: how runs differ from the command
    """

    environment: str
    command: str
    rival: Rival
    runs: tuple[StoredRun, ...]
    stock: bool = True
    threshold: float | None = None
    digits: int = 1
    note: str = ""

    @property
    def words(self) -> list[str]:
        """The command's words after ``es-master``."""
        return shlex.split(self.command)[1:]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def median(self) -> float:
        """Of the runs' means."""
        return statistics.median(run.mean for run in self.runs)

    def run(self, seed: int) -> StoredRun:
        """Raises ValueError for a seed that the row lacks."""
        for run in self.runs:
            if run.seed == seed:
                return run
        known = ", ".join(map(str, self.seeds))
        raise ValueError(
            f"cannot use seed {seed}: the row {self.environment} has the seeds {known}"
        )

    def with_runs(self, runs: list[StoredRun]) -> StoredRow:
        """The row, with these runs instead of those of the same seeds."""
        kept = [run for run in self.runs if run.seed not in {new.seed for new in runs}]
        return replace(self, runs=tuple(sorted([*kept, *runs], key=lambda run: run.seed)))


def load_rows(path: Path = DATA) -> list[StoredRow]:
    return [parse_row(entry) for entry in json.loads(path.read_text())]


def find_row(rows: list[StoredRow], environment: str) -> StoredRow:
    """Raises ValueError, in one sentence, if there is none."""
    for row in rows:
        if row.environment == environment:
            return row
    known = ", ".join(row.environment for row in rows)
    raise ValueError(f"docs/results.json has no row {environment!r}; its rows: {known}")


def parse_row(entry: dict[str, Any]) -> StoredRow:
    runs = tuple(StoredRun(**dict(zip(FIELDS, run, strict=True))) for run in entry["runs"])
    return StoredRow(**{**entry, "rival": Rival(**entry["rival"]), "runs": runs})


def write_rows(rows: list[StoredRow], path: Path = DATA) -> None:
    """One line for each run, so that a difference shows which run has changed."""
    path.write_text("[\n" + ",\n".join(map(format_row, rows)) + "\n]\n")


def format_row(row: StoredRow) -> str:
    values = asdict(row)
    runs = [[run[field] for field in FIELDS] for run in values.pop("runs")]
    facts = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    lines = ",\n".join(f"   {json.dumps(run)}" for run in runs)
    return " {\n" + ",\n".join([*facts, f'  "runs": [\n{lines}\n  ]']) + "\n }"
