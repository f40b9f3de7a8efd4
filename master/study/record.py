"""seeds.json, all that is known of a study: its settings, its seeds, what each run came to, and the figures over them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from es_queue.aggregates import Aggregates, aggregate
from es_queue.config import RunConfig, option_fields
from es_queue.errors import RunFolderError, UsageError
from es_queue.private_folder import regular
from es_queue.protocol.keys import RUN_ID
from es_queue.settings import from_values
from master.checkpoint import write_atomically
from master.study.seeds import MOST_SEEDS
from master.wording import finite

FILE = "seeds.json"
LARGEST = 2**24
#: What a run of a study can be; one that was restarted or is being stopped is running for seeds.json.
WAITING, RUNNING, FINISHED, STOPPED, FAILED = "waiting", "running", "finished", "stopped", "failed"
STATES = (WAITING, RUNNING, FINISHED, STOPPED, FAILED)


@dataclass
class Entry:
    """One seed's run. begun: it was started at least once; code: exit code of its es-master; why: its last words."""

    seed: int
    run: str
    state: str = WAITING
    begun: bool = False
    code: int | None = None
    why: str = ""
    summary: dict[str, Any] | None = None

    @property
    def evaluation(self) -> float | None:
        """The final evaluation's mean return; None unless the run has finished."""
        return finite((self.summary or {}).get("eval_mean")) if self.state == FINISHED else None


@dataclass
class StudyRecord:
    """A study. changes: what resumes have changed of its settings; target: the return that counts as solved."""

    run: str
    config: RunConfig
    entries: list[Entry]
    warm_start: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    target: float | None = None
    state: str = RUNNING

    def figures(self) -> Aggregates:
        """Over the final evaluations, those that are missing counted."""
        return aggregate([one.evaluation for one in self.entries])

    def reached(self) -> int:
        """How many runs' final evaluation is at or above the target."""
        found = [one.evaluation for one in self.entries]
        return sum(value is not None and self.target is not None and value >= self.target for value in found)

    def told(self) -> dict[str, Any]:
        """The result as plain data: JSON's ``study`` event, and the half of seeds.json that says how it went."""
        figures = asdict(self.figures())
        return {
            "run": self.run, "state": self.state, "seeds": [one.seed for one in self.entries],
            "runs_counted": figures.pop("count"), "runs_total": figures.pop("total"),
            "target": self.target, "reached_target": None if self.target is None else self.reached(), **figures,
            "interval_level": 0.95, "runs": [{**asdict(one), "eval_mean": one.evaluation} for one in self.entries],
        }  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write seeds.json. Raises RunFolderError."""
        settings = {**self.config.to_dict()}
        settings.pop("seed")
        about = {"format": 1, **self.told(), "settings": settings, "changes": self.changes, "warm_start": self.warm_start}
        write_atomically(folder / FILE, json.dumps(about, indent=2, allow_nan=False).encode())


def load(folder: Path) -> StudyRecord:
    """The study of a folder. Raises RunFolderError, in one sentence, for what is none."""
    path = folder / FILE
    try:
        with open(path, "rb", opener=regular) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror}") from None
    try:
        if len(data) > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes")
        return _record(json.loads(data), str(path))
    except (ValueError, TypeError, KeyError, RecursionError, UsageError) as error:
        raise RunFolderError(f"{path} is not what es-master wrote there ({type(error).__name__}: {str(error)[:200]}); bring it back from a copy, or start anew") from None


def _record(about: dict[str, Any], where: str) -> StudyRecord:
    entries = [_entry(one) for one in about["runs"]]
    if not 0 < len(entries) <= MOST_SEEDS or len({one.seed for one in entries}) < len(entries):
        raise ValueError("its runs are not one for each seed")
    config = from_values(about["settings"], where)
    changes = {name: value for name, value in dict(about["changes"]).items() if name in option_fields()}
    return StudyRecord(_run_id(about["run"]), config, entries, _text(about["warm_start"]), changes, finite(about["target"]))


def _entry(about: dict[str, Any]) -> Entry:
    entry = Entry(**{one.name: about[one.name] for one in fields(Entry)})
    _run_id(entry.run)
    if type(entry.seed) is not int or not 0 <= entry.seed < 2**63 or entry.state not in STATES:
        raise ValueError(f"run {entry.run} has the seed {entry.seed!r} and the state {entry.state!r}")
    if not isinstance(entry.summary, dict | None) or not isinstance(entry.why, str) or not isinstance(entry.code, int | None):
        raise ValueError(f"run {entry.run} has a summary, code or reason that is none")
    return entry


def _run_id(text: Any) -> str:
    if not isinstance(text, str) or not RUN_ID.fullmatch(text):
        raise ValueError(f"{str(text)[:60]!r} is no run id")
    return text


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{str(value)[:60]!r} is no text")
    return value


def settings_toml(config: RunConfig) -> str:
    """Every setting but the seed as a TOML file for --config, from which ``options.read_settings`` reads the same values."""
    lines = ["# Written by es-master --seeds: what all runs of this study share.\n"]
    for name in option_fields():
        if name != "seed":
            lines.append(f"{name} = {_toml(name, getattr(config, name))}\n")
    return "".join(lines)


def _toml(name: str, value: Any) -> str:
    if name == "env_arg":  # as key=JSON: TOML has no null
        value = [f"{key}={json.dumps(given)}" for key, given in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml('', one) for one in value)}]"
    # What JSON writes for printable text is a TOML string as well; its surrogate pairs would not be.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
