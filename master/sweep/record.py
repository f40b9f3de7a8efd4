"""seeds.json: a study's settings, its seeds, the outcome of each run, and figures over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from es_queue.config.parsing import config_from_values
from es_queue.config.run_config import RunConfig
from es_queue.errors import DecodeError, RunFolderError, UsageError
from es_queue.files import FORMAT, parse_json, read_file
from es_queue.numerics.aggregates import Aggregates, aggregate
from es_queue.protocol.keys import RUN_ID
from es_queue.util.run_folder import STUDY_FILE
from master.display.format import finite_or_none
from master.storage.checkpoint import write_atomically
from master.sweep.seeds import MOST_SEEDS

MOST_BYTES = 2**24
#: What a run of a study can be; one that was restarted or is being stopped is running for
#: seeds.json.
WAITING, RUNNING, FINISHED, STOPPED, FAILED = "waiting", "running", "finished", "stopped", "failed"
STATES = (WAITING, RUNNING, FINISHED, STOPPED, FAILED)


@dataclass(frozen=True)
class SeedRun:
    """One seed's run. begun: whether it was ever started; code: exit code of its es-master; why:
    its last error line.
    """

    seed: int
    run: str
    state: str = WAITING
    begun: bool = False
    code: int | None = None
    why: str = ""
    summary: dict[str, Any] | None = None

    @property
    def evaluation(self) -> float | None:
        """None unless the run has finished."""
        return (
            finite_or_none((self.summary or {}).get("eval_mean"))
            if self.state == FINISHED
            else None
        )


@dataclass(frozen=True)
class SweepRecord:
    """A study. changes: settings that resumes have changed; target: the return that counts as
    solved.
    """

    run: str
    config: RunConfig
    entries: Sequence[SeedRun]
    warm_start: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    target: float | None = None
    state: str = RUNNING

    def figures(self) -> Aggregates:
        return aggregate([entry.evaluation for entry in self.entries])

    def count_reached(self) -> int:
        evaluations = [entry.evaluation for entry in self.entries]
        return sum(
            value is not None and self.target is not None and value >= self.target
            for value in evaluations
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON's ``study`` event, and half of seeds.json."""
        figures = asdict(self.figures())
        return {
            "run": self.run,
            "state": self.state,
            "seeds": [entry.seed for entry in self.entries],
            "runs_counted": figures.pop("count"),
            "runs_total": figures.pop("total"),
            "target": self.target,
            "reached_target": None if self.target is None else self.count_reached(),
            **figures,
            "interval_level": 0.95,
            "runs": [{**asdict(entry), "eval_mean": entry.evaluation} for entry in self.entries],
        }

    def save(self, folder: Path) -> None:
        """Write seeds.json. Raises RunFolderError."""
        settings = {name: value for name, value in self.config.to_dict().items() if name != "seed"}
        about = {
            "format": FORMAT,
            **self.to_dict(),
            "settings": settings,
            "changes": self.changes,
            "warm_start": self.warm_start,
        }
        write_atomically(folder / STUDY_FILE, json.dumps(about, indent=2, allow_nan=False).encode())


def load_record(folder: Path) -> SweepRecord:
    """Raises RunFolderError."""
    path = folder / STUDY_FILE
    try:
        about = parse_json(read_file(path, MOST_BYTES), MOST_BYTES)
        if about["format"] != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return _parse_record(about, str(path))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from None
    except (DecodeError, ValueError, TypeError, KeyError, UsageError) as error:
        raise RunFolderError(
            f"{path} was changed or damaged ({type(error).__name__}: "
            f"{str(error)[:200]}); restore it from a copy, or start again"
        ) from None


def _parse_record(about: dict[str, Any], where: str) -> SweepRecord:
    entries = [_parse_entry(fields_of_run) for fields_of_run in about["runs"]]
    if not 0 < len(entries) <= MOST_SEEDS or len({entry.seed for entry in entries}) < len(entries):
        raise ValueError("it does not have one run per seed")
    config = config_from_values(about["settings"], where)
    changed = config_from_values({**about["settings"], **about["changes"]}, where)
    changes = {name: getattr(changed, name) for name in about["changes"]}
    return SweepRecord(
        _validate_run_id(about["run"]),
        config,
        entries,
        _validate_text(about["warm_start"]),
        changes,
        finite_or_none(about["target"]),
    )


def _parse_entry(about: dict[str, Any]) -> SeedRun:
    entry = SeedRun(
        **{entry_field.name: about[entry_field.name] for entry_field in fields(SeedRun)}
    )
    _validate_run_id(entry.run)
    if type(entry.seed) is not int or not 0 <= entry.seed < 2**63 or entry.state not in STATES:
        raise ValueError(
            f"run {entry.run} has the seed {entry.seed!r} and the state {entry.state!r}"
        )
    if (
        not isinstance(entry.summary, dict | None)
        or not isinstance(entry.why, str)
        or not isinstance(entry.code, int | None)
    ):
        raise ValueError(f"run {entry.run} has a summary, code or reason that is invalid")
    return entry


def _validate_run_id(text: Any) -> str:
    if not isinstance(text, str) or not RUN_ID.fullmatch(text):
        raise ValueError(f"{str(text)[:60]!r} is not a run id")
    return text


def _validate_text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{str(value)[:60]!r} is not text")
    return value
