"""A study: its settings, its seeds and the outcome of each run, kept in seeds.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from es_queue.config.parsing import config_from_values
from es_queue.config.run_config import RunConfig
from es_queue.errors import DecodeError, RunFolderError, UsageError
from es_queue.files import FORMAT, parse_json, read_file
from es_queue.numerics.statistics import Aggregates, aggregate
from es_queue.protocol import keys
from es_queue.run_folder import STUDY_FILE
from master.processes import Child
from master.status.figures import finite_or_none
from master.storage.checkpoint import write_atomically

MOST_SEEDS, MOST_BYTES = 100, 2**24
WAITING, RUNNING, FINISHED, STOPPED, FAILED = "waiting", "running", "finished", "stopped", "failed"
STATES = (WAITING, RUNNING, FINISHED, STOPPED, FAILED)
RESTARTING, STOPPING = "restarting", "stopping"
#: Figures of a row, and those that only an evaluation has.
ROW_FIELDS = ("generation", "env_steps", "steps_per_second", "workers")
EVALUATION_FIELDS = ("eval_mean", "eval_best")


@dataclass
class Seed:
    """One seed's run. begun: whether it was ever started; code: exit code of its es-master; why:
    its last error line; summary: its last event; child: its es-master; figures: the newest;
    joined: whether its es-master has reached the server since its last start
    """

    seed: int
    run: str
    state: str = WAITING
    begun: bool = False
    code: int | None = None
    why: str = ""
    summary: dict[str, Any] | None = None
    child: Child = field(default_factory=lambda: Child("", list, Path()))
    figures: dict[str, Any] = field(default_factory=dict)
    joined: bool = False

    def to_dict(self) -> dict[str, Any]:
        names = ("seed", "run", "state", "begun", "code", "why", "summary")
        about = {name: getattr(self, name) for name in names}
        # A file keeps a run that is being stopped or restarted as one that runs.
        about["state"] = self.state if self.state in STATES else RUNNING
        return {**about, "eval_mean": self.evaluation}

    @property
    def evaluation(self) -> float | None:
        """None unless the run has finished."""
        mean = finite_or_none((self.summary or {}).get("eval_mean"))
        return mean if self.state == FINISHED else None

    def show(self, event: dict[str, Any]) -> None:
        """Keep the figures of an event; those of an evaluation only if there was one."""
        names: tuple[str, ...] = ROW_FIELDS
        if finite_or_none(event.get("eval_mean")) is not None:
            names += EVALUATION_FIELDS
        self.figures |= {name: event[name] for name in names if name in event}


@dataclass
class Study:
    """changes: settings that resumes have changed; target: the return that counts as solved."""

    run: str
    config: RunConfig
    seeds: list[Seed]
    warm_start: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    target: float | None = None
    state: str = RUNNING

    def figures(self) -> Aggregates:
        return aggregate([seed.evaluation for seed in self.seeds])

    def count_reached(self) -> int:
        means = [seed.evaluation for seed in self.seeds]
        return sum(self.target is not None and m is not None and m >= self.target for m in means)

    def to_dict(self) -> dict[str, Any]:
        """The event ``study`` of ``--json``, and half of seeds.json."""
        figures = asdict(self.figures())
        return {
            "run": self.run,
            "state": self.state,
            "seeds": [seed.seed for seed in self.seeds],
            "runs_counted": figures.pop("count"),
            "runs_total": figures.pop("total"),
            "target": self.target,
            "reached_target": None if self.target is None else self.count_reached(),
            **figures,
            "interval_level": 0.95,
            "runs": [seed.to_dict() for seed in self.seeds],
        }

    def save(self, folder: Path) -> None:
        """Raises RunFolderError."""
        settings = {name: value for name, value in self.config.to_dict().items() if name != "seed"}
        about = {"format": FORMAT, **self.to_dict(), "settings": settings}
        about |= {"changes": self.changes, "warm_start": self.warm_start}
        write_atomically(folder / STUDY_FILE, json.dumps(about, indent=2, allow_nan=False).encode())


def load_study(folder: Path) -> Study:
    """Raises RunFolderError."""
    path = folder / STUDY_FILE
    try:
        about = parse_json(read_file(path, MOST_BYTES), MOST_BYTES)
        if about["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        seeds = [parse_seed(entry) for entry in about["runs"]]
        if not 0 < len(seeds) <= MOST_SEEDS or len({seed.seed for seed in seeds}) < len(seeds):
            raise ValueError("it does not have one run per seed")
        config = config_from_values(about["settings"], str(path))
        changed = config_from_values({**about["settings"], **about["changes"]}, str(path))
        changes = {name: getattr(changed, name) for name in about["changes"]}
        if not isinstance(start := about["warm_start"], str | None):
            raise ValueError("its warm start is not text")
        run, target = keys.checked_run_id(about["run"]), finite_or_none(about["target"])
        return Study(run, config, seeds, start, changes, target)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from None
    except (DecodeError, ValueError, TypeError, KeyError, UsageError) as error:
        raise RunFolderError(
            f"{path} was changed or damaged ({type(error).__name__}: "
            f"{str(error)[:200]}); restore it from a copy, or start again"
        ) from None


def parse_seed(about: dict[str, Any]) -> Seed:
    names = ("seed", "run", "state", "begun", "code", "why", "summary")
    seed = Seed(**{name: about[name] for name in names})
    keys.checked_run_id(seed.run)
    types = (int, str, str, bool, int | None, str, dict | None)
    if (
        isinstance(seed.seed, bool)
        or not all(isinstance(about[name], kind) for name, kind in zip(names, types, strict=True))
        or not 0 <= seed.seed < 2**63
        or seed.state not in STATES
    ):
        raise ValueError(f"run {seed.run} has a field that is invalid")
    return seed
